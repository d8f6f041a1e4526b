"""The checker of conftest.py refuses wrong types and shapes in calls of the package."""

from __future__ import annotations

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from vitrail.engines.cpu.elementwise import dropout
from vitrail.engines.export.comparison import spread
from vitrail.nn.attention import attend


def test_wrong_types_and_shapes_are_refused() -> None:
    query, key = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5)
    with pytest.raises(BeartypeCallHintViolation, match="dimension dim is 5") as caught:
        attend(query, key, query)
    assert "batch=1" in caught.value.__notes__[0]
    with pytest.raises(BeartypeCallHintViolation, match="dtype int64"):
        dropout(torch.zeros(3, dtype=torch.int64), 0.5)
    with pytest.raises(BeartypeCallHintViolation, match="count='3'"):
        spread("3", 3)
