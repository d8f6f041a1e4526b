"""What docs/serve.md says of the server is so."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.tasks.serving import ONLY_EXPLAINING, SERVED

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = (REPOSITORY / "docs" / "serve.md").read_text(encoding="utf-8")
KINDS = {
    "classifiers": "classification",
    "detectors": "detection",
    "captioners": "captioning",
    "CLIPs": "contrastive",
    "translators": "translation",
}


def test_every_option_of_every_kind_is_listed() -> None:
    table = DOCUMENT.split("| option | models |")[1].split("\n\n")[0]
    listed: dict[str, set[str]] = {kind: set() for kind in KINDS}
    explaining: set[str] = set()
    for row in table.splitlines()[2:]:
        _, options, kinds, is_explaining, _ = row.split("|")
        names = set(re.findall(r"`(\w+)`", options))
        for kind in kinds.split(","):
            listed[kind.strip()] |= names
        explaining |= names if is_explaining.strip() else set()

    assert listed == {kind: set(SERVED[task].option_names) for kind, task in KINDS.items()}
    assert explaining == set(ONLY_EXPLAINING)


def test_the_command_of_the_benchmark_has_the_options_that_it_takes() -> None:
    (command,) = re.findall(r"^python benchmarks/serving.py .*", DOCUMENT, re.MULTILINE)
    script = (REPOSITORY / "benchmarks" / "serving.py").read_text(encoding="utf-8")

    assert set(re.findall(r"--\w+", command)) <= set(re.findall(r'add_argument\("(--\w+)"', script))
    assert re.fullmatch(r"python benchmarks/serving.py( --\w+ \S+)+", command)
