"""The doctor finds what spoils parallel text, names it, and leaves sound text alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.findings import Finding, Verdict
from vitrail.tasks.translation.dataset import PairDataset, PairSplit
from vitrail.tasks.translation.doctor import CHECKS, check_pairs
from vitrail.tasks.translation.opening import open_pairs
from vitrail.tasks.translation.settings import PairDataSettings

MULTI30K = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"
NOTHING = PairSplit([], [], [])
WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
]


def sentences(number: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return pairs of different sentences; the second side has the words of the first, turned round."""
    generator = np.random.default_rng(seed)
    pairs = []
    for index in range(number):
        words = [WORDS[place] for place in generator.integers(0, len(WORDS), size=generator.integers(2, 15))]
        pairs.append(
            (" ".join([*words, str(index)]), " ".join([*(word[::-1] for word in words), str(index)]))
        )
    return pairs


def split(pairs: Sequence[tuple[str, str]], stem: str = "train") -> PairSplit:
    names = [f"{stem}.en:{number}" for number in range(1, len(pairs) + 1)]
    return PairSplit([pair[0] for pair in pairs], [pair[1] for pair in pairs], names)


def dataset(
    train: Sequence[tuple[str, str]],
    test: Sequence[tuple[str, str]] = (),
    languages: tuple[str, str] = ("en", "xx"),
) -> PairDataset:
    return PairDataset(
        source="pets",
        format="two text files",
        languages=languages,
        train=split(train),
        validation=NOTHING,
        test=split(test, "test"),
    )


def found(verdict: Verdict) -> dict[str, Finding]:
    return {finding.check: finding for finding in verdict.findings}


def judge(*odd: tuple[str, str]) -> tuple[Verdict, dict[str, Finding]]:
    """Examine 300 sound pairs and then some odd ones, ``train.en:301`` the first of them."""
    verdict = check_pairs(dataset([*sentences(300), *odd], [("test", "tset")]))
    return verdict, {check: finding for check, finding in found(verdict).items() if check != "few-pairs"}


def test_sound_pairs_are_only_few() -> None:
    verdict = check_pairs(dataset(sentences(300), sentences(50, seed=1)))
    assert set(found(verdict)) == {"few-pairs"}
    assert verdict.usable
    assert not verdict.exclude
    assert verdict.counts["pairs"] == {"train": 300, "validation": 0, "test": 50}
    assert verdict.counts["scripts"] == {"en": "Latin", "xx": "Latin"}


def test_empty_sides_are_left_out() -> None:
    verdict, findings = judge(("", "leer"), ("empty", " \t\u00a0"), ("", ""))
    assert set(findings) == {"empty-side"}
    assert findings["empty-side"].severity == "warning"
    assert findings["empty-side"].items == (
        "train.en:301 (en)",
        "train.en:302 (xx)",
        "train.en:303 (both sides)",
    )
    assert verdict.exclude == {"train.en:301", "train.en:302", "train.en:303"}
    assert verdict.usable


def test_nothing_but_empty_sides_is_an_error() -> None:
    verdict = check_pairs(dataset([("a", ""), ("b", " ")]))
    assert not verdict.usable
    assert {finding.check for finding in verdict.of("error")} == {"empty-side", "no-pairs"}


def test_lines_that_are_not_utf8_are_named_and_left_out(tmp_path: Path) -> None:
    pairs = sentences(30)
    lines = [target.encode() for _, target in pairs]
    lines[16] = "f\u00fcr uns".encode("latin-1")
    (tmp_path / "train.en").write_text("".join(source + "\n" for source, _ in pairs))
    (tmp_path / "train.xx").write_bytes(b"\n".join(lines))
    settings = PairDataSettings(source="", languages=("en", "xx"), validation_fraction=0.0)
    opened = open_pairs(tmp_path, settings=settings)
    verdict = check_pairs(opened)
    assert found(verdict)["undecodable"].items == ("train.en:17 (xx)",)
    assert found(verdict)["undecodable"].severity == "warning"
    assert verdict.exclude == {"train.en:17"}
    kept = opened.without(verdict.exclude)
    assert sum(len(part) for part in kept.splits.values()) == 29


def test_a_file_in_another_encoding_is_an_error() -> None:
    verdict = check_pairs(dataset([(source, f"{target} f\ufffdr") for source, target in sentences(30)]))
    assert [finding.check for finding in verdict.of("error")] == ["no-pairs", "undecodable"]
    assert "iconv" in found(verdict)["undecodable"].remedy


