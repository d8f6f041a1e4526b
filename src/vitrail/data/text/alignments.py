"""Files of gold word alignments.

Papers: Och and Ney 2003 (sure and possible links); Mihalcea and Pedersen 2003 (the NAACL shared task, whose
form is read here beside Pharaoh's).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.core.errors import DataError
from vitrail.core.files import PACKED
from vitrail.data.text.lines import read_lines

PHARAOH_LINK = re.compile(r"(?P<source>\d+)(?P<mark>[-sp?])(?P<target>\d+)")
NAACL_LINE = re.compile(
    r"0*(?P<pair>[1-9]\d*)\s+(?P<source>\d+)\s+(?P<target>\d+)(?:\s+(?P<mark>[SP]))?(?:\s+[\d.]+)?"
)
FROM_ONE = ".talp"  # suffix of files in Pharaoh's form that count words from 1
EXPECTED = (
    "links SOURCE-TARGET of each pair on its line, counted from 0 (Pharaoh; 3p4 or 3?4 is a possible link), "
    "or lines SENTENCE SOURCE TARGET [S|P], counted from 1 (NAACL 2003)"
)

Link = tuple[int, int]
"""Index of a source word, and of a target word."""


class GoldAlignment(NamedTuple):
    """The links between the words of a sentence and of its translation, as people drew them."""

    sure: frozenset[Link]
    possible: frozenset[Link]
    """All links, sure ones included."""

    def check(self, num_source: int, num_target: int, name: str) -> None:
        """Refuse links outside of a pair of sentences; ``DataError`` if a word is not there."""
        for source, target in sorted(self.possible):
            if source >= num_source or target >= num_target:
                raise DataError(
                    f"the gold alignment of {name} links source word {source + 1} to target word "
                    f"{target + 1}, and there are {num_source} and {num_target} words",
                    expected="links between words as spaces separate them, the source's first",
                    remedy="Check the order of the languages; in Pharaoh's form, files that count from 1 "
                    f"need the suffix {FROM_ONE}",
                )


def read_alignments(path: Path, num_pairs: int) -> dict[int, GoldAlignment]:
    """Read gold alignments, by the index of their pair.

    Args:
        num_pairs: number of pairs that the file is about; in NAACL's form, some may be missing.

    Raises:
        DataError: the file cannot be read, has another form or is about other pairs.
    """
    lines = [line.strip() for line in read_lines(path)]
    is_naacl = NAACL_LINE.fullmatch(next(filter(None, lines), "")) is not None
    sure: dict[int, set[Link]] = {} if is_naacl else {row: set() for row in range(len(lines))}
    possible: dict[int, set[Link]] = {row: set() for row in sure}
    for row, link, is_sure in _read_links(path, lines, is_naacl):
        sure.setdefault(row, set()).update([link] * is_sure)
        possible.setdefault(row, set()).add(link)
    if not possible or max(possible) >= num_pairs or (not is_naacl and len(lines) < num_pairs):
        raise DataError(
            f"{path} is about {max(possible, default=-1) + 1} pairs, and there are {num_pairs}",
            expected="gold alignments of the same pairs, in their order",
            remedy="Name the data and the split that the links are of",
        )
    return {row: GoldAlignment(frozenset(sure[row]), frozenset(possible[row])) for row in sorted(possible)}


def _read_links(path: Path, lines: Sequence[str], is_naacl: bool) -> Iterator[tuple[int, Link, bool]]:
    """Yield the pair of each link, the link, and whether it is sure."""
    first = int(is_naacl or path.name.lower().removesuffix(PACKED).endswith(FROM_ONE))
    form = NAACL_LINE if is_naacl else PHARAOH_LINK
    for row, line in enumerate(lines):
        for text in filter(None, [line] if is_naacl else line.split()):
            found = form.fullmatch(text)
            source, target = map(int, found.group("source", "target")) if found else (-1, -1)
            if found is None or (min(source, target) < first and not is_naacl):
                raise DataError(
                    f"{text!r} in line {row + 1} of {path} is no link",
                    expected=EXPECTED,
                    remedy="Correct the line",
                )
            if min(source, target) >= first:  # in NAACL's form, word 0 says that there is no counterpart
                pair = int(found["pair"]) - 1 if is_naacl else row
                yield pair, (source - first, target - first), found["mark"] not in ("P", "p", "?")
