"""What a training shows while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.cli.show import show_training
from vitrail.tasks.training import Began, Finished, PipelineEvent
from vitrail.train.events import Logged, Saved, Started, Stepped

FOLDER = Path("runs") / "first"
EVENTS: list[PipelineEvent] = [
    Began(FOLDER),
    Saved(0, FOLDER / "checkpoints"),
    Started(0, 3),
    Stepped(3, 3),
    Logged(3, 3, 0.25, {"correct": 0.75}, 0.1, 1.0, 64.0, 2.0),
    Finished(FOLDER),
]


def test_a_training_says_where_it_writes_how_it_goes_and_what_follows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    with show_training() as listen:
        for event in EVENTS:
            listen(event)

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"run {FOLDER}", "training for 3 steps"]
    assert lines[2].startswith("step 3/3, loss 0.250, correct 0.750, 64 samples/s")
    assert lines[3:] == ["evaluating and writing the report ..."]
