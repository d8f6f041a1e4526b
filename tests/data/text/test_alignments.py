"""Files of gold alignments, in both standard forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.core.errors import DataError
from vitrail.data.text.alignments import GoldAlignment, read_alignments

SURE, POSSIBLE = {(0, 0), (2, 1)}, {(0, 0), (2, 1), (1, 1), (3, 2)}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gold.txt", "0-0 1p1 2-1 3?2\n\n"),
        ("gold.align", "0s0\t2-1 1p1 3p2\r\n\n"),
        ("gold.talp", "1-1 3-2 2p2 4p3\n\n"),
        ("gold.wa", "0001 1 1 S\n0001 3 2\n1 2 2 P\n0001 4 3 P 0.25\n0002 0 3 S\n"),
    ],
)
def test_both_forms_are_read_alike(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())

    found = read_alignments(path, 2)

    assert found[0] == GoldAlignment(frozenset(SURE), frozenset(POSSIBLE))
    assert found.get(1, GoldAlignment(frozenset(), frozenset())).possible == frozenset()


def test_pairs_without_links_are_left_out_in_naacls_form_alone(tmp_path: Path) -> None:
    (tmp_path / "a.wa").write_text("3 1 1\n1 2 2\n")
    (tmp_path / "a.txt").write_text("0-0\n\n0-0\n")

    assert list(read_alignments(tmp_path / "a.wa", 7)) == [0, 2]
    assert list(read_alignments(tmp_path / "a.txt", 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "0-0\n0-x\n", "'0-x' in line 2 of .*a.txt is no link"),
        ("a.talp", "1-1\n0-1\n", "'0-1' in line 2 of .* is no link"),
        ("a.wa", "1 1 1\n1-1\n", "'1-1' in line 2 of .* is no link"),
        ("a.wa", "1 1 1\n0 1 1\n", "'0 1 1' in line 2"),
        ("a.txt", "0-0\n", "is about 1 pairs, and there are 2"),
        ("a.txt", "0-0\n0-0\n0-0\n", "is about 3 pairs, and there are 2"),
        ("a.wa", "1 1 1\n5 1 1\n", "is about 5 pairs, and there are 2"),
        ("a.txt", "", "is about 0 pairs"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)

    with pytest.raises(DataError, match=message):
        read_alignments(tmp_path / name, 2)


def test_links_to_words_that_are_not_there_are_refused() -> None:
    gold = GoldAlignment(frozenset({(0, 0)}), frozenset({(0, 0), (1, 3)}))

    gold.check(2, 4, "test.en:1")
    with pytest.raises(DataError, match=r"test\.en:1 links source word 2 to target word 4.* 2 and 3 words"):
        gold.check(2, 3, "test.en:1")
