"""Language codes: recognise them, and choose source and target among those available."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding
from vitrail.data.text.lines import REPLACEMENT

Languages = tuple[str, str]
"""Codes of the source and the target language."""

SIDES: Languages = ("source", "target")
"""Names of the two languages if they are unknown."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TWO_LETTERS = _words(
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch "
    "co cr cs cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga "  # codespell:ignore fo
    "gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja "
    "jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv "
    "mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or "  # codespell:ignore nd
    "os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq "
    "sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve "  # codespell:ignore te
    "vi vo wa wo xh yi yo za zh zu"
)
"""Codes of ISO 639-1."""

SHORT = {
    pair[:3]: pair[4:]
    for pair in _words(
        "afr:af amh:am ara:ar arb:ar bel:be ben:bn bul:bg cat:ca ces:cs chi:zh cmn:zh "
        "cze:cs dan:da deu:de dut:nl ell:el eng:en est:et eus:eu ewe:ee fas:fa fin:fi "
        "fra:fr fre:fr ger:de glg:gl gre:el guj:gu hau:ha heb:he hin:hi hrv:hr hun:hu "
        "hye:hy ibo:ig ind:id isl:is ita:it jav:jv jpn:ja kan:kn kat:ka kaz:kk khm:km "
        "kin:rw kor:ko lao:lo lav:lv lit:lt lug:lg mal:ml mar:mr mkd:mk mlt:mt mya:my "
        "nep:ne nld:nl nor:no npi:ne ori:or ory:or pan:pa per:fa pes:fa pol:pl por:pt "
        "ron:ro rum:ro rus:ru sin:si slk:sk slv:sl sna:sn som:so spa:es srp:sr "  # codespell:ignore som
        "swa:sw swe:sv swh:sw tam:ta tel:te tgl:tl tha:th tir:ti tsn:tn "  # codespell:ignore te,tha
        "tur:tr twi:tw ukr:uk urd:ur uzb:uz vie:vi wol:wo xho:xh "  # codespell:ignore vie
        "yid:yi yor:yo yue:zh zho:zh zsm:ms zul:zu"
    )
}
"""Codes of two letters by those of three."""

THREE_LETTERS = SHORT.keys() | _words(
    "ace acm acq aeb ajp aka als apc ars ary arz asm ast awa ayr azb aze azj bak bam "  # codespell:ignore als
    "bbj bem bho bjn bod bos bre ceb cjk ckb crh cym dik dyu dzo epo fao fij fil fon "
    "fur fuv gla gle grn hat hne ice ilo kab kac kam kas kbp kea khk kik kir kmb kmr "
    "knc kon kur lat lij lim lin lmo ltg ltz luo lus lvs mai mlg mni mon mos mri msa "
    "nds nno nob nso nus nya oci orm pag pap pbt pcm plt prs pus que quy roh sag san "
    "scn shn slo sme smo snd sot sqi src srd ssw sun szl taq tat tgk tgt ton tpi trg "  # codespell:ignore sme
    "tso tuk tum tzm uig umb uzn vec ydd"
)
"""Codes of ISO 639-2 and 639-3 that parallel text comes in (FLORES-200, NLLB Team 2022), and what tool
kits write where no language is named; not all of them, as suffixes of other files and columns (min, run)
are alike."""

LANGUAGE = re.compile(
    r"^(?P<code>[a-z]{2,3})([-_][A-Z][a-z]{3})?([-_]([A-Za-z]{2}|\d{3}))?$"
)  # deu_Latn, pt_BR
PAIR = re.compile(r"(?:^|[._])(?P<first>[a-z]{2,3})(?:[-_]to)?[-_](?P<second>[a-z]{2,3})(?:$|[._])")


_NAMES = _words(
    "afrikaans:af albanian:sq amharic:am arabic:ar armenian:hy azerbaijani:az "
    "bambara:bm basque:eu belarusian:be bengali:bn bosnian:bs bulgarian:bg "
    "burmese:my catala:ca catalan:ca cebuano:ceb cestina:cs chinese:zh croatian:hr "
    "czech:cs danish:da dansk:da deutsch:de dutch:nl english:en espanol:es "
    "esperanto:eo estonian:et ewe:ee filipino:tl finnish:fi francais:fr french:fr "
    "galician:gl georgian:ka german:de greek:el gujarati:gu hausa:ha hebrew:he "
    "hindi:hi hungarian:hu icelandic:is igbo:ig indonesian:id irish:ga isizulu:zu "
    "italian:it italiano:it japanese:ja javanese:jv kannada:kn kazakh:kk khmer:km "
    "kinyarwanda:rw kiswahili:sw korean:ko kurdish:ku kyrgyz:ky lao:lo latvian:lv "
    "lithuanian:lt luganda:lg macedonian:mk magyar:hu malagasy:mg malay:ms "
    "malayalam:ml maltese:mt marathi:mr mongolian:mn nederlands:nl nepali:ne "
    "norsk:no norwegian:no pashto:ps persian:fa pidgin:pcm polish:pl polski:pl "
    "portugues:pt portuguese:pt punjabi:pa quechua:qu romana:ro romanian:ro "
    "russian:ru serbian:sr setswana:tn shona:sn sindhi:sd sinhala:si slovak:sk "
    "slovenian:sl somali:so sotho:st spanish:es suomi:fi svenska:sv swahili:sw "
    "swedish:sv tagalog:tl tajik:tg tamil:ta telugu:te thai:th tswana:tn turkce:tr "  # codespell:ignore te
    "turkish:tr twi:tw ukrainian:uk urdu:ur uzbek:uz vietnamese:vi welsh:cy "
    "wolof:wo xhosa:xh yoruba:yo zulu:zu"
)
CODE_OF_NAME = dict(each.split(":") for each in _NAMES)
"""Codes by names in English and in the language itself, without accents."""


