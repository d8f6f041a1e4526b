from __future__ import annotations

import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.classification.published_scores import reassess


def test_any_of_several_labels_is_right_and_images_without_are_left_out() -> None:
    assert reassess([1, 2, 3, 4], [{1, 7}, set(), {2}, {4}]) == [True, False, True]


def test_images_without_any_label_have_no_score() -> None:
    with pytest.raises(DataError, match="none of 1"):
        reassess([1], [set()])
