"""Small data sets of captioned images in every layout that is read: coloured squares on grey."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image, ImageDraw

from making.image_folders import encode

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 230)}
SIDES = ("left", "right")


def draw_square(number: int) -> tuple[Image.Image, list[str]]:
    """Return an image of 24x24 pixels with a square, and three captions of it."""
    colour = list(COLOURS)[number % 3]
    side = SIDES[number // 3 % 2]
    picture = Image.new("RGB", (24, 24), (120 + number % 60, 125, 130))
    left = 2 if side == "left" else 12
    ImageDraw.Draw(picture).rectangle((left, 6, left + 9, 16), fill=COLOURS[colour])
    return picture, [
        f"A {colour} square on the {side} .",
        f"a {colour} box at the {side}",
        f"The {side} side shows a {colour} square",
    ]


def write_squares(folder: Path, count: int, *, first: int = 0) -> dict[str, list[str]]:
    """Write images into a folder, and return their captions by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    captions = {}
    for number in range(first, first + count):
        picture, texts = draw_square(number)
        picture.save(folder / f"{number:03d}.png")
        captions[f"{number:03d}.png"] = texts
    return captions


def write_csv(folder: Path, count: int = 12) -> Path:
    """Write ``captions.csv`` beside ``Images/``, a row for each caption, as Kaggle's Flickr8k has it."""
    captions = write_squares(folder / "Images", count)
    rows = [f'{name},"{text}"' for name, texts in captions.items() for text in texts]
    (folder / "captions.txt").write_text("image,caption\n" + "\n".join(rows) + "\n")
    return folder


def write_flickr(folder: Path) -> Path:
    """Write the published layout of Flickr8k: six images to train on, two to validate and three to test."""
    captions = write_squares(folder / "Flicker8k_Dataset", 12)
    text = folder / "Flickr8k_text"
    text.mkdir()
    lines = [f"{name}#{i}\t{line}" for name, texts in captions.items() for i, line in enumerate(texts)]
    (text / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    names = list(captions)
    parts = {"trainImages": names[:6], "devImages": names[6:8], "testImages": names[8:11]}
    for name, part in parts.items():
        (text / f"Flickr_8k.{name}.txt").write_text("\n".join(part) + "\n")
    return folder


def write_coco(folder: Path) -> Path:
    """Write ``annotations/captions_train2017.json`` and that of validation, beside the folders of images."""
    for split, first, count in (("train2017", 0, 6), ("val2017", 6, 3)):
        captions = write_squares(folder / split, count, first=first)
        content = {
            "info": {},
            "images": [
                {"id": first + i, "file_name": name, "height": 24, "width": 24}
                for i, name in enumerate(captions)
            ],
            "annotations": [
                {"id": 10 * i + k, "image_id": first + i, "caption": text}
                for i, texts in enumerate(captions.values())
                for k, text in enumerate(texts)
            ],
        }
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / "annotations" / f"captions_{split}.json").write_text(json.dumps(content))
    return folder


def write_karpathy(folder: Path) -> Path:
    """Write ``dataset_squares.json``: five images to train on, one of them by another name, and two each."""
    captions = write_squares(folder / "imgs", 9)
    splits = ["train"] * 4 + ["restval"] + ["val"] * 2 + ["test"] * 2
    images = [
        {"filename": name, "split": split, "imgid": i, "sentences": [{"raw": text, "tokens": text.split()}]}
        for i, ((name, (text, *_)), split) in enumerate(zip(captions.items(), splits, strict=True))
    ]
    (folder / "dataset_squares.json").write_text(json.dumps({"images": images, "dataset": "squares"}))
    return folder


def write_json_lines(folder: Path) -> Path:
    """Write ``metadata.jsonl`` in the folders of two splits, as the hub's folders of images have it."""
    for split, first, count in (("train", 0, 5), ("test", 5, 2)):
        captions = write_squares(folder / split, count, first=first)
        rows = [json.dumps({"file_name": name, "text": texts[0]}) for name, texts in captions.items()]
        (folder / split / "metadata.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def write_parquet(folder: Path, *, train: int = 12, validation: int = 4) -> Path:
    """Write parquet files with the bytes of images and lists of captions."""

    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for split, first, count in (("train", 0, train), ("validation", train, validation)):
        rows = []
        for number in range(first, first + count):
            picture, texts = draw_square(number)
            image = {"bytes": encode(picture), "path": f"{number:03d}.png"}
            rows.append({"image": image, "captions": texts})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
    return folder
