"""The doctor finds what spoils parallel text, names it, and leaves sound text alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from making.multi30k import multi30k
from vitrail.data.findings import Finding, Verdict
from vitrail.tasks.translation.dataset import PairDataset, PairSplit
from vitrail.tasks.translation.doctor import CHECKS, check_pairs
from vitrail.tasks.translation.opening import open_pairs
from vitrail.tasks.translation.settings import PairDataSettings

WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group",
]  # fmt: skip
RUSSIAN_DAY = "\u0434\u0435\u043d\u044c"


def sentences(number: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return pairs of different sentences; the second side has the words of the first, turned round."""
    generator = np.random.default_rng(seed)
    pairs = []
    for index in range(number):
        words = [WORDS[i] for i in generator.integers(0, len(WORDS), size=generator.integers(2, 15))]
        pairs.append(
            (" ".join([*words, str(index)]), " ".join([*(word[::-1] for word in words), str(index)]))
        )
    return pairs


def split(pairs: Sequence[tuple[str, str]], stem: str = "train") -> PairSplit:
    names = [f"{stem}.en:{number}" for number in range(1, len(pairs) + 1)]
    return PairSplit([pair[0] for pair in pairs], [pair[1] for pair in pairs], names)


def check(
    train: Sequence[tuple[str, str]],
    test: Sequence[tuple[str, str]] = (),
    languages: tuple[str, str] = ("en", "xx"),
    findings: tuple[Finding, ...] = (),
) -> tuple[Verdict, dict[str, Finding]]:
    parts = {"train": split(train), "validation": split([]), "test": split(test, "test")}
    verdict = check_pairs(
        PairDataset(source="pets", format="files", languages=languages, findings=findings, **parts)
    )
    return verdict, {finding.check: finding for finding in verdict.findings}


def judge(*odd: tuple[str, str]) -> tuple[Verdict, dict[str, Finding]]:
    """Examine 300 sound pairs and then some odd ones, ``train.en:301`` the first of them."""
    verdict, findings = check([*sentences(300), *odd], [("test", "tset")])
    del findings["few-pairs"]
    return verdict, findings


def test_sound_pairs_are_only_few() -> None:
    verdict, findings = check(sentences(300), sentences(50, seed=1))
    assert set(findings) == {"few-pairs"}
    assert verdict.usable
    assert not verdict.exclude
    assert verdict.counts["pairs"] == {"train": 300, "validation": 0, "test": 50}
    assert verdict.counts["scripts"] == {"en": "Latin", "xx": "Latin"}


