"""Miniatures of published data sets, laid out like the real ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR_NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905
WNIDS = [f"n{10_000_000 + 7 * number}" for number in range(1000)]
PETS = ("Abyssinian", "american_bulldog", "Bombay")


def colour_image(path: Path, label: int, seed: int, *, size: tuple[int, int] = (13, 11)) -> None:
    """Write a small JPEG or PNG whose colour tells its label."""
    generator = np.random.default_rng(1000 * label + seed)
    colour = np.random.default_rng(label).integers(30, 225, size=3)
    pixels = np.clip(colour + generator.integers(-20, 21, size=(*size, 3)), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def python2_batch(pixels: np.ndarray, labels: list[int], *, label_key: str = "labels") -> bytes:
    """Return a batch as Python 2 pickled CIFAR's: texts of bytes, an array by its constructor."""
    rows = b"".join(b"K" + bytes([label]) for label in labels)
    shape = b"M" + struct.pack("<H", pixels.shape[0]) + b"M" + struct.pack("<H", pixels.shape[1]) + b"\x86"
    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09(K\x01"
        + shape
        + b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        + b"K\x00tb\x89T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tb"
    )
    key = b"U" + bytes([len(label_key)]) + label_key.encode()
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x05a setq\x03"
        + key
        + b"]q\x05("
        + rows
        + b"eU\x04data"
        + (array + b"u.")
    )


def python2_names(key: str, names: list[str]) -> bytes:
    """Return the names of classes as Python 2 pickled CIFAR's."""
    entries = b"".join(b"U" + bytes([len(name)]) + name.encode() for name in names)
    return b"\x80\x02}q\x01U" + bytes([len(key)]) + key.encode() + b"]q\x02(" + entries + b"es."


def cifar_pixels(labels: list[int], seed: int) -> np.ndarray:
    """Return rows of red, green and blue planes."""
    generator = np.random.default_rng(seed)
    colours = np.stack([np.random.default_rng(label).integers(30, 225, size=3) for label in labels])
    noise = generator.integers(-20, 21, size=(len(labels), 3, 1024))
    return np.clip(colours[..., None] + noise, 0, 255).astype(np.uint8).reshape(len(labels), 3072)


def write_cifar10(root: Path, *, binary: bool = False) -> Path:
    """Write five batches of four images and a test of three, as pickles or in the binary version."""
    root.mkdir(parents=True)
    stems = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for place, stem in enumerate(stems):
        labels = [(4 * place + i) % 10 for i in range(4)] if place < 5 else [3, 9, 0]
        pixels = cifar_pixels(labels, place)
        if binary:
            rows = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
            (root / f"{stem}.bin").write_bytes(rows.tobytes())
        else:
            (root / stem).write_bytes(python2_batch(pixels, labels))
    if binary:
        (root / "batches.meta.txt").write_text("\n".join(CIFAR_NAMES) + "\n\n")
    else:
        (root / "batches.meta").write_bytes(python2_names("label_names", CIFAR_NAMES))
    return root


def write_pets(root: Path, *, per_breed: int = 4) -> Path:
    """Write images, and lists that name the first ones for training and the others for the test."""
    lists: dict[str, list[str]] = {"trainval": [], "test": []}
    for breed, name in enumerate(PETS, start=1):
        for number in range(1, per_breed + 1):
            image = f"{name}_{number}"
            colour_image(root / "images" / f"{image}.jpg", breed, number)
            lists["trainval" if number > per_breed // 3 else "test"].append(f"{image} {breed} 1 {breed}")
    (root / "annotations").mkdir()
    for name, lines in lists.items():
        (root / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return root


def write_flowers(root: Path) -> Path:
    """Write twelve images of three classes, four of them in each set."""
    from scipy.io import savemat

    labels = np.array([1, 2, 102] * 4)
    for number, label in enumerate(labels, start=1):
        colour_image(root / "jpg" / f"image_{number:05d}.jpg", int(label), number)
    savemat(root / "imagelabels.mat", {"labels": labels[None].astype(np.uint8)})
    sets = {"trnid": [1, 2, 3, 4], "valid": [5, 6, 7, 8], "tstid": [12, 11, 10, 9]}
    savemat(root / "setid.mat", {name: np.array([numbers], np.uint16) for name, numbers in sets.items()})
    return root


def write_imagenet(root: Path, labels: dict[int, int], *, truth: str = "kaggle") -> Path:
    """Write validation images that are flat, and what tells their classes.

    Args:
        root: a new folder.
        labels: the class of each image, by its number.
        truth: kaggle, synsets or devkit.
    """
    place = root / "ILSVRC/Data/CLS-LOC/val" if truth == "kaggle" else root / "val"
    for number, label in labels.items():
        colour_image(place / f"ILSVRC2012_val_{number:08d}.JPEG", label, number)
    of_all = [WNIDS[labels.get(number, 5)] for number in range(1, max(labels) + 1)]
    if truth == "kaggle":
        rows = [f"ILSVRC2012_val_{i:08d},{wnid} 1 2 30 40" for i, wnid in enumerate(of_all, start=1)]
        (root / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "\n".join(rows) + "\n")
        (root / "LOC_synset_mapping.txt").write_text("".join(f"{wnid} thing\n" for wnid in WNIDS))
    elif truth == "synsets":
        (root / "imagenet_2012_validation_synset_labels.txt").write_text("\n".join(of_all) + "\n")
    else:
        write_devkit(root / "ILSVRC2012_devkit_t12/data", of_all)
    return root


def write_devkit(folder: Path, wnids: list[str]) -> None:
    """Write the devkit's numbers, which follow another order than the wnids, and the table of both."""
    from scipy.io import savemat

    folder.mkdir(parents=True)
    ids = {wnid: 1 + (331 * place) % 1000 for place, wnid in enumerate(WNIDS)}
    synsets = np.zeros((1000, 1), dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("words", object)])
    for wnid, number in ids.items():
        synsets[number - 1, 0] = (number, wnid, "thing")
    savemat(folder / "meta.mat", {"synsets": synsets})
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text(
        "".join(f"{ids[wnid]}\n" for wnid in wnids)
    )


def write_real(path: Path, labels: dict[int, list[int]]) -> Path:
    """Write a file of ReaL in which few images have labels, by number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([labels.get(number, []) for number in range(1, 50_001)]))
    return path


def write_vtab_task(folder: Path, *, num_classes: int = 3) -> Path:
    """Write a task of twelve images to learn from, six to choose on and six to test."""
    for name, count in (("train800", 12), ("val200", 6), ("test", 6)):
        lines = []
        for number in range(count):
            label = number % num_classes
            image = f"images/{name}/{number:03d}.png"
            colour_image(folder / image, label, number + 100 * count)
            lines.append(f"{image} {label}")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    whole = (folder / "train800.txt").read_text() + (folder / "val200.txt").read_text()
    (folder / "train800val200.txt").write_text(whole)
    return folder
