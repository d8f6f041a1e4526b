"""Safe reading of pickles of plain values and arrays, such as CIFAR's batches, by an allow-list.

Unpickling runs arbitrary code. Here every name that a pickle imports is looked up in ``ALLOWED``: four
classes of this file stand for NumPy's constructors, and any other name is an error.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError

MAX_BYTES = 1 << 32  # 4 GiB; the largest file of CIFAR has 155 MB
NUMBER_TYPE = re.compile(r"^[<>|=]?[biuf][1248]$")


def read_plain_pickle(path: Path) -> Any:
    """Return the plain values (Python 2 strings as text) and NumPy arrays of a pickle.

    Raises:
        DataError: the file cannot be read, is damaged, or holds anything else.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        return _plain(_PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="latin-1").load())
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(
            f"{path} cannot be read as a pickle of numbers and texts: {' '.join(str(error).split())[:200]}",
            expected="a complete file of plain values and arrays, such as CIFAR's Python version",
            remedy="Fetch the file again from where it was published",
        ) from None


# Classes, not functions, and each with its own __setstate__: a pickle cannot set attributes on any of them.
class _Dtype:
    """Stands for ``numpy.dtype``: numeric types only."""

    def __init__(self, text: str, *_: Any) -> None:
        if not NUMBER_TYPE.match(text):
            raise ValueError(f"it holds values of the type {text!r}")
        self.type = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            self.type = self.type.newbyteorder(state[1])


class _Array:
    """Stands for an array built by ``_reconstruct`` and its state."""

    def __init__(self, *_: Any) -> None:
        self.values = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.values = _to_array(raw, dtype, shape, "F" if is_fortran else "C")


class _BufferArray(_Array):
    """Stands for an array built by ``_frombuffer``, from protocol 5 on."""

    def __init__(self, raw: Any, dtype: Any, shape: Any, order: Any) -> None:
        self.values = _to_array(raw, dtype, shape, order)


class _Bytes(bytes):
    """Stands for ``_codecs.encode``, which protocols 0 to 2 use for bytes."""

    def __new__(cls, text: str, *_: Any) -> _Bytes:
        return super().__new__(cls, text, "latin-1")

    def __setstate__(self, state: Any) -> None:
        raise ValueError("it sets up bytes")


ALLOWED: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _Bytes,
} | {
    (f"numpy.{core}.{module}", name): stand_in
    for core in ("core", "_core")
    for module in ("multiarray", "numeric")
    for name, stand_in in (("_reconstruct", _Array), ("_frombuffer", _BufferArray))
}
"""The names that a pickle may import, and their stand-ins."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in ALLOWED:
            raise ValueError(f"it uses {module}.{name}, which no array needs")
        return ALLOWED[module, name]


def _to_array(raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(dtype, _Dtype):
        raise ValueError("it holds an array of no type of numbers")
    content = raw.encode("latin-1") if isinstance(raw, str) else bytes(raw)
    return np.frombuffer(content, dtype=dtype.type).reshape(shape, order=order)


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(entry) for entry in value)
    if isinstance(value, _Bytes):
        return bytes(value)
    if value is not None and not isinstance(value, bool | int | float | str | bytes | bytearray):
        raise ValueError("it holds more than plain values and arrays")
    return value