@pytest.mark.parametrize("long", ["word " * 10_000, "\u4e00" * 7_000])
def test_very_long_lines_are_left_out(long: str) -> None:
    verdict, findings = judge(("short", long))
    assert set(findings) == {"too-long"}
    assert verdict.exclude == {"train.en:301"}
    assert findings["too-long"].items[0].startswith("train.en:301 (xx, ")


@pytest.mark.parametrize(
    "text",
    [
        "\u00e4ndern f\u00fcr Stra\u00dfen",
        "l'\u00e9t\u00e9 \u2013 \u00e0 No\u00ebl",
        "\u201cgut\u201d \u2026",
        "\u043f\u0440\u0438",
    ],
)
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_text_read_in_another_encoding_is_found(text: str, encoding: str) -> None:
    broken = text.encode().decode(encoding, errors="replace").replace("\ufffd", "")
    verdict, findings = judge(
        (f"{broken} in the sentence of a person", f"{text} in the sentence of a person")
    )
    assert findings["mojibake"].items == ("train.en:301 (en)",)
    assert not verdict.exclude


@pytest.mark.parametrize(
    "text",
    [
        "\u00abcaf\u00e9\u00bb",
        "\u00bbSpa\u00df\u00ab",
        "N\u00c3O \u00c0 VISTA",
        "20\u00b0 \u00c5ngstr\u00f6m",
        "\u00e9t\u00e9\u00a0!",
        "\u00c2ge \u00e2ge",
        "\u0421\u043e\u0432\u0430 \u00ab\u0421\u00bb",
        "na\u00efve \u2013 \u20ac 5",
    ],
)
def test_sound_text_with_accents_and_quotes_is_not_taken_for_damage(text: str) -> None:
    verdict = check_pairs(dataset([*sentences(30), (text, text[::-1])]))
    assert "mojibake" not in found(verdict)


@pytest.mark.parametrize("character", ["\x00", "\x0c", "\x1b", "\x85", "\u2028", "\ufeff", "\r"])
def test_control_characters_are_found(character: str) -> None:
    verdict, findings = judge((f"a day{character} here", "ereh yad a"))
    assert set(findings) == {"control-characters"}
    assert findings["control-characters"].items == ("train.en:301 (en)",)
    assert not verdict.exclude


def test_sentences_in_another_script_are_found() -> None:
    _, findings = judge(
        ("a day here", "\u0434\u0435\u043d\u044c \u0437\u0434\u0435\u0441\u044c"),
        ("\u65e5\u672c\u8a9e\u306e\u6587", "eid netarpaj"),
        ("the word \u0434\u0435\u043d\u044c is Russian", "tsi drow sad \u0434\u0435\u043d\u044c"),
        ("30 \u00b5\u03a9 only", "run 30 \u00b5\u03a9"),
    )
    assert set(findings) == {"other-script"}
    verdict = check_pairs(dataset([*sentences(30), ("a day", "\u0434\u0435\u043d\u044c")]))
    assert found(verdict)["other-script"].items == ("train.en:31 (xx)",)


def test_exchanged_sides_are_told_by_their_script() -> None:
    russian = [
        (source, "\u0434\u0435\u043d\u044c " * (1 + index % 9) + str(index))
        for index, (source, _) in enumerate(sentences(40))
    ]
    assert "unexpected-script" not in found(check_pairs(dataset(russian, languages=("en", "ru"))))
    finding = [
        finding
        for finding in check_pairs(dataset(russian, languages=("ru_RU", "en"))).findings
        if finding.check == "unexpected-script"
    ]
    assert [item.items for item in finding] == [("ru_RU",), ("en",)]
    assert "written in Latin, not in Cyrillic" in finding[0].message


def test_a_side_far_longer_than_usual_is_found() -> None:
    _, findings = judge(("a day here", "time " * 60), ("time " * 60, "no"))
    assert set(findings) == {"length-ratio"}
    assert findings["length-ratio"].items == (
        "train.en:301 (10 : 300 characters)",
        "train.en:302 (300 : 2 characters)",
    )


def test_what_is_usual_is_learned_from_the_data() -> None:
    triple = [(source, f"{target} {target[::-1]} {target}") for source, target in sentences(300)]
    assert "length-ratio" not in found(check_pairs(dataset(triple)))
    verdict = check_pairs(dataset([*triple, ("a day of time " * 9, "a yad na emit " * 8)]))
    assert found(verdict)["length-ratio"].items == ("train.en:301 (126 : 112 characters)",)


