"""Record what the command line computes on small data, to prove that a change of the code changed no number.

    python benchmarks/unchanged.py record before --source path/to/old/checkout
    python benchmarks/unchanged.py record after --source .
    python benchmarks/unchanged.py compare before after

Recording makes images, boxes, sentence pairs and captions, runs the commands of ``unchanged.txt`` on one
thread, each in a folder of its own, and keeps what they print and write: nine minutes of one core. It uses
only the command line and the predictors that ``import vitrail`` offers, so modules may move. Comparing
reads, file by file:

- numbers of JSON: losses, scores, predictions, counts; in order, whatever the keys, without times and memory
- lines of CSV and text files: labels, captions, translations; without the header
- arrays: weights, attention and relevance in float32, maps in pages; whatever their names and shapes
- words and pictures: printed text, pages, plots; differences are listed, and do not fail

The exit code is 1 where numbers, lines or arrays differ. ``--allow`` takes patterns of items that may differ,
such as ``'*/page.html:arrays'``.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unchanged_recording import record

LEFT_OUT = r"data/|cache/|.*(checkpoints/|environment\.json|model\.onnx)"
CHANGING_KEYS = r"(_s|_ms|_mib|seconds|elapsed)$|_per_s|(^|_)(time|date|memory)(_|$)"
CHANGING_WORDS = r"\d{4}-\d\d-\d\d[ T\d:.]*|[\d.]+ ?(s|ms|min|MiB|times|\w+/s)\b|(/[\w.@-]+)+/"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording, comparing = commands.add_parser("record"), commands.add_parser("compare")
    recording.add_argument("output", type=Path)
    recording.add_argument("--source", type=Path, required=True, help="a checkout of the library")
    recording.add_argument("--only", default="*", help="a pattern of names; runs that they use must be there")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--only", default="*", help="a pattern of names")
    comparing.add_argument("--tolerance", type=float, default=0.0, help="largest difference of arrays")
    comparing.add_argument("--allow", nargs="*", default=[], help="patterns of items that may differ")
    comparing.add_argument("--all", dest="show_all", action="store_true", help="show what is equal, too")
    arguments = vars(parser.parse_args())
    return {"record": record, "compare": compare}[arguments.pop("command")](**arguments)


def compare(before: Path, after: Path, only: str, tolerance: float, allow: list[str], show_all: bool) -> int:
    """Print how two recordings differ; return 1 if anything differs that may not."""
    one, other = read(before, only), read(after, only)
    tally = Counter()
    for item in sorted(one.keys() | other.keys()):
        if item in one and item in other:
            result = difference(one[item], other[item], tolerance if item.endswith(":arrays") else 0.0)
        else:
            result = f"missing {'after' if item in one else 'before'}"
        may = item.endswith((":words", ":pictures")) or any(fnmatch(item, pattern) for pattern in allow)
        kind = "equal" if result.startswith("equal") else "differs, as it may" if may else "DIFFERS"
        tally[kind] += 1
        if show_all or kind != "equal":
            print(f"{kind:20}{item}: {result}")
    print(", ".join(f"{count} {kind}" for kind, count in tally.items()))
    return int(bool(tally["DIFFERS"]))


def read(folder: Path, only: str) -> dict[str, Any]:
    """Return what the files hold, by file and kind."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and fnmatch(name.split("/")[0], only) and not re.match(LEFT_OUT, name):
            found |= {f"{name}:{kind}": value for kind, value in contents(path) if len(value)}
    return found


def contents(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield kinds of contents, each a list of lines or arrays by their names."""
    from safetensors.numpy import load_file

    if path.suffix == ".safetensors":
        yield "arrays", load_file(path)
    elif path.suffix == ".npz":
        yield "arrays", dict(np.load(path))
    elif path.suffix in (".png", ".jpg"):
        yield "pictures", {"": np.asarray(Image.open(path).convert("RGBA"))}
    elif path.suffix == ".model":
        yield "arrays", {"": np.frombuffer(path.read_bytes(), np.uint8)}
    else:
        text = path.read_text()
        packed = re.findall(r'"(eN[\w+/]{8,}=*)"', text)
        maps = [np.frombuffer(zlib.decompress(base64.b64decode(each)), np.uint8) for each in packed]
        yield "arrays", {str(place): each for place, each in enumerate(maps)}
        if path.suffix in (".csv", ".tsv", ".de"):
            yield "lines", text.splitlines()[path.suffix != ".de" :]
            return
        if path.suffix == ".html":
            text = re.sub(r"(?s)<(script|style|svg).*?</\1>|<[^>]*>", "\n", text)
        with contextlib.suppress(json.JSONDecodeError):
            rows = text.splitlines() if path.suffix == ".jsonl" else [text]
            leaves = list(leaves_of([json.loads(row) for row in rows]))
            yield "numbers", {"": np.array([each for each in leaves if isinstance(each, float)])}
            text = "\n".join(each for each in leaves if isinstance(each, str))
        text = re.sub(CHANGING_WORDS, "#", text)
        yield "words", [line.strip() for line in text.splitlines() if line.strip()]


def leaves_of(tree: Any) -> Iterator[float | str]:
    """Yield the numbers, also those written as text, and the texts in a JSON tree."""
    if isinstance(tree, dict):
        tree = [value for key, value in tree.items() if not re.search(CHANGING_KEYS, key)]
    if isinstance(tree, list):
        for each in tree:
            yield from leaves_of(each)
    elif isinstance(tree, int | float) or re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", str(tree)):
        yield float(tree)
    elif isinstance(tree, str):
        yield tree


def difference(one: Any, other: Any, tolerance: float) -> str:
    """Say how lines, or arrays by names, differ."""
    if isinstance(one, list):
        lost, new = (Counter(a) - Counter(b) for a, b in ((one, other), (other, one)))
        example = next(iter([*new, *lost]), "another order")[:80]
        return "equal" if one == other else f"{lost.total()} lines gone, {new.total()} new, as: {example}"
    if Counter(each.tobytes() for each in one.values()) == Counter(each.tobytes() for each in other.values()):
        return "equal" if one.keys() == other.keys() else "equal, other names"
    flat, flat_other = (np.concatenate([each.ravel() for each in side.values()]) for side in (one, other))
    if flat.shape != flat_other.shape:
        common = (Counter(flat.tolist()) & Counter(flat_other.tolist())).total()
        return f"{flat.size} values and {flat_other.size}, {common} of them common"
    if np.array_equal(np.sort(flat), np.sort(flat_other), equal_nan=True):
        return "equal, ordered or cut otherwise"
    if one.keys() == other.keys() and all(one[name].size == other[name].size for name in one):
        flat_other = np.concatenate([other[name].ravel() for name in one])
    same = (flat == flat_other) | (np.isnan(flat) & np.isnan(flat_other))
    largest = np.abs(np.where(same, 0, flat.astype(float) - flat_other)).max()
    return f"{'equal within the tolerance: ' if largest <= tolerance else ''}at most {largest:.3g} apart"


if __name__ == "__main__":
    sys.exit(main())
