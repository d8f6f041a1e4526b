"""Tables in files of text: what is read of them, and which line an error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.core.errors import DataError
from vitrail.data.tables import column_names, read_table


def put(folder: Path, content: str, name: str = "rows.csv") -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def test_cells_behind_the_last_column_belong_to_it_where_texts_have_no_quotes(tmp_path: Path) -> None:
    path = put(tmp_path, "image , caption\na.png,a dog, running ,fast\nb.png\n\n")
    columns = read_table(path, joins_rest=True).columns
    assert columns == {"image": ["a.png", "b.png"], "caption": ["a dog, running ,fast", ""]}
    with pytest.raises(DataError, match="line 2 has 4 cells and the header 2"):
        read_table(path)


def test_of_columns_with_equal_names_the_first_counts(tmp_path: Path) -> None:
    assert read_table(put(tmp_path, "a,b,a\n1,2,3\n")).columns == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize(
    "rows",
    [
        'a.png,a dog\nb.png,"a cat\nc.png,a bird\nd.png,a fish\n',  # up to the end of the file
        'a.png,a dog\nb.png,"a cat\nc.png,"a bird, small"\nd.png,a fish\n',  # up to the next quote
        'a.png,a dog\nb.png,"a cat\n' + "c.png,a bird\n" * 20_000,  # more than csv takes for one cell
    ],
    ids=["end", "quote", "long"],
)
def test_a_quote_that_is_not_closed_is_refused_with_its_line(tmp_path: Path, rows: str) -> None:
    with pytest.raises(DataError, match=r"line 3 of .*rows\.csv opens a quote that does not close its cell"):
        read_table(put(tmp_path, "image,caption\n" + rows))


def test_quoted_line_breaks_and_loose_quotes_within_a_line_are_read(tmp_path: Path) -> None:
    rows = 'image,caption\n"a.png","a dog,\n""runs"""\r\nb.png,"Stop" sign\nc.png,a 5" pipe\n'
    table = read_table(put(tmp_path, rows))
    assert table.columns["caption"] == ['a dog,\n"runs"', "Stop sign", 'a 5" pipe']
    assert not table.findings


def test_rows_within_a_quoted_cell_are_told(tmp_path: Path) -> None:
    rows = 'image,caption\na.png,a dog\nb.png,"a cat\nc.png,a bird\nd.png,a fish"\n'
    (finding,) = read_table(put(tmp_path, rows)).findings
    assert (finding.check, finding.items) == ("rows-in-a-cell", ("lines 3 to 5",))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"file_name": ', "line 4 of .* is not JSON: Expecting value at character 1[45]"),
        ("[1]", "line 4 of .* is a JSON list"),
        ("[" * 100_000, "line 4 of .* is not JSON"),
    ],
    ids=["cut", "list", "deep"],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, line: str, fault: str) -> None:
    path = put(tmp_path, f'{{"a": 1}}\n\n{{"b": 2}}\n{line}\n', "rows.jsonl")
    with pytest.raises(DataError, match=fault):
        read_table(path)


def test_columns_are_told_by_a_look_at_the_beginning(tmp_path: Path) -> None:
    assert column_names(put(tmp_path, "image; caption\na;b\n")) == ["image", "caption"]
    assert column_names(put(tmp_path, '{"a": 1, "b": 2}\nno json', "rows.jsonl")) == ["a", "b"]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (["photos/1.jpg,cat", "photos/2.jpg,dog"], ["image", "label"]),
        (["1.jpg,a dog runs over grass", "2.jpg,two cats sleep in the sun"], ["image", "caption"]),
        (["cat;1.jpg;north", "dog;2.jpg;south"], ["column 1", "image", "column 3"]),
        ([f"word {i}.\tenglish" for i in range(7)], ["text", "label"]),
        ([f"{'spam' if i % 2 else 'ham'}\tletter {i}" for i in range(10)], ["label", "text"]),
        (["image,label", "1.jpg,cat"], ["image", "label"]),  # with a header
        (["word,language", *(f"word {i},english" for i in range(7))], ["word", "language"]),
        (["Go.\tVa !", "Go.\tMarche.", "Hi.\tSalut !"], ["Go.", "Va !"]),  # pairs
        ([f"{i}\tx{i}" for i in range(9)], ["0", "x0"]),  # no label recurs
    ],
)
def test_a_first_row_of_data_is_no_header(tmp_path: Path, rows: list[str], names: list[str]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(rows) + "\n")

    table = read_table(path)

    assert column_names(path) == [*table.columns] == names
    is_data = names[0] not in rows[0]
    assert [finding.check for finding in table.findings] == is_data * ["no-header"]
    assert len(table.names) == len(rows) - (not is_data)
