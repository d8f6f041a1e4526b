"""Pickles that hold nothing but plain values and arrays of numbers, read without unpickling.

A pickle is a program, and running one of unknown origin is to run its author's code. Here its instructions
are interpreted by hand: those that make numbers, texts, lists, dictionaries and arrays are known, any other
is an error, and nothing in the file is ever called.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError

MAX_BYTES = 1 << 32  # 4 GiB; the largest file of CIFAR has 155 MB
NUMBER_TYPE = re.compile(r"^[<>|=]?[biuf][1248]$")
MODULES = re.compile(r"^numpy\._?core\.(multiarray|numeric)$")

_MARK = object()


class _Global:
    """The name of what the pickle would import."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Dtype:
    """The type of an array's numbers, as far as the instructions have told it."""

    def __init__(self, text: str) -> None:
        if not NUMBER_TYPE.match(text):
            raise ValueError(f"it holds values of the type {text!r}")
        self.type = np.dtype(text)

    def build(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            self.type = self.type.newbyteorder(state[1])


class _Array:
    """An array, as far as the instructions have told it."""

    def __init__(self) -> None:
        self.values = np.empty(0)

    def build(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.values = _to_array(raw, dtype.type, shape, "F" if is_fortran else "C")


def read_plain_pickle(path: Path) -> Any:
    """Return what a pickle holds: plain values, in which texts of Python 2 are text, and NumPy arrays.

    Raises:
        DataError: the file cannot be read, is damaged, or holds anything else.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        return _plain(_interpret(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read as a pickle of numbers and texts: {' '.join(str(error).split())[:200]}",
            expected="a complete file of plain values and arrays, such as CIFAR's Python version",
            remedy="Fetch the file again from where it was published",
        ) from None


def _interpret(content: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name == "STOP":
            return stack.pop()
        if name in _VALUES:
            stack.append(argument)
        elif name in _STACK:
            _STACK[name](stack)
        elif name.endswith("PUT"):
            memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name.endswith("GET"):
            stack.append(memo[int(argument)])
        elif name == "GLOBAL":
            stack.append(_Global(*argument.split(" ", 1)))
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it has the instruction {name}, which plain values do not need")
    raise ValueError("it ends too early")


def _to_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1
    while stack[place] is not _MARK:
        place -= 1
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _to_list(stack: list[Any]) -> None:
    values = _to_mark(stack)
    stack.append(values)


def _to_tuple(stack: list[Any]) -> None:
    values = _to_mark(stack)
    stack.append(tuple(values))


def _take(count: int) -> Callable[[list[Any]], None]:
    """Return what makes a tuple of the newest values."""

    def take(stack: list[Any]) -> None:
        values = tuple(stack[len(stack) - count :])
        del stack[len(stack) - count :]
        stack.append(values)

    return take


def _fill(stack: list[Any], pairs: list[Any]) -> None:
    stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))


def _set_item(stack: list[Any]) -> None:
    value, key = stack.pop(), stack.pop()
    _fill(stack, [key, value])


def _set_items(stack: list[Any]) -> None:
    pairs = _to_mark(stack)
    _fill(stack, pairs)


def _append(stack: list[Any]) -> None:
    value = stack.pop()
    stack[-1].append(value)


def _to_dict(stack: list[Any]) -> None:
    pairs = _to_mark(stack)
    stack.append({})
    _fill(stack, pairs)


def _appends(stack: list[Any]) -> None:
    values = _to_mark(stack)
    stack[-1].extend(values)


def _name(stack: list[Any]) -> None:
    name, module = stack.pop(), stack.pop()
    stack.append(_Global(module, name))


def _build(stack: list[Any]) -> None:
    state = stack.pop()
    if not isinstance(stack[-1], _Dtype | _Array):
        raise ValueError(f"it sets up a {type(stack[-1]).__name__}")
    stack[-1].build(state)


def _reduce(stack: list[Any]) -> None:
    """Make the few things that arrays are pickled by; the function that is named is not called."""
    arguments, function = stack.pop(), stack.pop()
    known = (function.module, function.name)
    if known == ("numpy", "dtype"):
        stack.append(_Dtype(arguments[0]))
    elif MODULES.match(function.module) and function.name == "_reconstruct":
        stack.append(_Array())
    elif MODULES.match(function.module) and function.name == "_frombuffer":
        array = _Array()
        raw, dtype, shape, order = arguments
        array.values = _to_array(raw, dtype.type, shape, order)
        stack.append(array)
    elif known == ("_codecs", "encode"):
        stack.append(arguments[0].encode("latin-1"))
    else:
        raise ValueError(f"it calls {function.module}.{function.name}, which no array needs")


def _to_array(raw: Any, dtype: np.dtype, shape: Any, order: Any) -> np.ndarray:
    content = raw.encode("latin-1") if isinstance(raw, str) else bytes(raw)
    return np.frombuffer(content, dtype=dtype).reshape(shape, order=order)


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(entry) for entry in value)
    if isinstance(value, _Dtype | _Global):
        raise ValueError("it holds more than plain values and arrays")
    return value


_VALUES = frozenset(
    ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING")
)
_VALUES |= {"BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_VALUES |= {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_STACK: dict[str, Callable[[list[Any]], None]] = {
    "NONE": lambda stack: stack.append(None),
    "NEWTRUE": lambda stack: stack.append(True),
    "NEWFALSE": lambda stack: stack.append(False),
    "EMPTY_DICT": lambda stack: stack.append({}),
    "EMPTY_LIST": lambda stack: stack.append([]),
    "EMPTY_TUPLE": lambda stack: stack.append(()),
    "MARK": lambda stack: stack.append(_MARK),
    "LIST": _to_list,
    "TUPLE": _to_tuple,
    "DICT": _to_dict,
    "TUPLE1": _take(1),
    "TUPLE2": _take(2),
    "TUPLE3": _take(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "STACK_GLOBAL": _name,
    "REDUCE": _reduce,
    "BUILD": _build,
}
