"""Moses tokenisation, which published tokenised scores use."""

from __future__ import annotations

from importlib.metadata import version

from vitrail.core.errors import ConfigError

FALLBACK = "en"  # the fallback of Moses' own tokenizer.perl


class MosesWords:
    """Lower-case, normalise punctuation and tokenise plain text.

    The same steps produced the files ``*.lc.norm.tok.*`` of Multi30k, on which published systems are trained
    and scored (its ``scripts/task1-tokenize.sh``). The words of all 31,014 sentences of training, validation
    and test of 2016 agree, in all four languages.

    Args:
        language: code such as ``de`` or ``pt_BR``; without rules of its own it gets the English ones, and the
            signature says so.

    Raises:
        ConfigError: sacremoses is not installed.

    Example:
        >>> MosesWords("de")("Ein Hund, 3 Jahre alt, rennt.")
        'ein hund , 3 jahre alt , rennt .'
    """

    signature: dict[str, str]
    """Part of the signature of scores."""

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
        """Return space-separated words, with special characters escaped as in Moses."""
        # The script sees the line end, which one of its quote rules matches.
        normalised = self._normalizer.normalize(text.lower() + "\n")
        return self._tokenizer.tokenize(normalised, return_str=True)


def base_language(language: str) -> str:
    """Return the language without region or script: ``pt`` of ``pt_BR``."""
    letters = "".join(character if character.isalnum() else " " for character in language.lower())
    return letters.split()[0] if letters.split() else ""