COMMON_WORDS = {
    "en": _words("the and of to is you was that with"),
    "de": _words("der die das und ist nicht ich ein sie"),
    "fr": _words("le les des est une je vous pas dans"),
    "es": _words("el los que es una por con se del"),
    "it": _words("il di che un per sono della non gli"),
    "nl": _words("de het een van en niet ik dat zijn"),
    "pt": _words("o os uma que do da com para em"),
    "sv": _words("och att det som en jag inte den av"),
    "pl": _words("i w nie na jest z to do co"),
    "cs": _words("a je se na v to si jsem pro"),
}
"""Frequent words of languages in Latin letters, which the script does not tell apart."""


def short_code(language: str) -> str:
    """Return the language without region or script, of two letters where there are two.

    >>> short_code("pt_BR"), short_code("deu_Latn"), short_code("")
    ('pt', 'de', '')
    """
    (code, *_) = re.split(r"[\W_]+", language.lower().strip("-_ "))
    return SHORT.get(code, code)


def language_of(text: str) -> str | None:
    """Return the code of a language that is named by it, or in words; None for another text.

    >>> [language_of(name) for name in ("pt_BR", "English ", "Fran\u00e7ais", "Fran\ufffdais", "row")]
    ['pt_BR', 'en', 'fr', 'fr', None]
    """
    if is_language(text):
        return text
    letters = unicodedata.normalize("NFKD", text).strip().casefold()
    plain = "".join(each for each in letters if not unicodedata.combining(each))
    if REPLACEMENT in plain:  # in another encoding, such as Windows-1252
        pattern = re.escape(plain).replace(REPLACEMENT, ".")
        return next((code for name, code in CODE_OF_NAME.items() if re.fullmatch(pattern, name)), None)
    return CODE_OF_NAME.get(plain)


def is_language(text: str) -> bool:
    """Tell whether a text is a language code, with or without a region or a script.

    >>> is_language("de"), is_language("pt_BR"), is_language("txt")
    (True, True, False)
    """
    match = LANGUAGE.match(text)
    return match is not None and (match["code"] in TWO_LETTERS or match["code"] in THREE_LETTERS)


def languages_in(name: str) -> Languages | None:
    """Return the two languages in a file name, such as ``corpus.en-de``.

    >>> languages_in("eng-fra"), languages_in("en_to_de"), languages_in("rows")
    (('eng', 'fra'), ('en', 'de'), None)
    """
    match = PAIR.search(name)
    if match is None or match["first"] == match["second"]:
        return None
    first, second = match["first"], match["second"]
    return (first, second) if is_language(first) and is_language(second) else None


def choose_languages(
    available: Sequence[str], wanted: Languages | None, where: str
) -> tuple[Languages, tuple[Finding, ...]]:
    """Choose source and target language; also return a finding if they were not requested.

    Raises:
        DataError: a requested one is missing, or there are too few, or too many to choose from.
    """
    listed = ", ".join(available) or "none"
    choose = f"Choose with {language_option(available)}, the source first"
    if wanted is not None:
        check_distinct(wanted)
        by_code = {short_code(language): language for language in available}
        by_code |= {language: language for language in available}
        first, second = (by_code.get(each, by_code.get(short_code(each), each)) for each in wanted)
        if missing := [language for language in (first, second) if language not in available]:
            raise DataError(
                f"{where} has no text in {' or '.join(map(repr, missing))}",
                expected=f"two of the languages that are there: {listed}",
                remedy=choose,
            )
        return (first, second), ()
    if len(available) < 2:
        raise DataError(
            f"{where} has text in one language alone ({listed})",
            expected="the same sentences in two languages",
            remedy="Add the other side, or correct its name",
        )
    if len(available) > 2:
        raise DataError(
            f"{where} has text in {len(available)} languages: {listed}",
            expected="a choice of two",
            remedy=choose,
        )
    first, second = available
    finding = Finding(
        "info",
        "languages",
        f"what is learned is to translate from {first} into {second}, as they lie there",
        f"For the other way round: {language_option((second, first))}",
    )
    return (first, second), (finding,)


def check_distinct(wanted: Languages) -> None:
    """Refuse to translate a language into itself, with ``DataError``."""
    if wanted[0] == wanted[1]:
        raise DataError(
            f"source and target language are both {wanted[0]!r}",
            expected="two languages",
            remedy=f"Choose with {language_option(())}, the source first",
        )


def language_option(available: Sequence[str]) -> str:
    """Return the command line option that chooses the first two of some languages."""
    first, second = available[:2] if len(available) > 1 else ("en", "de")
    return f"--languages {first},{second}"
