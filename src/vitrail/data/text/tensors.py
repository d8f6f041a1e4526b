"""Texts as tensors, in which evaluators hand what they collected to other processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


def pack_texts(name: str, texts: Sequence[str]) -> dict[str, Tensor]:
    """Write texts as one row of UTF-8 bytes and the length of each, under two names.

    Example:
        >>> packed = pack_texts("words", ["ab", ""])
        >>> packed["words_bytes"].tolist(), packed["words_lengths"].tolist()
        ([97, 98], [2, 0])
    """
    written = [text.encode("utf-8", "surrogatepass") for text in texts]
    joined = np.frombuffer(bytearray(b"".join(written)), dtype=np.uint8)
    return {
        f"{name}_bytes": torch.from_numpy(joined),
        f"{name}_lengths": torch.tensor([len(text) for text in written], dtype=torch.int64),
    }


def unpack_texts(name: str, state: Mapping[str, Tensor]) -> list[str]:
    """Read what ``pack_texts`` returned under that name."""
    joined = state[f"{name}_bytes"].numpy().tobytes()
    texts, start = [], 0
    for length in state[f"{name}_lengths"].tolist():
        texts.append(joined[start : start + length].decode("utf-8", "surrogatepass"))
        start += length
    return texts
