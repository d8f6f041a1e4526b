"""Small detection data sets of rectangles, in the layouts that tools write; tests plant faults into them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image

from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit, RawBoxes, SourceFacts

CLASS_COLOURS = {"blue": (30, 60, 230), "green": (20, 190, 40), "red": (230, 40, 30)}
NAMES = tuple(CLASS_COLOURS)  # in alphabetical order, as formats without ids sort them
HEIGHT, WIDTH = 61, 97
FOLDERS = {"train": "train", "validation": "val", "test": "test"}
# The stored pixels of each Exif orientation, as Pillow calls the way there from upright ones.
STORED = {
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}

Convert = Callable[[list[float], tuple[int, int]], list[float]]
"""Returns what is stored for the corners of a box, given the height and width of its image."""


@dataclass
class Scene:
    """One image of rectangles and what its annotation says; tests change it to plant a fault."""

    name: str
    split: str
    pixels: np.ndarray
    boxes: list[list[float]]
    """Corners in pixels."""
    labels: list[int]
    claimed: tuple[int, int] | None = None
    orientation: int = 1
    stored: bytes | None = None

    @property
    def stem(self) -> str:
        return Path(self.name).stem

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


def varied_scenes(number: int, *, seed: int, prefix: str = "scene", split: str = "train") -> list[Scene]:
    """Return scenes of several sizes, with 0, 1, 2, 3, 0, ... boxes, bright in the channel of their class."""
    generator = np.random.default_rng(seed)
    scenes = []
    for index in range(number):
        height, width = 31 + 2 * index, 47 - 2 * (index % 5)
        pixels = np.random.default_rng(index).integers(0, 60, size=(height, width, 3)).astype(np.uint8)
        boxes, labels = [], []
        for _ in range(index % 4):
            left, top = int(generator.integers(0, width - 9)), int(generator.integers(0, height - 9))
            right = int(generator.integers(left + 3, width + 1))
            bottom = int(generator.integers(top + 3, height + 1))
            label = int(generator.integers(0, 3))
            pixels[top:bottom, left:right, label] = 220
            boxes.append([float(left), float(top), float(right), float(bottom)])
            labels.append(label)
        scenes.append(Scene(f"{prefix}{index}.png", split, pixels, boxes, labels))
    return scenes


def varied_splits() -> list[Scene]:
    """Return varied scenes of all splits, no two alike: 8 to train on, 5 to validate and 4 to test."""
    return [
        *varied_scenes(8, seed=0, prefix="train-"),
        *varied_scenes(5, seed=1, prefix="val-", split="validation"),
        *varied_scenes(4, seed=2, prefix="test-", split="test"),
    ]


def of_split(scenes: Sequence[Scene], split: str) -> list[Scene]:
    return [scene for scene in scenes if scene.split == split]


def write_images(folder: Path, scenes: Sequence[Scene], *, absent: Sequence[str] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        if scene.name not in absent:
            scene.write_image(folder / scene.name)


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_json(path: Path, content: Any) -> Path:
    return write_text(path, json.dumps(content))


def as_corners(box: list[float], _: tuple[int, int]) -> list[float]:
    return box


def as_xywh(box: list[float], _: tuple[int, int]) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def as_centre(box: list[float], _: tuple[int, int]) -> list[float]:
    return [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2, box[2] - box[0], box[3] - box[1]]


def in_shares(convert: Convert) -> Convert:
    def converted(box: list[float], size: tuple[int, int]) -> list[float]:
        return [n / side for n, side in zip(convert(box, size), (*size[::-1], *size[::-1]), strict=True)]

    return converted


cxcywh_shares = in_shares(as_centre)


def coco_content(
    scenes: Sequence[Scene],
    *,
    to_numbers: Convert = as_xywh,
    ids: Sequence[int] = (1, 2, 3),
    used_ids: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the JSON of COCO's instances.

    Args:
        ids: of the categories.
        used_ids: what annotations call them.
    """
    images, annotations = [], []
    for image_id, scene in enumerate(scenes, start=100):
        height, width = scene.size
        images.append({"id": image_id, "file_name": scene.name, "height": height, "width": width})
        for box, label in zip(scene.boxes, scene.labels, strict=True):
            entry = {"id": len(annotations), "image_id": image_id, "category_id": (used_ids or ids)[label]}
            annotations.append(entry | {"bbox": to_numbers(box, scene.size), "iscrowd": 0})
    categories = [{"id": id_, "name": name} for id_, name in zip(ids, NAMES, strict=True)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_coco(
    root: Path, scenes: Sequence[Scene], *, absent: Sequence[str] = (), year: str = "", **content: Any
) -> Path:
    """Write ``annotations/instances_train.json`` beside ``train/`` and so on.

    Args:
        absent: names of images that the annotations list and that are not written.
        year: follows the names of splits, as in COCO itself.
        content: arguments of ``coco_content``.
    """
    for split, folder in FOLDERS.items():
        if members := of_split(scenes, split):
            write_images(root / f"{folder}{year}", members, absent=absent)
            path = root / "annotations" / f"instances_{folder}{year}.json"
            write_json(path, coco_content(members, **content))
    return root


def write_roboflow(root: Path, scenes: Sequence[Scene], **content: Any) -> Path:
    """Write ``train/_annotations.coco.json`` beside the images of ``train/`` and so on."""
    for split in dict.fromkeys(scene.split for scene in scenes):
        folder, members = root / split.replace("validation", "valid"), of_split(scenes, split)
        write_images(folder, members)
        write_json(folder / "_annotations.coco.json", coco_content(members, **content))
    return root


def voc_text(scene: Scene, *, to_numbers: Convert = as_corners, with_size: bool = True) -> str:
    """Return the XML of Pascal VOC."""
    objects = ""
    for box, label in zip(scene.boxes, scene.labels, strict=True):
        pairs = zip(("xmin", "ymin", "xmax", "ymax"), to_numbers(box, scene.size), strict=True)
        corners = "".join(f"<{key}>{number:g}</{key}>" for key, number in pairs)
        name = f"<name>{escape(NAMES[label])}</name>"
        objects += f"<object>{name}<difficult>0</difficult><bndbox>{corners}</bndbox></object>"
    height, width = scene.size
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    inner = f"<filename>{scene.name}</filename>{size if with_size else ''}{objects}"
    return f"<annotation>{inner}</annotation>"


def write_voc(
    root: Path, scenes: Sequence[Scene], *, absent: Sequence[str] = (), to_numbers: Convert = as_corners
) -> Path:
    """Write ``JPEGImages``, ``Annotations`` and ``ImageSets/Main``."""
    write_images(root / "JPEGImages", scenes, absent=absent)
    for scene in scenes:
        write_text(root / "Annotations" / f"{scene.stem}.xml", voc_text(scene, to_numbers=to_numbers))
    for split in dict.fromkeys(scene.split for scene in scenes):
        listed = "".join(f"{scene.stem}\n" for scene in of_split(scenes, split))
        write_text(root / "ImageSets" / "Main" / f"{FOLDERS[split]}.txt", listed)
    return root


def write_flat_voc(folder: Path, scenes: Sequence[Scene]) -> Path:
    """Write XML files beside their images."""
    write_images(folder, scenes)
    for scene in scenes:
        write_text(folder / f"{scene.stem}.xml", voc_text(scene))
    return folder


def yolo_text(
    scene: Scene, *, to_numbers: Convert = cxcywh_shares, used_ids: Sequence[int] = (0, 1, 2)
) -> str:
    """Return the lines of a label file."""
    rows = zip(scene.labels, scene.boxes, strict=True)
    return "".join(
        " ".join(map(str, (used_ids[label], *to_numbers(box, scene.size)))) + "\n" for label, box in rows
    )


def write_yolo_part(images: Path, labels: Path, scenes: Sequence[Scene], **text: Any) -> None:
    """Write the images and labels of one split."""
    write_images(images, scenes)
    for scene in scenes:
        write_text(labels / f"{scene.stem}.txt", yolo_text(scene, **text))


def write_yolo(
    root: Path,
    scenes: Sequence[Scene],
    *,
    names: str = "[blue, green, red]",
    absent: Sequence[str] = (),
    without_labels: Sequence[str] = (),
    **text: Any,
) -> Path:
    """Write ``images/train``, ``labels/train`` and ``data.yaml``.

    Args:
        names: what ``data.yaml`` says of the classes.
        absent: names of images that are not written.
        without_labels: names of images without a file of labels.
        text: arguments of ``yolo_text``.
    """
    lines = [f"names: {names}\n"]
    for split in dict.fromkeys(scene.split for scene in scenes):
        folder = FOLDERS[split]
        lines.append(f"{folder}: images/{folder}\n")
        write_images(root / "images" / folder, of_split(scenes, split), absent=absent)
        for scene in of_split(scenes, split):
            if scene.name not in without_labels:
                write_text(root / "labels" / folder / f"{scene.stem}.txt", yolo_text(scene, **text))
    write_text(root / "data.yaml", "".join(lines))
    return root


WRITERS = {"coco": write_coco, "voc": write_voc, "yolo": write_yolo}


def boxes_in_memory(
    train: BoxSplit,
    *,
    validation: BoxSplit | None = None,
    test: BoxSplit | None = None,
    class_names: tuple[str, ...] = ("x",),
    facts: SourceFacts | None = None,
) -> BoxDataset:
    """Return a data set that was never in a file; splits that are not given are empty."""
    return BoxDataset(
        source="s",
        format="memory",
        class_names=class_names,
        class_ids=tuple(range(len(class_names))),
        train=train,
        validation=train.take([]) if validation is None else validation,
        test=train.take([]) if test is None else test,
        facts=facts or SourceFacts(),
    )


def assert_holds(data: RawBoxes | BoxDataset, scenes: Sequence[Scene], *, atol: float = 0.0) -> None:
    """Assert that a source has exactly some scenes in their splits."""
    assert data.class_names == NAMES
    assert set(data.splits) == {scene.split for scene in scenes}
    for name, split in data.splits.items():
        assert_split_holds(split, of_split(scenes, name), atol=atol)


def assert_split_holds(split: BoxSplit, scenes: Sequence[Scene], *, atol: float = 0.0) -> None:
    """Assert that a split has exactly some scenes, by the names of their files."""
    by_stem = {Path(name).stem: index for index, name in enumerate(split.names)}
    assert sorted(by_stem) == sorted(scene.stem for scene in scenes)
    for scene in scenes:
        index = by_stem[scene.stem]
        expected = np.array(scene.boxes).reshape(-1, 4)
        np.testing.assert_allclose(split.boxes[index], expected, rtol=0, atol=atol)
        assert split.labels[index].tolist() == scene.labels
        assert split.sizes[index].tolist() == list(scene.size)
        assert Path(split.images[index]).is_file()
