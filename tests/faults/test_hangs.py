"""Files that would keep a reader busy or waiting for ever, or fill the memory, are refused at once."""

from __future__ import annotations

import gzip
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from faults.test_outside import VOC, coco, save, write
from vitrail.cli import main
from vitrail.core.errors import DataError
from vitrail.data.images import read_image
from vitrail.data.tables import read_table
from vitrail.data.text.lines import read_lines, read_list
from vitrail.tasks.classification.formats.cifar import read_plain_pickle
from vitrail.tasks.classification.formats.idx import read_idx
from vitrail.tasks.classification.formats.lists import read_matlab, read_vtab
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.detection.formats.coco import load_coco
from vitrail.tasks.detection.formats.yolo import load_config
from vitrail.tasks.detection.opening import open_boxes

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "an image": ("a.png", read_image),
    "a table": ("a.csv", read_table),
    "lines of JSON": ("a.jsonl", read_table),
    "parquet": ("a.parquet", read_table),
    "lines": ("a.en", read_lines),
    "packed lines": ("a.en.gz", read_lines),
    "a list": ("a.txt", lambda path: read_list(path, entry="a name")),
    "COCO": ("a.json", load_coco),
    "YAML": ("a.yaml", load_config),
    "a pickle": ("data_batch_1", read_plain_pickle),
    "IDX": ("train-images-idx3-ubyte.gz", read_idx),
    "MATLAB": ("a.mat", read_matlab),
}


