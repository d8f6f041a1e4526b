from __future__ import annotations

import pytest
import torch

from vitrail.data.text.tensors import pack_texts, unpack_texts


@pytest.mark.parametrize(
    "texts",
    [[], [""], ["", "a", ""], ["zwei\nM\u00e4nner", "\U0001f415", "\x00 b"], ["\ud800 lone"]],
    ids=["none", "empty", "empties", "unicode", "surrogate"],
)
def test_texts_come_back_as_they_were(texts: list[str]) -> None:
    state = pack_texts("words", texts)

    assert unpack_texts("words", state) == texts
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        "words_bytes": torch.uint8,
        "words_lengths": torch.int64,
    }
