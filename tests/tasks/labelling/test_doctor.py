from __future__ import annotations

import pytest

from vitrail.tasks.labelling.doctor import check_texts
from vitrail.tasks.labelling.opening import open_texts


def checked(folder, train, test="good,praise\nbad,blame\n"):
    for split, rows in (("train", train), ("test", test)):
        (folder / f"{split}.csv").write_text(f"text,label\n{rows}")
    verdict = check_texts(open_texts(folder))
    return verdict, {finding.check: finding for finding in verdict.findings}


MANY = "".join(f"a fine film {i},praise\na poor film {i},blame\n" for i in range(12))


def test_clean_texts_are_usable(tmp_path):
    verdict, found = checked(tmp_path, MANY)
    assert verdict.usable
    assert not {"warning", "error"} & {finding.severity for finding in found.values()}
    words = " ".join(" ".join(verdict.summary()).split())
    assert words.startswith(f"{tmp_path}: 26 texts, 2 classes")


@pytest.mark.parametrize(
    ("train", "check", "severity"),
    [
        (MANY + '"  ",praise\n', "empty-texts", "warning"),
        (MANY + "Good,praise\n", "test-in-train", "warning"),
        (MANY + "a fine film 3,blame\n", "conflicting-labels", "warning"),
        (MANY + "word " * 500 + ",praise\n", "long-texts", "warning"),
        (MANY + "\ufffdt\ufffd,praise\n", "undecodable", "warning"),
        (MANY + "odd,Praise\n", "similar-class-names", "warning"),
        (MANY.replace("blame", "praise"), "one-class", "error"),
        (
            "".join(f"{'good' if i % 2 else 'bad'},film {i}\n" for i in range(12)),
            "exchanged-columns",
            "error",
        ),
        (MANY.replace("blame", "other"), "class-not-in-train", "error"),
    ],
)
def test_faults_are_found(tmp_path, train, check, severity):
    verdict, found = checked(tmp_path, train)
    assert found[check].severity == severity
    assert verdict.usable == (severity != "error")


def test_empty_texts_are_left_out(tmp_path):
    verdict, _ = checked(tmp_path, MANY + ",praise\n")
    dataset = open_texts(tmp_path)
    assert len(verdict.exclude) == 1
    assert len(dataset.without(verdict.exclude).train) == len(dataset.train) - 1


def test_texts_in_another_encoding_are_left_out_in_their_order(tmp_path):
    rows = MANY + ",praise\n" * 9 + "un film tr\xe8s bon,praise\na film,bl\xe2me\n"
    (tmp_path / "train.csv").write_bytes(f"text,label\n{rows}".encode("cp1252"))
    (tmp_path / "test.csv").write_text("text,label\ngood,praise\nbad,blame\n")
    verdict = check_texts(open_texts(tmp_path))
    found = {finding.check: finding for finding in verdict.findings}
    assert found["undecodable"].items == ("train.csv:35", "train.csv:36")
    assert "iconv -f WINDOWS-1252 -t UTF-8" in found["undecodable"].remedy
    assert found["empty-texts"].items == tuple(f"train.csv:{line}" for line in range(26, 35))
    assert verdict.exclude == {f"train.csv:{line}" for line in range(26, 37)}


def test_sentences_with_tags_are_counted_by_words(tmp_path):
    (tmp_path / "train.conll").write_text("".join(f"John{i} B-PER\nruns O\n\n" for i in range(12)))
    (tmp_path / "test.conll").write_text("Paris B-LOC\nruns O\n")
    verdict = check_texts(open_texts(tmp_path))
    assert verdict.counts["per_class"]["O"] == {"train": 11, "validation": 1, "test": 1}
    unlearned = next(finding for finding in verdict.findings if finding.check == "class-not-in-train")
    assert (unlearned.items, unlearned.severity) == (("B-LOC",), "warning")
    assert verdict.usable
