"""COCO captions: ``annotations/captions_train2017.json`` beside ``train2017/``, or one such file.

The format: https://cocodataset.org/#format-data, section 5: each annotation has a caption and an
``image_id``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.core.files import parse_json, read_file
from vitrail.data.file_places import ImageFinder, both_ends, existing, folders_in, nested
from vitrail.data.formats import Format, reading_file
from vitrail.data.splits import split_of
from vitrail.data.text.lines import decode_text
from vitrail.tasks.captioning.dataset import TEXTS, RawCaptions

LISTS = '"images" (id, file_name) and "annotations" (image_id, caption)'
PREFIX = "captions"  # of COCO's own files; instances_ and person_keypoints_ lie beside them


def recognises(path: Path) -> bool:
    """Accept a file of captions, or a folder with such files and no bounding boxes."""
    if path.is_file():
        return path.suffix.lower() == ".json" and _holds_captions(path)
    return path.is_dir() and any(_candidates(root) for root in nested(path))


def read(path: Path) -> RawCaptions:
    """Read a file, or those of the splits in a folder.

    Raises:
        DataError: a file is damaged or lacks what it needs, or none of its images is there.
    """
    files = [path] if path.is_file() else next(filter(None, map(_candidates, nested(path))))
    root = files[0].parent.parent if files[0].parent.name.lower() == "annotations" else files[0].parent
    raw = RawCaptions()
    finders: list[ImageFinder] = []
    unread: list[str] = []
    for file in files:
        split = split_of(file.stem) or ("train" if len(files) == 1 else None)
        if split is None or split in raw.splits:
            unread.append(file.name)
            continue
        finders.append(ImageFinder(_image_folders(root, file)))
        raw.add_files(split, _read_file(file, raw), finders[-1], root, where=file)
    raw.findings += TEXTS.listed("unread-file", unread)
    return raw.finish(finders, root, where=path)


def _read_file(file: Path, raw: RawCaptions) -> dict[str, list[Any]]:
    """Return the captions of a file by image name; may be empty."""
    with reading_file(file, expected=f"a JSON object with the lists {LISTS}, as COCO has it"):
        content = parse_json(decode_text(read_file(file)))
        images, annotations = content["images"], content["annotations"]
        names = {image["id"]: str(image["file_name"]) for image in images}
        captions: dict[str, list[Any]] = {name: [] for name in names.values()}
        unknown: dict[str, None] = {}
        for annotation in annotations:
            number = annotation["image_id"]
            if number in names:
                captions[names[number]].append(annotation.get("caption"))
            else:
                unknown[f"{file.name}: image_id {number}"] = None
    raw.without_image += unknown
    return captions


def _image_folders(root: Path, file: Path) -> list[Path]:
    name, split = file.stem.removeprefix(f"{PREFIX}_"), split_of(file.stem)
    beside = [root / name, root / "images" / name, file.parent, file.parent / "images", root / "images", root]
    return existing([*beside, *(folder for folder in folders_in(root) if split_of(folder.name) == split)])


def _candidates(root: Path) -> list[Path]:
    """Return the caption files of a folder; none if files of bounding boxes lie beside them."""
    for folder in existing([root, root / "annotations", root / "Annotations"]):
        files = [file for file in sorted(folder.glob("*.json")) if not file.name.startswith(".")]
        if any(file.name.startswith("instances_") for file in files):
            return []
        named = [file for file in files if file.name.startswith(PREFIX) and _holds_captions(file)]
        if not named and len(files) == 1 and _holds_captions(files[0]):
            named = files
        if named:
            return named
    return []


def _holds_captions(file: Path) -> bool:
    """Return whether the annotations are captions, judged by both ends of the file."""
    ends = both_ends(file)
    has_entries = b'"image_id"' in ends and b'"caption"' in ends
    is_named = file.name.startswith(PREFIX) and (b'"images"' in ends or b'"annotations"' in ends)
    return (has_entries or is_named) and b'"bbox"' not in ends


FORMAT = Format(
    name="COCO captions",
    layout="COCO JSON: a .json file with images and annotations that have captions, alone beside its images "
    "or as annotations/captions_train2017.json beside train2017/",
    recognises=recognises,
    read=read,
    rank=10,
)
