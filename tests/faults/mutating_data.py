"""Read mutated images, annotations, tables and texts, and look for uncaught errors, hangs and memory.

    PYTHONPATH=tests python tests/faults/mutating_data.py --seconds 60 [READER ...]
    PYTHONPATH=tests python tests/faults/mutating_data.py --seconds 600 --atheris CORPUS image.png

As ``mutating_models``: each reader in a process of its own, with the last seed where that ends.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from faults.mutating_models import Target, main
from faults.mutations import Mutation, mutate_bytes, mutate_description
from faults.test_outside import VOC, coco, coco_captions, flickr, karpathy, objects, save, write, yolo
from vitrail.data.inspection import inspect_image
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tables import read_table
from vitrail.data.text.lines import read_lines
from vitrail.tasks.captioning.opening import open_captions
from vitrail.tasks.classification.formats.cifar import read_plain_pickle
from vitrail.tasks.classification.formats.idx import read_idx
from vitrail.tasks.classification.formats.lists import read_matlab
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.detection.opening import open_boxes
from vitrail.tasks.labelling.opening import open_texts
from vitrail.tasks.translation.opening import open_pairs

IMAGES: dict[str, tuple[str, str, dict[str, Any]]] = {  # form, mode and options of Pillow
    "png": ("PNG", "RGBA", {}),
    "deep.png": ("PNG", "I;16", {}),
    "palette.png": ("PNG", "P", {"transparency": b"\0\x80"}),
    "jpg": ("JPEG", "RGB", {}),
    "progressive.jpg": ("JPEG", "CMYK", {"progressive": True}),
    "gif": ("GIF", "P", {}),
    "bmp": ("BMP", "RGB", {}),
    "webp": ("WEBP", "RGBA", {}),
    "tif": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "float.tif": ("TIFF", "F", {}),
    "ppm": ("PPM", "RGB", {}),
    "jp2": ("JPEG2000", "RGB", {}),
    "avif": ("AVIF", "RGB", {}),
}
BOXES: dict[str, tuple[Callable[[Path, str], None], str]] = {
    "coco": (coco, "annotations.json"),
    "objects": (objects, "metadata.jsonl"),
    "yolo.yaml": (yolo, "data.yaml"),
    "yolo.labels": (yolo, "labels/3.txt"),
    "yolo.list": (yolo, "list.txt"),
}
CAPTIONS: dict[str, tuple[Callable[[Path, str], None], str]] = {
    "captions": (coco_captions, "captions_train.json"),
    "karpathy": (karpathy, "dataset_flickr8k.json"),
    "flickr": (flickr, "Flickr8k.token.txt"),
}
TABLES = ("table.csv", "table.tsv", "table.jsonl", "table.parquet")
OTHERS = ("voc", "pickle", "idx", "idx.gz", "mat", "lines", "lines.gz", "pairs", "texts.csv", "classes.csv")
READERS = (*(f"image.{name}" for name in IMAGES), *BOXES, *CAPTIONS, *TABLES, *OTHERS)


def targets_of(reader: str, folder: Path) -> list[Target]:
    """Write what a reader reads, and return its files."""
    if reader.startswith("image."):
        return [_image(reader.removeprefix("image."), folder)]
    mutate: Mutation = mutate_description if reader in ("coco", "captions", "karpathy") else mutate_bytes
    if reader in BOXES or reader == "voc":
        for number in range(9):
            save(folder / f"{number}.png", 20 + 10 * number)
        if reader == "voc":
            for number in range(9):
                write(folder / "Annotations" / f"{number}.xml", VOC.format(f"{number}.png"))
            return [Target(folder / "Annotations" / "3.xml", lambda: open_boxes(folder))]
        annotate, name = BOXES[reader]
        annotate(folder, "0.png")
        return [Target(folder / name, lambda: open_boxes(folder), mutate)]
    if reader in CAPTIONS:
        save(folder / "a.png", 40)
        save(folder / "b.png", 50)
        annotate, name = CAPTIONS[reader]
        annotate(folder, "b.png")
        return [Target(folder / name, lambda: open_captions(str(folder)), mutate)]
    return [_table(folder / reader) if reader in TABLES else _other(reader, folder)]


def _image(name: str, folder: Path) -> Target:
    form, mode, options = IMAGES[name]
    path = folder / f"a.{name}"
    pixels = np.random.default_rng(3).integers(0, 256, (21, 17, 4), dtype=np.uint8)
    if mode in ("I;16", "F"):
        image = Image.fromarray(pixels[..., 0].astype(np.uint16 if mode == "I;16" else np.float32))
    else:
        image = Image.fromarray(pixels).convert("RGB")
        image = Image.fromarray(pixels) if mode == "RGBA" else image.convert(mode)
    image.save(path, form, **options)

    def read() -> None:
        inspect_image(path, path.name)
        Preprocessing(image_size=(8, 8)).read(path)

    return Target(path, read)


def _table(path: Path) -> Target:
    rows = [{"image": f"{number}.png", "label": number % 3, "text": f"row {number}"} for number in range(20)]
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        write(path, "".join(json.dumps(row) + "\n" for row in rows))
    else:
        write(path, _delimited(rows, "\t" if path.suffix == ".tsv" else ","))
    return Target(path, lambda: read_table(path))


def _delimited(rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    return "".join(
        delimiter.join(map(str, row)) + "\n" for row in ([*rows[0]], *(row.values() for row in rows))
    )


def _other(reader: str, folder: Path) -> Target:
    numbers = np.arange(60, dtype=np.uint8).reshape(5, 3, 4)
    match reader:
        case "pickle":
            path = folder / "data_batch_1"
            path.write_bytes(
                pickle.dumps({b"data": numbers, b"labels": [1, 2, 3], "more": b"bytes"}, protocol=2)
            )
            return Target(path, lambda: read_plain_pickle(path))
        case "idx" | "idx.gz":
            path = folder / f"train-images-idx3-ubyte{reader.removeprefix('idx')}"
            content = struct.pack(">4B3I", 0, 0, 8, 3, *numbers.shape) + numbers.tobytes()
            path.write_bytes(gzip.compress(content) if reader == "idx.gz" else content)
            return Target(path, lambda: read_idx(path))
        case "mat":
            from scipy.io import savemat

            path, content = folder / "labels.mat", io.BytesIO()
            savemat(content, {"labels": numbers, "name": "text", "cell": np.array([{"a": 1}], dtype=object)})
            path.write_bytes(content.getvalue())
            return Target(path, lambda: read_matlab(path))
        case "lines" | "lines.gz":
            path = folder / f"train.en{reader.removeprefix('lines')}"
            content = "".join(f"line {number} of a text\n" for number in range(30)).encode()
            path.write_bytes(gzip.compress(content) if reader == "lines.gz" else content)
            return Target(path, lambda: read_lines(path))
        case "pairs":
            for language in ("en", "de"):
                write(
                    folder / f"train.{language}", "".join(f"a {language} {number}\n" for number in range(30))
                )
            return Target(folder / "train.en", lambda: open_pairs(str(folder)))
    rows: list[dict[str, Any]] = [
        {"text": f"row {number}", "label": "ab"[number % 2]} for number in range(30)
    ]
    if reader == "classes.csv":
        for number in range(30):
            save(folder / f"{number}.png", 20 + 5 * number)
        rows = [{"image": f"{number}.png", "label": "ab"[number % 2]} for number in range(30)]
    path = folder / reader
    write(path, _delimited(rows))
    read = open_dataset if reader == "classes.csv" else open_texts
    return Target(path, lambda: read(str(path)))


if __name__ == "__main__":
    sys.exit(main(READERS, targets_of))
