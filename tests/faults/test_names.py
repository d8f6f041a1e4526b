"""Names of files and classes are a stranger's: none is lost, or reaches a terminal or spreadsheet raw."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from making.saved_vit import save_vit
from vitrail.cli import main, show
from vitrail.tasks.answer_files import csv_text, read_cell

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202etxt"
NAMES = (
    b"plain.png",
    b"latin \xe9\xff.png",
    b"red \x1b[31m.png",
    b"@SUM(A1).png",
    b"=1+1.png",
    b"new\nline.png",
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        file = Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))
        Image.fromarray(np.full((24, 16, 3), 20 * number, np.uint8)).save(file, "PNG")
    (folder / "broken \udcff\x1b[1m.png").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize("form", [".json", ".jsonl", ".csv", ".tsv", ".txt", "terminal", "--json"])
def test_answers_for_files_of_any_name_are_kept(
    form: str, tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_vit(tmp_path / "model", class_names=("=cat", f"dog{ESCAPES}", "bird"))
    output = tmp_path / f"answers{form}"
    options = [] if form == "terminal" else ["--json"] if form == "--json" else ["-o", str(output)]
    assert main(["predict", str(model), str(photos), "--top", "2", *options]) == 1
    printed = capsys.readouterr()
    assert not show.CONTROLS.findall(printed.out + printed.err)
    assert "udcff" in printed.out + printed.err or form == "--json"
    if form == "terminal":
        return
    text = printed.out if form == "--json" else output.read_bytes().decode()  # strict UTF-8
    if form in (".json", "--json"):
        names = [each["source"] for each in json.loads(text)]
        assert f"dog{ESCAPES}" in [
            best["class"] for each in json.loads(text) for best in each.get("scores", ())
        ]
    elif form == ".jsonl":
        names = [json.loads(line)["source"] for line in text.splitlines()]
    elif form == ".txt":
        assert len(text.splitlines()) >= len(NAMES) + 1
        return
    else:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if form == ".tsv" else ","))
        assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "@", "+"))]
        assert {row["class"] for row in rows} >= {"'=cat"} or "=cat" not in text
        names = [read_cell(row["image"]) for row in rows]
    expected = {str(path) for path in photos.iterdir()}
    if form in (".csv", ".tsv"):
        expected = {name.encode(errors="backslashreplace").decode() for name in expected}
    assert set(names) == expected


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "+a",
        "-a",
        "@a",
        "\ta",
        "\ra",
        "\na",
        "\uff1dA1",
        "'=a",
        "''=a",
        "'a",
        "-0.5",
        "-1e-05",
        "a",
        "",
    ],
)
def test_cells_are_texts_to_a_spreadsheet_and_read_back(cell: str) -> None:
    ((written, end),) = csv.reader(io.StringIO(csv_text([[cell, "end"]]), newline=""))
    assert end == "end"
    is_number = cell.startswith("-") and cell != "-a"
    assert is_number == (written[:1] in tuple("=+-@\t\r\n"))
    assert read_cell(written) == cell


@pytest.mark.parametrize("cell", [-0.5, -3, None, True])
def test_cells_of_numbers_stay_numbers(cell: object) -> None:
    assert csv_text([[cell, "x"]]) == f"{'' if cell is None else cell},x\n"


@pytest.mark.parametrize(
    "print_name",
    [
        lambda name: show.lines([name]),
        lambda name: show.json({name: name}),
        show.stage,
        lambda name: show.errors([(name, "broken")]),
        show.fault,
        lambda name: show.line_fault(3, "error", name),
        lambda name: show.table((name, "score"), [(name, "0.5")]),
        lambda name: show.facts([(name, name)]),
        lambda name: show.scores({name: 0.5}),
        lambda name: show.signature({"data": name}),
        show.wrapped,
        lambda name: main(["predict", f"nowhere{name}", "a.png"]),
    ],
)
def test_no_printer_lets_control_characters_through(
    print_name: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(print_name)
    print_name(f"name{ESCAPES}")
    printed = capsys.readouterr()
    assert "name" in printed.out + printed.err
    assert not show.CONTROLS.findall(printed.out + printed.err)


def test_escaped_json_reads_as_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    show.json({"name": ESCAPES})
    assert json.loads(capsys.readouterr().out) == {"name": ESCAPES}