def test_sides_that_do_not_belong_together_are_found() -> None:
    pairs = sentences(400)
    moved = [(source, pairs[(index + 1) % 400][1]) for index, (source, _) in enumerate(pairs)]
    assert "unrelated-lengths" in found(check_pairs(dataset(moved)))
    assert "unrelated-lengths" not in found(check_pairs(dataset(pairs)))


def test_copies_are_found_and_are_a_warning_where_they_are_many() -> None:
    _, findings = judge(("Barack Obama", " Barack Obama"), ("42", "42"))
    assert set(findings) == {"copies"}
    assert findings["copies"].severity == "info"
    assert findings["copies"].items == ("train.en:301",)
    copied = check_pairs(dataset([(source, source) for source, _ in sentences(30)]))
    assert found(copied)["copies"].severity == "warning"
    assert found(copied)["copies"].count == 30


@pytest.mark.parametrize("text", ["a <b>day</b>", "a day<br/>", "Q&amp;A", "it &#39;s", "<!-- day"])
def test_markup_is_found(text: str) -> None:
    _, findings = judge((text, "emit na yad"))
    assert set(findings) == {"markup"}


@pytest.mark.parametrize("text", ["3 < 5 and 7 > 2", "R&D; no", "salt & pepper; more", "I <3 you", "<unk"])
def test_signs_that_are_no_markup_are_not_taken_for_it(text: str) -> None:
    _, findings = judge((text, "emit na yad a si siht"))
    assert "markup" not in findings


def test_pairs_of_the_test_in_train_are_found() -> None:
    train = sentences(300)
    test = [(f" {train[4][0]}", train[4][1]), (train[9][0], "else"), ("new words", "sdrow wen")]
    findings = found(check_pairs(dataset(train, test)))
    assert findings["test-in-train"].severity == "warning"
    assert findings["test-in-train"].items == ("test.en:1 = train.en:5",)
    assert findings["test-source-in-train"].severity == "info"
    assert findings["test-source-in-train"].items == ("test.en:2 = train.en:10",)


def test_pairs_that_train_has_twice_are_only_told() -> None:
    pairs = sentences(300)
    findings = found(check_pairs(dataset([*pairs, pairs[3], pairs[3], (pairs[5][0], f"{pairs[5][1]} x")])))
    assert findings["repeated-in-train"].severity == "info"
    assert findings["repeated-in-train"].items == ("train.en:4 = train.en:301 = train.en:302",)
    assert set(findings) == {"few-pairs", "no-test", "repeated-in-train"}


def test_nothing_to_train_on_is_an_error_unless_there_is_a_test() -> None:
    assert [finding.check for finding in check_pairs(dataset([])).of("error")] == ["no-pairs"]
    verdict = check_pairs(dataset([], sentences(5)))
    assert verdict.usable
    assert set(found(verdict)) == {"no-train"}


def test_what_the_reader_noticed_is_passed_on() -> None:
    noticed = Finding("warning", "unread-texts", "m", "r", ("a",))
    opened = PairDataset(
        source="s",
        format="f",
        languages=("en", "xx"),
        train=split(sentences(30)),
        validation=NOTHING,
        test=NOTHING,
        findings=(noticed,),
    )
    assert noticed in check_pairs(opened).findings


def test_a_verdict_is_json_and_fits_a_terminal() -> None:
    verdict, _ = judge(("", "x"), ("a <b>day</b>", "yad"))
    tree = json.loads(json.dumps(verdict.to_json()))
    assert tree["exclude"] == ["train.en:301"]
    assert tree["counts"]["languages"] == ["en", "xx"]
    lines = verdict.summary()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "pets: 303 pairs, en to xx (train 302, validation 0, test 1)"
    assert lines[-1] == "verdict: usable, 1 pair left out (3 warnings)"


def test_every_check_explains_itself() -> None:
    assert all(check.__doc__ for check in CHECKS)


def test_the_time_grows_with_the_number_of_pairs_alone() -> None:
    pairs = sentences(20_000)
    start = time.process_time()
    check_pairs(dataset(pairs))
    assert time.process_time() - start < 2.0  # 0.2 s measured


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="Multi30k is not on this machine")
def test_multi30k_is_usable_as_a_whole() -> None:
    opened = open_pairs(MULTI30K, settings=PairDataSettings(source="", languages=("en", "de")))
    verdict = check_pairs(opened)
    assert verdict.usable
    assert not verdict.exclude
    assert set(found(verdict)) == {
        "length-ratio",
        "markup",
        "validation-source-in-train",
        "repeated-in-train",
    }
    assert found(verdict)["length-ratio"].items[0].startswith("train.en:16510 ")
