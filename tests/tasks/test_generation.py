"""What evaluators of written texts hand to other processes."""

from __future__ import annotations

import pytest
import torch

from vitrail.models.decoding import Hypothesis
from vitrail.tasks.generation import WrittenTexts


@pytest.mark.parametrize(
    "texts",
    [[], [""], ["", "a", ""], ["zwei\nM\u00e4nner", "\U0001f415", "\x00 b"], ["\ud800 lone"]],
    ids=["none", "empty", "empties", "unicode", "surrogate"],
)
def test_texts_come_back_as_they_were(texts: list[str]) -> None:
    written, other = WrittenTexts("text"), WrittenTexts("text")
    count = len(texts)
    written.add(
        torch.arange(count),
        texts,
        num_tokens=torch.arange(count),
        nll=torch.arange(count) / 3,
        hypotheses=[Hypothesis((), 0.0, 0.0, is_finished=True)] * count,
    )

    other.absorb(written.state())

    assert other["text"] == texts
    assert all(other[name] == written[name] for name in other.names)
