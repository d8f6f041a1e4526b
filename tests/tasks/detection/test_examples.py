from __future__ import annotations

from vitrail.tasks.detection.errors import ImageErrors
from vitrail.tasks.detection.report import best_images, typical_images
from vitrail.tasks.detection.scores import CocoScores, DetectionTables


def tables(*counts: tuple[int, int, int, int]) -> DetectionTables:
    return DetectionTables(
        scores=CocoScores(ap=None, ap50=None, ap75=None),
        per_class=(),
        threshold=0.5,
        precision=0.0,
        recall=0.0,
        confusion=(),
        images=tuple(
            ImageErrors(index=10 + row, correct=correct, missed=missed, confused=confused, spurious=spurious)
            for row, (correct, missed, confused, spurious) in enumerate(counts)
        ),
        worst=(),
    )


def test_the_best_have_many_boxes_and_no_error() -> None:
    found = best_images(tables((2, 0, 0, 0), (9, 1, 0, 0), (5, 0, 0, 0), (0, 0, 0, 0), (7, 0, 0, 1)), 5)

    assert found == [12, 10]


def test_typical_ones_have_a_median_share_of_errors() -> None:
    shares = tables((1, 0, 0, 1), (9, 0, 1, 0), (0, 0, 0, 0), (3, 1, 0, 0), (0, 3, 0, 0), (4, 0, 0, 0))

    # Shares of errors: 0.5, 0.1, none at all, 0.25, 1 and 0.
    assert typical_images(shares, 3) == [13, 11, 10]
    assert typical_images(tables((0, 0, 0, 0)), 3) == []
