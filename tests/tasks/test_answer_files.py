"""Answers in files: each form holds what its name says, and other names are refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.tasks.answer_files import STRUCTURED, SUFFIXES, FileResults, check_answer_file, write_answers
from vitrail.tasks.captioning.predictor import Caption
from vitrail.tasks.classification.predictor import Prediction
from vitrail.tasks.contrastive.retrieval import Match, Retrieval, Retrieved, retrieval_results
from vitrail.tasks.detection.detections import Detections
from vitrail.tasks.labelling.predictor import LabelledText
from vitrail.tasks.predicting import Results, ranked_results
from vitrail.tasks.translation.predictor import Alternative, Translation

CLASSES = ranked_results(
    [
        Prediction("one, two.png", (("cat", 0.75), ("dog", 0.25))),
        Prediction("bad.png", (), "no image"),
        Prediction("three.png", (("dog", 1.0),)),
    ],
    "{:.1%}",
    probability=6,
)
CAPTIONS = ranked_results(
    [Caption("x.png", (("a dog", -0.5), ("dogs", -0.75))), Caption("bad.png", (), error="no image")],
    "{:.2f}",
    score=4,
)
FOUND = Retrieved("a dog", (Match("x.png", 0.5), Match("y.png", 0.25)))


def written(folder: Path, suffix: str, answers: FileResults) -> str:
    path = folder / f"answers{suffix}"
    write_answers(path, answers)
    return path.read_text(encoding="utf-8")


def rows_of(folder: Path, answers: FileResults) -> list[dict[str, str]]:
    rows = list(csv.DictReader(written(folder, ".csv", answers).splitlines()))
    tabbed = csv.DictReader(written(folder, ".TSV", answers).splitlines(), delimiter="\t")
    assert list(tabbed) == rows
    return rows


def test_a_table_of_classes_has_a_row_for_each_image_and_class(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, CLASSES)

    assert [(row["image"], row["rank"], row["class"]) for row in rows] == [
        ("one, two.png", "1", "cat"),
        ("one, two.png", "2", "dog"),
        ("bad.png", "", ""),
        ("three.png", "1", "dog"),
    ]
    assert float(rows[1]["probability"]) == 0.25
    assert [row["error"] for row in rows] == ["", "", "no image", ""]


def test_json_and_plain_lines_follow_the_images(tmp_path: Path) -> None:
    tree = json.loads(written(tmp_path, ".json", CLASSES))
    lines = written(tmp_path, ".jsonl", CLASSES).splitlines()

    assert [each["source"] for each in tree] == ["one, two.png", "bad.png", "three.png"]
    assert tree[0]["scores"][1] == {"class": "dog", "probability": 0.25}
    assert [json.loads(line) for line in lines] == tree
    assert written(tmp_path, ".txt", CLASSES) == "cat\n\ndog\n"


def test_a_table_of_captions_has_a_row_for_each_and_plain_lines_the_best(tmp_path: Path) -> None:
    assert written(tmp_path, ".csv", CAPTIONS) == (
        "image,rank,caption,score,error\nx.png,1,a dog,-0.5000,\nx.png,2,dogs,-0.7500,\nbad.png,,,,no image\n"
    )
    assert written(tmp_path, ".txt", CAPTIONS) == "a dog\n\n"


NO_BOXES = Detections.failed("bad.png", ("cell",), "no image")
BOXES = NO_BOXES._replace(
    name="x.png",
    size=(8, 8),
    boxes_xyxy=torch.tensor([[1.0, 2.0, 3.5, 4.0]]),
    scores=torch.tensor([0.5]),
    labels=torch.tensor([0]),
    error=None,
)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (
            [Prediction("x.png", (("cat", 0.75), ("dog", 0.25))), Prediction("bad.png", (), "no image")],
            "image,rank,class,probability,error\nx.png,1,cat,0.75,\nx.png,2,dog,0.25,\nbad.png,,,,no image\n",
        ),
        (
            [Caption("x.png", (("a dog", -0.5), ("dogs", -0.75))), Caption("bad.png", (), error="no image")],
            "image,rank,caption,score,error\nx.png,1,a dog,-0.5,\nx.png,2,dogs,-0.75,\nbad.png,,,,no image\n",
        ),
        (
            [BOXES, NO_BOXES._replace(name="none.png", error=None), NO_BOXES],
            "image,class,score,left,top,right,bottom,error\nx.png,cell,0.5,1.0,2.0,3.5,4.0,\n"
            "none.png,,,,,,,\nbad.png,,,,,,,no image\n",
        ),
        (
            [
                LabelledText("A dog", tuple(Prediction(word, (("O", 1.0),)) for word in ("A", "dog")), True),
                LabelledText("", error="no word"),
            ],
            "text,part,label,probability,error\nA dog,A,O,1.0,\nA dog,dog,O,1.0,\n,,,,no word\n",
        ),
        (
            [
                Translation("Ein Hund", -0.5, (Alternative("Hund", -1.0),), source="A dog"),
                Translation("", error="too long", source="A"),
            ],
            "source,rank,translation,score,error\nA dog,1,Ein Hund,-0.5,\nA dog,2,Hund,-1.0,\n"
            "A,,,,too long\n",
        ),
    ],
    ids=lambda each: type(each[0]).__name__ if isinstance(each, list) else "",
)
def test_results_are_a_table_of_plain_values(results: list[Any], expected: str) -> None:
    rows, text = Results(results).table(), io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    assert text.getvalue() == expected


@pytest.mark.parametrize(("by_image", "bad_row"), [(False, ("", "bad.png")), (True, ("bad.png", ""))])
def test_what_was_found_names_query_and_rank(
    tmp_path: Path, by_image: bool, bad_row: tuple[str, str]
) -> None:
    answers = retrieval_results(Retrieval((FOUND,), (("bad.png", "no image"),), by_image))

    rows = rows_of(tmp_path, answers)
    lines = [json.loads(line) for line in written(tmp_path, ".jsonl", answers).splitlines()]

    assert [(row["rank"], row["found"], float(row["cosine"])) for row in rows[:2]] == [
        ("1", "x.png", 0.5),
        ("2", "y.png", 0.25),
    ]
    assert (rows[2]["query"], rows[2]["found"]) == bad_row
    assert rows[2]["error"] == "no image"
    matches = [{"name": "x.png", "cosine": 0.5}, {"name": "y.png", "cosine": 0.25}]
    assert lines == [{"query": "a dog", "matches": matches}, {"source": "bad.png", "error": "no image"}]


@pytest.mark.parametrize("name", ["answers.xyz", "answers", "answers.json.gz"])
def test_a_name_without_a_known_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"no suffix of a known format.*\.json, \.jsonl, \.csv, \.tsv"):
        write_answers(tmp_path / name, CLASSES)

    assert not list(tmp_path.iterdir())


def test_what_has_no_plain_lines_refuses_them() -> None:
    for suffix in SUFFIXES:
        check_answer_file(Path(f"x{suffix}"))
    with pytest.raises(ConfigError, match=r"x\.txt has no suffix"):
        check_answer_file(Path("x.txt"), STRUCTURED)