@pytest.fixture(params=["pipe", "device", "socket"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return what makes a file of a name that is no file."""
    opened: list[socket.socket] = []
    former = Path.cwd()
    os.chdir(tmp_path)  # the path of a socket must be short

    def make(name: str) -> Path:
        if request.param == "pipe":
            os.mkfifo(name)
        elif request.param == "device":
            Path(name).symlink_to("/dev/zero")
        else:
            opened.append(socket.socket(socket.AF_UNIX))
            opened[-1].bind(name)
        return tmp_path / name

    yield make
    os.chdir(former)
    for each in opened:
        each.close()


@pytest.mark.parametrize("reader", READERS)
def test_pipes_devices_and_sockets_are_refused(endless: Callable[[str], Path], reader: str) -> None:
    name, read = READERS[reader]
    with pytest.raises(DataError, match="is a pipe, a device or a socket"):
        read(endless(name))


@pytest.mark.parametrize("kind", ["classes", "boxes"])
def test_pipes_among_data_are_left_out_and_told(tmp_path: Path, kind: str) -> None:
    for number in range(12):
        save(
            tmp_path / ("blue" if kind == "classes" and number % 2 else "red") / f"{number}.png", 90 + number
        )
    os.mkfifo(tmp_path / "red" / "pipe.png")
    if kind == "boxes":
        for number in range(12):
            write(tmp_path / "Annotations" / f"{number}.xml", VOC.format(f"{number}.png"))
        os.mkfifo(tmp_path / "Annotations" / "pipe.xml")
        assert sum(len(split) for split in open_boxes(tmp_path).splits.values()) == 12
    else:
        assert sum(len(split) for split in open_dataset(str(tmp_path)).splits.values()) == 13
    assert main(["check", str(tmp_path)]) == 0


def test_a_pipe_given_to_predict_is_an_error_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coco(tmp_path, "0.png")
    os.mkfifo(tmp_path / "0.png")
    with pytest.raises(DataError, match="is a pipe, a device or a socket"):
        read_image(tmp_path / "0.png")


def memo_bomb() -> bytes:
    nested: Any = [0]
    for _ in range(60):
        nested = [nested, nested]
    return pickle.dumps({"data": nested}, protocol=2)


def number_bomb() -> bytes:
    return b"\x80\x02]r\xff\xff\xff\x7f."  # numbers an empty list 2**31 - 1, for which all before take memory


def bytes_bomb() -> bytes:
    """Return a pickle that encodes one text of a megabyte 3,000 times."""
    text = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x01"
    encode = b"c_codecs\nencode\n(h\x01X\x06\x00\x00\x00latin1tR"
    return b"\x80\x02" + text + b"0(" + encode * 3000 + b"l."


def test_pickles_cannot_grow(tmp_path: Path) -> None:
    file = tmp_path / "data_batch_1"
    file.write_bytes(memo_bomb())
    assert list(read_plain_pickle(file)) == ["data"]
    file.write_bytes(bytes_bomb())
    texts = read_plain_pickle(file)
    assert len(texts) == 3000
    assert all(text is texts[0] for text in texts)  # one megabyte, not three thousand
    file.write_bytes(number_bomb())
    with pytest.raises(DataError, match="numbers a value 2,147,483,647"):
        read_plain_pickle(file)


@pytest.mark.parametrize("name", ["a.en.gz", "train-images-idx3-ubyte.gz"])
def test_packed_files_cannot_grow(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.core.files.MAX_UNPACKED", 1 << 20)
    header = struct.pack(">4B3I", 0, 0, 8, 3, 1 << 7, 1 << 9, 1 << 8) if "idx" in name else b""
    file = tmp_path / name
    with gzip.open(file, "wb", compresslevel=1) as packed:
        packed.write(header)
        packed.write(bytes(1 << 24))
    with pytest.raises(DataError, match=r"unpacks to more than|its header announces"):
        read_idx(file) if "idx" in name else read_lines(file)


@pytest.mark.parametrize(
    ("names", "given"),
    [
        ("[" * 60 + "]" * 60, "more than 50 levels, or 200,000 values"),
        ("[" + "a," * 200_001 + "a]", "or 200,000 values"),
        ("? " * 30_000, r"levels|cannot be read"),
    ],
)
def test_yaml_cannot_grow(tmp_path: Path, names: str, given: str) -> None:
    write(tmp_path / "data.yaml", f"train: images\nnames: {names}\n")
    with pytest.raises(DataError, match=given):
        load_config(tmp_path / "data.yaml")


@pytest.mark.parametrize("number", ["9" * 20, "9" * 5000, "1234567"])
def test_numbers_of_classes_are_bounded(tmp_path: Path, number: str) -> None:
    for name in ("train800.txt", "val200.txt", "test.txt"):
        write(tmp_path / name, f"images/a.jpg {number}\n")
    with pytest.raises(DataError, match="line 1 is"):
        read_vtab(tmp_path)


BRACKETS = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("annotations.json", '{"images": ' + BRACKETS),
        ("captions_train.json", '{"annotations": [{"image_id": 1, "caption": "a"}], "images": ' + BRACKETS),
        ("dataset_flickr8k.json", '{"sentids": 1, "images": ' + BRACKETS),
        ("train.jsonl", '{"image": ' + BRACKETS + "\n"),
        ("train.csv", 'image,caption\na.png,"' + BRACKETS + '"\n'),
        ("dataset_info.json", '{"features": ' + BRACKETS),
        ("tree.json", BRACKETS),
    ],
)
def test_brackets_nested_deeply_end_in_no_traceback(tmp_path: Path, name: str, text: str) -> None:
    save(tmp_path / "a.png", 90)
    write(tmp_path / name, text)
    if name == "dataset_info.json":
        write(tmp_path / "state.json", BRACKETS)
    for source in (tmp_path, tmp_path / name):
        assert main(["check", str(source)]) in (0, 1, 2)


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    for number in range(12):
        save(tmp_path / "data" / ("blue" if number % 2 else "red") / f"{number}.png", 90 + number)
    (tmp_path / "data" / "green").symlink_to("/")
    (tmp_path / "data" / "red" / "again").symlink_to(tmp_path)
    assert open_dataset(str(tmp_path / "data")).class_names == ("blue", "red")
    assert sum(len(split) for split in open_dataset(str(tmp_path / "data")).splits.values()) == 12


@pytest.mark.parametrize("path", ["~nosuch/a.png", "~nosuch", "~\udcff/a.png", "a\0.png"])
def test_paths_of_no_home_are_missing_files(tmp_path: Path, path: str) -> None:
    save(tmp_path / "a.png", 90)
    rows = "".join(f"{name},{label}\n" for name, label in [("a.png", "x"), ("a.png", "y"), (path, "x")] * 4)
    (tmp_path / "train.csv").write_bytes(b"image,label\n" + rows.encode(errors="replace"))
    (tmp_path / "captions.csv").write_bytes(b"image,caption\n" + rows.encode(errors="replace"))
    assert main(["check", str(tmp_path / "train.csv")]) in (0, 1, 2)
    assert main(["check", str(tmp_path / "captions.csv")]) in (0, 1, 2)
    assert main(["check", "~nosuch"]) == 2
    assert main(["check", str(tmp_path), "--fix", "~nosuch/x"]) == 2


def test_arrays_in_images_of_no_size_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((1, 1), np.uint8)).save(tmp_path / "a.png")
    content = bytearray((tmp_path / "a.png").read_bytes())
    content[16:24] = struct.pack(">2I", 2**31 - 1, 2**31 - 1)
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError):
        read_image(tmp_path / "a.png")


def test_no_module_of_readers_is_needed_to_refuse() -> None:
    code = "import sys, vitrail.core.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
