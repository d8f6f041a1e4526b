"""Words as Moses' scripts cut them, which published tokenised scores are counted in."""

from __future__ import annotations

from importlib.metadata import version

from vitrail.core.errors import ConfigError

FALLBACK = "en"  # what Moses' own tokenizer.perl takes for languages that it has no rules for


class MosesWords:
    """Turn plain text into lower-cased words: lower-case, normalise the punctuation, tokenize.

    These are the three steps, in their order, that made the files ``*.lc.norm.tok.*`` of Multi30k, on
    which published systems are trained and scored (its ``scripts/task1-tokenize.sh``). The words of all
    31,014 sentences of training, validation and test of 2016 are the same as there, in all four languages.

    Args:
        language: code of the text's language, such as ``de`` or ``pt_BR``; one without rules gets the
            English ones, and the signature says so.

    Raises:
        ConfigError: sacremoses is not installed.

    Example:
        >>> MosesWords("de")("Ein Hund, 3 Jahre alt, rennt.")
        'ein hund , 3 jahre alt , rennt .'
    """

    signature: dict[str, str]
    """What a score of such words is signed with."""

    def __init__(self, language: str) -> None:
        try:
            from sacremoses import MosesPunctNormalizer, MosesTokenizer
            from sacremoses.corpus import NonbreakingPrefixes
        except ImportError:
            raise ConfigError(
                "tokenised BLEU needs the package sacremoses, which is not installed",
                expected="sacremoses beside vitrail",
                remedy="Install it with: pip install 'vitrail[translation]'",
            ) from None
        code = base_language(language)
        rules = NonbreakingPrefixes().available_langs.get(code)
        self.signature = {
            "norm": "moses",
            "tok": f"moses-{rules}" if rules else f"moses-{FALLBACK}-for-{code or 'unknown'}",
            "sacremoses": version("sacremoses"),
        }
        self._tokenizer = MosesTokenizer(lang=rules or FALLBACK)
        # The Python port differs from the script in a few quotes unless it is asked to agree.
        self._normalizer = MosesPunctNormalizer(lang=rules or FALLBACK, perl_parity=True)

    def __call__(self, text: str) -> str:
        """Return the words with a space between them, special characters escaped as Moses does."""
        # The script sees a line with its end, which one of its rules for quotes matches.
        normalised = self._normalizer.normalize(text.lower() + "\n")
        return self._tokenizer.tokenize(normalised, return_str=True)


def base_language(language: str) -> str:
    """Return the language without its region or script: ``pt`` of ``pt_BR``."""
    letters = "".join(character if character.isalnum() else " " for character in language.lower())
    return letters.split()[0] if letters.split() else ""
