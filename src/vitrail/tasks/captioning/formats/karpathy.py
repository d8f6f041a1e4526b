"""Karpathy's JSON of Flickr8k, Flickr30k and COCO: images with split and sentences.

Source: Karpathy and Fei-Fei 2015, published splits (dataset_flickr8k.json, dataset_coco.json).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vitrail.core.files import parse_json, read_file
from vitrail.data.file_places import ImageFinder, both_ends, existing, folders_in, looks_like_coco
from vitrail.data.formats import Format, reading_file
from vitrail.data.splits import SPLITS, SplitName, split_named
from vitrail.data.text.lines import decode_text
from vitrail.tasks.captioning.dataset import RawCaptions

PUBLISHED = re.compile(r"^dataset_(flickr8k|flickr30k|coco)\.json$")


def read(path: Path) -> RawCaptions:
    """Read the file; ``DataError`` if it is damaged, or none of its images is there."""
    file = _file_of(path)
    assert file is not None, "only what is recognised is read"
    root = path if path.is_dir() else file.parent
    by_split = _read_file(file)
    folders = [root, root / "images", root / "Images", *folders_in(root)[:20], root.parent]
    finder = ImageFinder(existing([*folders, *(folder / folder.name for folder in folders)]))
    raw = RawCaptions()
    for split, captions in by_split.items():
        raw.add_files(split, captions, finder, root, where=file)
    return raw.finish([finder], root, where=file)


def _read_file(file: Path) -> dict[SplitName, dict[str, list[Any]]]:
    found: dict[SplitName, dict[str, list[Any]]] = {}
    expected = 'a JSON object with the list "images", each with filename, split and sentences'
    with reading_file(file, expected=expected):
        for image in parse_json(decode_text(read_file(file)))["images"]:
            name = "/".join(filter(None, (image.get("filepath"), image["filename"])))
            split = split_named(image.get("split", "train"), f"{name} in {file}")
            texts = [_text(sentence) for sentence in image["sentences"]]
            found.setdefault(split, {}).setdefault(name, []).extend(texts)
    return {split: found[split] for split in SPLITS if split in found}


def _text(sentence: Any) -> str:
    raw = sentence.get("raw")
    return raw if isinstance(raw, str) else " ".join(sentence.get("tokens", ()))


def _file_of(path: Path) -> Path | None:
    if path.is_file():
        return path if path.suffix.lower() == ".json" and _is_meant(path) else None
    if not path.is_dir():
        return None
    files = [file for file in sorted(path.glob("*.json"))[:20] if not file.name.startswith(".")]
    return next(filter(_is_meant, files), None)


def _is_meant(file: Path) -> bool:
    """Return whether a file is in this format, by its content or published name, even if damaged."""
    ends = both_ends(file)
    holds_sentences = b'"sentids"' in ends or (b'"sentences"' in ends and b'"filename"' in ends)
    is_published = PUBLISHED.match(file.name) is not None and not looks_like_coco(file)
    return (b'"images"' in ends and holds_sentences) or is_published


FORMAT = Format(
    name="Karpathy's captions",
    layout="Karpathy's JSON: dataset_flickr8k.json with images that have filename, split and sentences, "
    "beside the images",
    recognises=lambda path: _file_of(path) is not None,
    read=read,
    rank=8,
)
