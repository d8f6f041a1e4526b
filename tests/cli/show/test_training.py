"""What an evaluation shows: the scores, and a signature that fits the screen."""

from __future__ import annotations

import pytest

from vitrail.cli.show import show_report
from vitrail.train.evaluate import Report


def test_a_long_signature_takes_several_lines_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    signature = {
        "data": "flickr8k@6f1c9a02b7d4e815",
        "search": "beam 5, length penalty 0.7, at most 30 tokens",
        "scoring": "words lower-case,no punctuation; nrefs 5; case mixed; tok none; sacrebleu 2.6.0",
    }
    report = Report(signature=signature, scores={"bleu4": 0.25}, tables={})

    show_report(report)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bleu4  0.2500"
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[1:]) == report.signature_line
