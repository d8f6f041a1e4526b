from __future__ import annotations

from pathlib import Path

from vitrail.report.sections import read_history


def test_curves_are_sorted_and_later_lines_replace_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 3, "loss": 1.5}\n{"step": 7, "loss": 9}\n{"step": 5, "loss": 1.2}\n{"step": 7, "loss": 1}\n'
    )
    assert read_history(path).curves["loss"] == ([3, 5, 7], [1.5, 1.2, 1])


def test_lines_cut_off_and_values_that_are_missing_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 3, "loss": null}\n[1]\n{"loss": 4}\n{"step": 4, "lo')
    assert "loss" not in read_history(path).curves


def test_validation_scores_become_curves_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 2, "scores": {"accuracy": 0.25, "nll": 1.5}}\n{"step": 2, "loss": 3, "rate": 0.5}\n'
    )
    history = read_history(path)
    found = [history.curves[name] for name in ("accuracy", "nll", "rate")]
    assert found == [([2], [0.25]), ([2], [1.5]), ([2], [0.5])]


def test_parts_of_the_loss_have_curves_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 2, "loss": 3.0, "parts": {"l1": 0.5, "giou": 1.5}}\n'
        '{"step": 1, "loss": 4.0, "parts": {"l1": 0.75}}\n'
        '{"step": 2, "scores": {"ap": 0.25, "ap50": 0.5}}\n'
    )
    history = read_history(path)
    assert history.parts == {"l1": ([1.0, 2.0], [0.75, 0.5]), "giou": ([2.0], [1.5])}
    assert (history.curves["ap"], history.curves["ap50"]) == (([2.0], [0.25]), ([2.0], [0.5]))
