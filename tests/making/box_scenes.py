"""The same tiny detection data in every format: noise of odd sizes with painted boxes of three classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image

from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit, SourceFacts

CLASS_NAMES = ("bean", "corn", "pea")  # in alphabetical order, as formats without ids sort them
COCO_IDS = (2, 5, 9)  # 1-based and with gaps


@dataclass(frozen=True)
class Scene:
    """An image and its boxes."""

    stem: str
    height: int
    width: int
    boxes: tuple[tuple[float, float, float, float], ...]
    """Corners in whole pixels."""
    labels: tuple[int, ...]

    @property
    def file_name(self) -> str:
        """Name of the image."""
        return f"{self.stem}.png"


Scenes = Mapping[str, Sequence[Scene]]


def make_scenes(number: int, *, seed: int, prefix: str = "scene") -> list[Scene]:
    """Return scenes with 0, 1, 2, 3, 0, ... boxes."""
    generator = np.random.default_rng(seed)
    scenes = []
    for index in range(number):
        height, width = 31 + 2 * index, 47 - 2 * (index % 5)
        boxes, labels = [], []
        for _ in range(index % 4):
            left, top = int(generator.integers(0, width - 9)), int(generator.integers(0, height - 9))
            right = int(generator.integers(left + 3, width + 1))
            bottom = int(generator.integers(top + 3, height + 1))
            boxes.append((float(left), float(top), float(right), float(bottom)))
            labels.append(int(generator.integers(0, 3)))
        scenes.append(Scene(f"{prefix}{index}", height, width, tuple(boxes), tuple(labels)))
    return scenes


def make_splits(seed: int = 0) -> dict[str, list[Scene]]:
    """Return scenes of train, valid and test, no two alike."""
    numbers = {"train": 8, "valid": 5, "test": 4}
    return {
        split: make_scenes(number, seed=seed + offset, prefix=f"{split}-")
        for offset, (split, number) in enumerate(numbers.items())
    }


def write_images(folder: Path, scenes: Sequence[Scene], *, seed: int = 0) -> None:
    """Write noise with each box painted in the colour of its class."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    for scene in scenes:
        pixels = generator.integers(0, 60, size=(scene.height, scene.width, 3)).astype(np.uint8)
        for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
            pixels[int(top) : int(bottom), int(left) : int(right), label] = 220
        Image.fromarray(pixels).save(folder / scene.file_name)


def coco_content(scenes: Sequence[Scene]) -> dict[str, Any]:
    """Return the JSON of COCO's instances."""
    annotations: list[dict[str, Any]] = []
    for image_id, scene in enumerate(scenes, start=100):
        for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
            box = [left, top, right - left, bottom - top]
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": image_id,
                    "category_id": COCO_IDS[label],
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    return {
        "images": [
            {"id": number, "file_name": scene.file_name, "height": scene.height, "width": scene.width}
            for number, scene in enumerate(scenes, start=100)
        ],
        "annotations": annotations,
        "categories": [{"id": key, "name": name} for key, name in zip(COCO_IDS, CLASS_NAMES, strict=True)],
    }


def write_json(path: Path, content: Any) -> Path:
    """Write JSON, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_coco(root: Path, splits: Scenes) -> Path:
    """Write annotations/instances_train2017.json beside train2017/, as COCO lies."""
    for split, scenes in splits.items():
        name = {"valid": "val"}.get(split, split) + "2017"
        write_images(root / name, scenes)
        write_json(root / "annotations" / f"instances_{name}.json", coco_content(scenes))
    return root


def write_roboflow(root: Path, splits: Scenes) -> Path:
    """Write train/_annotations.coco.json beside the images of train/."""
    for split, scenes in splits.items():
        write_images(root / split, scenes)
        write_json(root / split / "_annotations.coco.json", coco_content(scenes))
    return root


def voc_text(scene: Scene, *, with_size: bool = True) -> str:
    """Return the XML of Pascal VOC."""
    objects = "".join(
        f"<object><name>{escape(CLASS_NAMES[label])}</name><difficult>0</difficult><bndbox>"
        f"<xmin>{box[0]:g}</xmin><ymin>{box[1]:g}</ymin><xmax>{box[2]:g}</xmax><ymax>{box[3]:g}</ymax>"
        "</bndbox></object>"
        for box, label in zip(scene.boxes, scene.labels, strict=True)
    )
    size = f"<size><width>{scene.width}</width><height>{scene.height}</height><depth>3</depth></size>"
    inner = f"<filename>{scene.file_name}</filename>{size if with_size else ''}{objects}"
    return f"<annotation>{inner}</annotation>"


def write_voc(root: Path, splits: Scenes) -> Path:
    """Write Annotations/, JPEGImages/ and the lists in ImageSets/Main/."""
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split, scenes in splits.items():
        write_images(root / "JPEGImages", scenes)
        listed = "".join(f"{scene.stem}\n" for scene in scenes)
        name = {"valid": "val"}.get(split, split)
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text(listed)
        for scene in scenes:
            (root / "Annotations" / f"{scene.stem}.xml").write_text(voc_text(scene))
    return root


def write_flat_voc(folder: Path, scenes: Sequence[Scene]) -> Path:
    """Write XML files beside their images."""
    write_images(folder, scenes)
    for scene in scenes:
        (folder / f"{scene.stem}.xml").write_text(voc_text(scene))
    return folder


def yolo_text(scene: Scene) -> str:
    """Return the lines of a label file."""
    lines = []
    for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
        centre = ((left + right) / 2 / scene.width, (top + bottom) / 2 / scene.height)
        size = ((right - left) / scene.width, (bottom - top) / scene.height)
        lines.append(f"{label} {centre[0]:.9f} {centre[1]:.9f} {size[0]:.9f} {size[1]:.9f}\n")
    return "".join(lines)


def write_yolo_part(images: Path, labels: Path, scenes: Sequence[Scene]) -> None:
    """Write the images and labels of one split."""
    write_images(images, scenes)
    labels.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        (labels / f"{scene.stem}.txt").write_text(yolo_text(scene))


def write_yolo(root: Path, splits: Scenes) -> Path:
    """Write images/train/, labels/train/ and data.yaml."""
    for split, scenes in splits.items():
        write_yolo_part(root / "images" / split, root / "labels" / split, scenes)
    keys = {"valid": "val"}
    lines = [f"{keys.get(split, split)}: images/{split}\n" for split in splits]
    (root / "data.yaml").write_text("".join(lines) + f"nc: 3\nnames: [{', '.join(CLASS_NAMES)}]\n")
    return root


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


def assert_holds(split: BoxSplit, scenes: Sequence[Scene], *, atol: float = 0.0) -> None:
    """Assert that a split has exactly some scenes, by the names of their files."""
    by_stem = {Path(name).stem: index for index, name in enumerate(split.names)}
    assert sorted(by_stem) == sorted(scene.stem for scene in scenes)
    for scene in scenes:
        index = by_stem[scene.stem]
        np.testing.assert_allclose(
            split.boxes[index], np.array(scene.boxes).reshape(-1, 4), rtol=0, atol=atol
        )
        assert split.labels[index].tolist() == list(scene.labels)
        assert split.sizes[index].tolist() == [scene.height, scene.width]
        assert Path(split.images[index]).is_file()
