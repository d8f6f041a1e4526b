"""What scores of generated texts must agree in besides the data: search and scoring."""

from __future__ import annotations

RESAMPLING = ("bs:", "seed:")  # resamples and their seed: of the intervals alone


def sign_search(beam_size: int, length_penalty: float, longest: str) -> str:
    """Describe the search for a score's signature.

    Args:
        beam_size: 1 for greedy search.
        length_penalty: exponent of the length, without effect on a greedy search.
        longest: the length limit of a text.

    >>> sign_search(5, 0.7, "at most 30 tokens")
    'beam 5, length penalty 0.7, at most 30 tokens'
    """
    searched = "greedy" if beam_size == 1 else f"beam {beam_size}, length penalty {length_penalty:g}"
    return f"{searched}, {longest}"


def sign_scoring(signature: str) -> str:
    """Write sacrebleu's signature of a text score as one entry of an evaluation's signature.

    >>> sign_scoring("nrefs:1|bs:1000|seed:12345|case:mixed|tok:13a|version:2.6.0")
    'nrefs 1; case mixed; tok 13a; sacrebleu 2.6.0'
    """
    parts = [part for part in signature.split("|") if not part.startswith(RESAMPLING)]
    return "; ".join(part.replace("version:", "sacrebleu:", 1).replace(":", " ", 1) for part in parts)
