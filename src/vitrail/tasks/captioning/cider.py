"""CIDEr-D: TF-IDF-weighted n-gram similarity with several references.

The only library, pycocoevalcap, is a package of 100 MB with Java programs in it.

Paper: Vedantam et al. 2015, equations 1 to 3 and section 7 (the D version, which COCO's server reports).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from vitrail.core.errors import DataError

MAX_ORDER = 4  # section 4
SIGMA = 6.0  # of the penalty for another length; section 7
SCALE = 10.0  # section 7

Words = Sequence[str]
Grams = list[Counter[tuple[str, ...]]]
Vector = dict[tuple[str, ...], float]


def cider_scores(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """Return the CIDEr-D of each image; their mean is the corpus score.

    With ``g(c) = count in c * log(images / images whose references have it)`` for the n-grams of each order:
    the mean over references and orders of ``10 exp(-(difference of lengths)^2 / 72)`` times ``sum min(g(c),
    g(r)) g(r) / (|g(c)| |g(r)|)``. It lies between 0 and 10.

    Document frequencies come from the references, so scores of different data sets, or of subsets, are not
    comparable; the score of a single image is 0.

    Args:
        hypotheses: words of one caption per image.
        references: words of each reference, at least one per image.

    Raises:
        DataError: there is no image, not a list of references for each, or one without references.

    >>> references = [[["a", "dog", "runs", "fast"]], [["two", "cats", "sleep", "here"]]]
    >>> hypotheses = [["a", "dog", "runs", "fast"], ["a", "dog", "runs", "fast"]]
    >>> [round(score, 6) for score in cider_scores(hypotheses, references)]
    [10.0, 0.0]
    """
    if not hypotheses or len(hypotheses) != len(references) or not all(references):
        raise DataError(
            f"there are {len(hypotheses)} captions and {len(references)} lists of references",
            expected="one or more captions, and at least one reference for each",
            remedy="Give every caption with what it is compared with; an empty one has no words",
        )
    grams = [[_count(words) for words in texts] for texts in references]
    frequencies: Counter[tuple[str, ...]] = Counter()
    for counted in grams:
        frequencies.update({gram for orders in counted for counts in orders for gram in counts})
    log_images = math.log(len(references))
    return [
        _score(_count(words), counted, frequencies, log_images)
        for words, counted in zip(hypotheses, grams, strict=True)
    ]


def _score(
    hypothesis: Grams, references: Sequence[Grams], frequencies: Counter[tuple[str, ...]], log_images: float
) -> float:
    """Return the score of one caption."""
    own = [_weigh(counts, frequencies, log_images) for counts in hypothesis]
    total = 0.0
    for reference in references:
        # Lengths are counted in bigrams, as in the published code.
        difference = sum(hypothesis[1].values()) - sum(reference[1].values())
        penalty = math.exp(-(difference**2) / (2 * SIGMA**2))
        for vector, counts in zip(own, reference, strict=True):
            total += penalty * _similarity(vector, _weigh(counts, frequencies, log_images))
    return SCALE * total / (MAX_ORDER * len(references))


def _count(words: Words) -> Grams:
    """Count the n-grams of each order."""
    return [
        Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
        for order in range(1, MAX_ORDER + 1)
    ]


def _weigh(
    counts: Counter[tuple[str, ...]], frequencies: Counter[tuple[str, ...]], log_images: float
) -> Vector:
    """Weight counts by inverse document frequency; an n-gram that no reference has weighs most."""
    return {
        gram: count * (log_images - math.log(max(1, frequencies[gram]))) for gram, count in counts.items()
    }


def _similarity(hypothesis: Vector, reference: Vector) -> float:
    """Return the clipped cosine similarity of two vectors."""
    norms = math.hypot(*hypothesis.values()) * math.hypot(*reference.values())
    if not norms:
        return 0.0
    shared = (gram for gram in hypothesis if gram in reference)
    return sum(min(hypothesis[gram], reference[gram]) * reference[gram] for gram in shared) / norms
