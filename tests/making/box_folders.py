"""Small detection data sets of coloured rectangles, in three formats; tests plant faults into them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image

CLASS_COLOURS = {"blue": (30, 60, 230), "green": (20, 190, 40), "red": (230, 40, 30)}
NAMES = tuple(CLASS_COLOURS)
HEIGHT, WIDTH = 61, 97
# The stored pixels of each Exif orientation, as Pillow calls the way there from upright ones.
STORED = {
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}


@dataclass
class Scene:
    """One image of rectangles and what its annotation says; tests change it to plant a fault."""

    name: str
    split: str
    pixels: np.ndarray
    boxes: list[list[float]]
    labels: list[int]
    claimed: tuple[int, int] | None = None
    orientation: int = 1
    stored: bytes | None = None

    @property
    def size(self) -> tuple[int, int]:
        return self.claimed or self.pixels.shape[:2]

    def write_image(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.stored is not None:
            path.write_bytes(self.stored)
            return
        image, exif = Image.fromarray(self.pixels), Image.Exif()
        if self.orientation != 1:
            image, exif[0x0112] = image.transpose(STORED[self.orientation]), self.orientation
        # Of a JPEG file, colours at their full size: they must not run over the edges of small rectangles.
        image.save(path, exif=exif, **({"quality": 95, "subsampling": 0} if path.suffix == ".jpg" else {}))


def make_scenes(*, train: int = 12, validation: int = 4, test: int = 4, seed: int = 0) -> list[Scene]:
    """Draw one rectangle of each class on noise, at a random place of its third of the image."""
    generator = np.random.default_rng(seed)
    scenes = []
    for split, count in (("train", train), ("validation", validation), ("test", test)):
        for number in range(count):
            pixels = generator.integers(90, 130, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
            boxes = []
            for label, name in enumerate(NAMES):
                width, height = generator.integers(11, 23, size=2).tolist()
                left = 33 * label + int(generator.integers(0, 33 - width - 2))
                top = int(generator.integers(2, HEIGHT - height - 2))
                pixels[top : top + height, left : left + width] = CLASS_COLOURS[name]
                boxes.append([left, top, left + width, top + height])
            scenes.append(Scene(f"{split}-{number}.png", split, pixels, boxes, [0, 1, 2]))
    return scenes


def write_coco(
    root: Path,
    scenes: list[Scene],
    *,
    to_numbers: Callable[[list[float], tuple[int, int]], list[float]] | None = None,
    ids: tuple[int, ...] = (1, 2, 3),
    used_ids: tuple[int, ...] | None = None,
    absent: tuple[str, ...] = (),
) -> Path:
    """Write ``annotations/instances_train.json`` beside ``train/`` and so on.

    Args:
        root: the folder.
        scenes: what to write.
        to_numbers: what stands in the file for corners and a height and width; xywh by default.
        ids: what the categories are called.
        used_ids: what annotations call them.
        absent: names of images that the annotations list and that are not written.
    """
    convert = to_numbers or (lambda box, _: [box[0], box[1], box[2] - box[0], box[3] - box[1]])
    for split, folder in (("train", "train"), ("validation", "val"), ("test", "test")):
        images, annotations = [], []
        for scene in (scene for scene in scenes if scene.split == split):
            height, width = scene.size
            images.append({"id": len(images) + 7, "file_name": scene.name, "height": height, "width": width})
            if scene.name not in absent:
                scene.write_image(root / folder / scene.name)
            annotations += [
                {
                    "id": len(annotations) + index,
                    "image_id": images[-1]["id"],
                    "category_id": (used_ids or ids)[label],
                    "bbox": convert(box, scene.size),
                    "iscrowd": 0,
                }
                for index, (box, label) in enumerate(zip(scene.boxes, scene.labels, strict=True))
            ]
        if images:
            categories = [{"id": id_, "name": name} for id_, name in zip(ids, NAMES, strict=True)]
            tree = {"images": images, "annotations": annotations, "categories": categories}
            path = root / "annotations" / f"instances_{folder}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(tree))
    return root


def write_voc(
    root: Path,
    scenes: list[Scene],
    *,
    to_numbers: Callable[[list[float], tuple[int, int]], list[float]] | None = None,
    absent: tuple[str, ...] = (),
) -> Path:
    """Write ``JPEGImages``, ``Annotations`` and ``ImageSets/Main``; arguments are those of ``write_coco``."""
    convert = to_numbers or (lambda box, _: box)
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    listed: dict[str, list[str]] = {}
    for scene in scenes:
        stem, (height, width) = Path(scene.name).stem, scene.size
        listed.setdefault(scene.split, []).append(stem)
        if scene.name not in absent:
            scene.write_image(root / "JPEGImages" / scene.name)
        objects = "".join(
            f"<object><name>{escape(NAMES[label])}</name><bndbox>"
            + "".join(
                f"<{key}>{number}</{key}>"
                for key, number in zip(
                    ("xmin", "ymin", "xmax", "ymax"), convert(box, scene.size), strict=True
                )
            )
            + "</bndbox></object>"
            for box, label in zip(scene.boxes, scene.labels, strict=True)
        )
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        (root / "Annotations" / f"{stem}.xml").write_text(
            f"<annotation><filename>{scene.name}</filename>{size}{objects}</annotation>"
        )
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        if split in listed:
            (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(listed[split]) + "\n")
    return root


def write_yolo(
    root: Path,
    scenes: list[Scene],
    *,
    to_numbers: Callable[[list[float], tuple[int, int]], list[float]] | None = None,
    used_ids: tuple[int, ...] = (0, 1, 2),
    names: str = "[blue, green, red]",
    absent: tuple[str, ...] = (),
    without_labels: tuple[str, ...] = (),
) -> Path:
    """Write ``images/train``, ``labels/train`` and ``data.yaml``; arguments are those of ``write_coco``.

    Args:
        names: what ``data.yaml`` says of the classes.
        without_labels: names of images without a file of labels.
    """
    convert = to_numbers or cxcywh_shares
    lines = [f"names: {names}"]
    for split, folder in (("train", "train"), ("validation", "val"), ("test", "test")):
        members = [scene for scene in scenes if scene.split == split]
        if members:
            lines.append(f"{folder}: images/{folder}")
            (root / "labels" / folder).mkdir(parents=True)
        for scene in members:
            if scene.name not in absent:
                scene.write_image(root / "images" / folder / scene.name)
            if scene.name in without_labels:
                continue
            rows = [
                " ".join(map(str, (used_ids[label], *convert(box, scene.size))))
                for box, label in zip(scene.boxes, scene.labels, strict=True)
            ]
            path = root / "labels" / folder / f"{Path(scene.name).stem}.txt"
            path.write_text("".join(f"{row}\n" for row in rows))
    (root / "data.yaml").write_text("\n".join(lines) + "\n")
    return root


def cxcywh_shares(box: list[float], size: tuple[int, int]) -> list[float]:
    """Return centre, width and height as shares, as YOLO stores them."""
    (left, top, right, bottom), (height, width) = box, size
    return [
        (left + right) / 2 / width,
        (top + bottom) / 2 / height,
        (right - left) / width,
        (bottom - top) / height,
    ]


WRITERS = {"coco": write_coco, "voc": write_voc, "yolo": write_yolo}
