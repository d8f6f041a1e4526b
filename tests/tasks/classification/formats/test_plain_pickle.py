"""Pickles read by an allow-list: what plain values give, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from making.benchmark_folders import cifar_pixels, python2_batch
from vitrail.core.errors import DataError
from vitrail.tasks.classification.formats.cifar import read_plain_pickle


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_values_and_arrays_are_what_pickle_reads(tmp_path: Path, protocol: int) -> None:
    shared = ["again", 300]
    value = {
        "labels": [3, 70_000, -2, 1 << 40],
        b"data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "floats": np.array([[1.5, -2.0]], dtype=">f4"),
        "columns": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        "nested": (1.25, None, True, False, (), ("a",), ("a", "b"), ("a", "b", "c", "d"), {}, shared, shared),
        "text": "f\u00fcnf",
    }
    path = tmp_path / "values"
    path.write_bytes(pickle.dumps(value, protocol=protocol))

    read = read_plain_pickle(path)

    assert read["labels"] == value["labels"]
    assert read["nested"] == value["nested"]
    assert read["text"] == value["text"]
    for key in (b"data", "floats", "columns"):
        np.testing.assert_array_equal(read[key], value[key])
        assert read[key].dtype == value[key].dtype


def test_a_batch_of_python_2_is_what_pickle_reads(tmp_path: Path) -> None:
    pixels = cifar_pixels([3, 9], 0)
    content = python2_batch(pixels, [3, 9])
    (tmp_path / "batch").write_bytes(content)
    read = read_plain_pickle(tmp_path / "batch")
    np.testing.assert_array_equal(read["data"], pixels)
    assert read["labels"] == [3, 9]
    expected = pickle.loads(content, encoding="latin-1")
    assert expected.keys() == read.keys()
    np.testing.assert_array_equal(expected["data"], read["data"])


class Harmful:
    """What runs a command when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('it ran')",))


@pytest.mark.parametrize(
    "value",
    [Harmful(), {"a": Path("x")}, np.array([object()]), np.dtype("u1"), np.ndarray, {1, 2}],
    ids=["a call", "a class", "an array of objects", "a type of numbers", "a type", "a set"],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_else_is_read_and_nothing_runs(tmp_path: Path, value: object, protocol: int) -> None:
    (tmp_path / "values").write_bytes(pickle.dumps(value, protocol=protocol))
    with pytest.raises(DataError, match="a complete pickle of numbers, texts"):
        read_plain_pickle(tmp_path / "values")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x80\x02}q\x01(U\x04da", b"no pickle at all", b"\x80\x02h\x07."),
        b"\x80\x02cnumpy\ndtype\n(NK\x01t}X\x04\x00\x00\x00typeNs\x86b.",  # sets an attribute of a stand-in
        b"\x80\x02cnumpy\ndtype\n}X\x04\x00\x00\x00typeNsb.",
        b"\x80\x02r\xff\xff\xff\x7f.",  # a memo of 2 billion entries
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04cnumpy\nndarray\n)RI1\na.",  # appends to a stand-in
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "values").write_bytes(content)
    with pytest.raises(DataError, match="a complete pickle of numbers, texts"):
        read_plain_pickle(tmp_path / "values")