FAULTS = {  # odd pairs, the only finding, its items, the excluded pairs
    "empty sides": (
        [("", "leer"), ("empty", " \t\u00a0"), ("", "")],
        "empty-side",
        ("train.en:301 (en)", "train.xx:302 (xx)", "train.en:303 (both sides)"),
        {"train.en:301", "train.en:302", "train.en:303"},
    ),
    "many words": (
        [("short", "word " * 10_000)],
        "too-long",
        ("train.xx:301 (xx, 10001 words)",),
        {"train.en:301"},
    ),
    "many characters": (
        [("short", "\u4e00" * 7_000)],
        "too-long",
        ("train.xx:301 (xx, 1 words)",),
        {"train.en:301"},
    ),
    "other scripts": (
        [
            ("a day here", f"{RUSSIAN_DAY} {RUSSIAN_DAY}"),
            ("the word \u0434\u0435\u043d\u044c is Russian", f"tsi drow sad {RUSSIAN_DAY}"),
            ("30 \u00b5\u03a9 only", "run 30 \u00b5\u03a9"),
        ],
        "other-script",
        ("train.xx:301 (xx)",),
        set(),
    ),
    "odd lengths": (
        [("a day here", "time " * 60), ("time " * 60, "no")],
        "length-ratio",
        ("train.en:301 (10 : 300 characters)", "train.en:302 (300 : 2 characters)"),
        set(),
    ),
    "copies": ([("Barack Obama", " Barack Obama"), ("42", "42")], "copies", ("train.en:301",), set()),
    **{
        f"control {character!r}": (
            [(f"a day{character} here", "ereh yad a")],
            "control-characters",
            ("train.en:301 (en)",),
            set(),
        )
        for character in ("\x00", "\x0c", "\x1b", "\x85", "\u2028", "\ufeff", "\r")
    },
    **{
        f"markup {text}": ([(text, "emit na yad")], "markup", ("train.en:301 (en)",), set())
        for text in ("a <b>day</b>", "a day<br/>", "Q&amp;A", "it &#39;s", "<!-- day")
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(fault: str) -> None:
    odd, found, items, excluded = FAULTS[fault]
    verdict, findings = judge(*odd)
    assert set(findings) == {found}
    assert findings[found].items == items
    assert findings[found].severity == ("info" if found == "copies" else "warning")
    assert verdict.exclude == excluded
    assert verdict.usable


@pytest.mark.parametrize(
    ("check_name", "text"),
    [
        *(
            ("mojibake", text)
            for text in (
                "\u00abcaf\u00e9\u00bb",
                "\u00bbSpa\u00df\u00ab",
                "N\u00c3O \u00c0 VISTA",
                "20\u00b0 \u00c5ngstr\u00f6m",
                "\u00e9t\u00e9\u00a0!",
                "\u00c2ge \u00e2ge",
                "\u0421\u043e\u0432\u0430 \u00ab\u0421\u00bb",
                "na\u00efve \u2013 \u20ac 5",
            )
        ),
        *(
            ("markup", text)
            for text in ("3 < 5 and 7 > 2", "R&D; no", "salt & pepper; more", "I <3 you", "<unk")
        ),
    ],
)
def test_sound_text_is_not_taken_for_a_fault(check_name: str, text: str) -> None:
    _, findings = check([*sentences(30), (text, text[::-1])])
    assert check_name not in findings


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize(
    "text",
    [
        "\u00e4ndern f\u00fcr Stra\u00dfen",
        "l'\u00e9t\u00e9 \u2013 \u00e0 No\u00ebl",
        "\u201cgut\u201d \u2026",
        "\u043f\u0440\u0438",
    ],
)
def test_text_read_in_another_encoding_is_found(text: str, encoding: str) -> None:
    broken = text.encode().decode(encoding, errors="replace").replace("\ufffd", "")
    verdict, findings = judge(
        (f"{broken} in the sentence of a person", f"{text} in the sentence of a person")
    )
    assert findings["mojibake"].items == ("train.en:301 (en)",)
    assert not verdict.exclude


def test_letters_of_utf8_read_as_latin_1_are_no_control_characters() -> None:
    broken = "\u0199asar ta yi kyau".encode().decode("latin-1")
    _, findings = judge((f"{broken} in the sentence", "a sentence of a person"))
    assert findings["mojibake"].count == 1
    assert "control-characters" not in findings


def test_lines_that_are_not_utf8_are_named_and_left_out(tmp_path: Path) -> None:
    pairs = sentences(30)
    lines = [target.encode() for _, target in pairs]
    lines[16] = "f\u00fcr uns".encode("latin-1")
    (tmp_path / "train.en").write_text("".join(source + "\n" for source, _ in pairs))
    (tmp_path / "train.xx").write_bytes(b"\n".join(lines))
    settings = PairDataSettings(source="", languages=("en", "xx"), validation_fraction=0.0)
    opened = open_pairs(tmp_path, settings=settings)
    verdict = check_pairs(opened)
    (finding,) = (finding for finding in verdict.findings if finding.check == "undecodable")
    assert finding.items == ("train.xx:17 (xx)",)
    assert finding.severity == "warning"
    assert verdict.exclude == {"train.en:17"}
    assert sum(len(part) for part in opened.without(verdict.exclude).splits.values()) == 29


def test_nothing_usable_is_an_error() -> None:
    verdict, _ = check([("a", ""), ("b", " ")])
    assert not verdict.usable
    assert {finding.check for finding in verdict.of("error")} == {"empty-side", "no-pairs"}
    verdict, findings = check([(source, f"{target} f\ufffdr") for source, target in sentences(30)])
    assert [finding.check for finding in verdict.of("error")] == ["no-pairs", "undecodable"]
    assert "iconv" in findings["undecodable"].remedy


def test_scripts_are_compared_with_those_of_the_languages() -> None:
    assert judge(("\u65e5\u672c\u8a9e\u306e\u6587", "eid netarpaj"))[1]["other-script"].count == 1
    russian = [
        (source, f"{RUSSIAN_DAY} " * (1 + index % 9) + str(index))
        for index, (source, _) in enumerate(sentences(40))
    ]
    assert "unexpected-script" not in check(russian, languages=("en", "ru"))[1]
    exchanged = [
        finding
        for finding in check(russian, languages=("ru_RU", "en"))[0].findings
        if finding.check == "unexpected-script"
    ]
    assert [finding.items for finding in exchanged] == [("ru_RU",), ("en",)]
    assert "written in Latin, not in Cyrillic" in exchanged[0].message


def test_the_usual_length_ratio_is_learned_from_the_data() -> None:
    triple = [(source, f"{target} {target[::-1]} {target}") for source, target in sentences(300)]
    assert "length-ratio" not in check(triple)[1]
    _, findings = check([*triple, ("a day of time " * 9, "a yad na emit " * 8)])
    assert findings["length-ratio"].items == ("train.en:301 (126 : 112 characters)",)


def test_sides_that_do_not_belong_together_are_found() -> None:
    pairs = sentences(400)
    moved = [(source, pairs[(index + 1) % 400][1]) for index, (source, _) in enumerate(pairs)]
    assert "unrelated-lengths" in check(moved)[1]
    assert "unrelated-lengths" not in check(pairs)[1]


def test_lines_that_moved_are_found_by_their_questions() -> None:
    pairs = sentences(300)
    pairs[::3] = [(f"{source}?", f"{target} ?") for source, target in pairs[::3]]
    moved = [(source, pairs[(index + 1) % 300][1]) for index, (source, _) in enumerate(pairs)]
    assert "those 1 line further up" in check(moved)[1]["moved-lines"].message
    assert "moved-lines" not in check(pairs)[1]
    pairs[::2] = [(source, target.rstrip("?")) for source, target in pairs[::2]]
    assert "moved-lines" not in check(pairs)[1]  # as in a language that writes few question marks


@pytest.mark.parametrize(
    ("languages", "is_found"),
    [(("fr", "en"), True), (("xx", "eng"), True), (("en", "fr"), False), (("en_GB", "xx"), False)],
)
def test_sides_that_are_exchanged_are_found(languages: tuple[str, str], is_found: bool) -> None:
    pairs = [(f"the dog is with you {index}", f"le chien est dans une rue {index}") for index in range(30)]
    assert ("exchanged-sides" in check(pairs, languages=languages)[1]) is is_found


def test_many_copies_are_a_warning() -> None:
    _, findings = check([(source, source) for source, _ in sentences(30)])
    assert (findings["copies"].severity, findings["copies"].count) == ("warning", 30)


def test_pairs_in_two_splits_and_pairs_that_train_repeats_are_found() -> None:
    pairs = sentences(300)
    test = [(f" {pairs[4][0]}", pairs[4][1]), (pairs[9][0], "else"), ("new words", "sdrow wen")]
    _, findings = check(pairs, test)
    assert findings["test-in-train"].severity == "warning"
    assert findings["test-in-train"].items == ("test.en:1 = train.en:5",)
    assert findings["test-source-in-train"].severity == "info"
    assert findings["test-source-in-train"].items == ("test.en:2 = train.en:10",)
    _, findings = check([*pairs, pairs[3], pairs[3], (pairs[5][0], f"{pairs[5][1]} x")])
    assert findings["repeated-in-train"].severity == "info"
    assert findings["repeated-in-train"].items == ("train.en:4 = train.en:301 = train.en:302",)
    assert set(findings) == {"few-pairs", "no-test", "repeated-in-train"}


def test_nothing_to_train_on_is_an_error_unless_there_is_a_test() -> None:
    assert [finding.check for finding in check([])[0].of("error")] == ["no-pairs"]
    verdict, findings = check([], sentences(5))
    assert verdict.usable
    assert set(findings) == {"no-train"}


def test_a_verdict_is_json_and_fits_a_terminal() -> None:
    noticed = Finding("warning", "unread-texts", "m", "r", ("a",))
    verdict, _ = check([*sentences(30), ("", "x"), ("a <b>day</b>", "yad")], findings=(noticed,))
    assert noticed in verdict.findings
    tree = json.loads(json.dumps(verdict.to_json()))
    assert tree["exclude"] == ["train.en:31"]
    assert tree["counts"]["languages"] == ["en", "xx"]
    lines = verdict.summary()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "pets: 32 pairs, en to xx (train 32, validation 0, test 0)"
    assert lines[-1].endswith("1 pair left out (5 warnings)")
    assert all(judge_pairs.__doc__ for judge_pairs in CHECKS)


def test_the_time_grows_with_the_number_of_pairs_alone() -> None:
    pairs = sentences(20_000)
    start = time.process_time()
    check(pairs)
    assert time.process_time() - start < 2.0  # 0.2 s measured


def test_multi30k_is_usable_as_a_whole(shared_data: Path) -> None:
    multi30k(shared_data, "train.en")  # skips where there is none
    settings = PairDataSettings(source="", languages=("en", "de"))
    verdict = check_pairs(open_pairs(shared_data / "multi30k", settings=settings))
    findings = {finding.check: finding for finding in verdict.findings}
    assert verdict.usable
    assert not verdict.exclude
    assert set(findings) == {"length-ratio", "markup", "validation-source-in-train", "repeated-in-train"}
    assert findings["length-ratio"].items[0].startswith("train.en:16510 ")
