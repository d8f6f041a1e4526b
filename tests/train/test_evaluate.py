from __future__ import annotations

import multiprocessing
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from vitrail import __version__
from vitrail.core.errors import DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSample
from vitrail.tasks.classification.objective import ClassificationObjective
from vitrail.train.evaluate import Report, evaluate, run_evaluator

SIZE = (2, 3)


class Toys:
    """Images of one grey level each; the label is the level's third, and every fifth label is wrong."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def load(self, index: int, generator: torch.Generator | None) -> ImageSample:
        assert generator is None, "evaluation must not vary images"
        level = index % 3
        label = (level + 1) % 3 if index % 5 == 4 else level
        return ImageSample(torch.full((3, *SIZE), 100 * level, dtype=torch.uint8), label, index)


class Levels(nn.Module):
    """Recognise the grey level."""

    def __init__(self) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(20.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert not self.training
        level = images.mean(dim=(1, 2, 3))[:, None] - torch.tensor([0, 100 / 255, 200 / 255])
        return -self.sharpness * level.square()


def toy_task() -> ClassificationObjective:
    return ClassificationObjective(3, Preprocessing(image_size=SIZE, mean=(0, 0, 0), std=(1, 1, 1)))


def test_report_holds_scores_tables_and_signature() -> None:
    report = evaluate(
        toy_task(),
        Levels(),
        Toys(20),
        batch_size=7,
        class_names=("dark", "grey", "light"),
        signature={"data": "toys@1a2b", "split": "test"},
    )

    assert report.scores["accuracy"] == pytest.approx(0.8)
    assert (
        report.signature_line
        == f"data:toys@1a2b|split:test|samples:20|precision:float32|vitrail:{__version__}"
    )
    assert report.tables["indices"] == list(range(20))


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_scores_do_not_depend_on_the_batch_size(batch_size: int) -> None:
    expected = evaluate(toy_task(), Levels(), Toys(11), batch_size=11)
    assert evaluate(toy_task(), Levels(), Toys(11), batch_size=batch_size) == expected


def test_report_survives_the_way_through_a_file(tmp_path: Path) -> None:
    report = evaluate(toy_task(), Levels(), Toys(8), batch_size=3, class_names=("a", "b", "c"))
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_missing_report_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        Report.load(tmp_path / "none.json")
    (tmp_path / "report.json").write_text('{"scores": 3}')
    with pytest.raises(DataError, match=r"report\.json cannot be used: .*; scores must be a dictionary"):
        Report.load(tmp_path / "report.json")


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(DataError, match="holds no sample"):
        evaluate(toy_task(), Levels(), Toys(0), batch_size=3)


def test_the_mode_of_the_model_is_restored() -> None:
    model = Levels().train()
    evaluate(toy_task(), model, Toys(4), batch_size=3)
    assert model.training


def test_bfloat16_runs_and_signs_itself() -> None:
    report = evaluate(toy_task(), Levels(), Toys(20), batch_size=7, precision="bfloat16")
    assert "precision:bfloat16" in report.signature_line
    assert report.scores["accuracy"] == pytest.approx(0.8)


def _evaluate_in_process(rank: int, rendezvous: Path) -> dict[str, torch.Tensor]:
    """Evaluate as one of two processes; what was found is left beside the rendezvous."""
    address = f"file://{rendezvous}"
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(seconds=90)
    )
    try:
        evaluator = toy_task().evaluator()
        run_evaluator(evaluator, toy_task(), Levels(), Toys(11), batch_size=2)
    finally:
        dist.destroy_process_group()
    torch.save(evaluator.state(), rendezvous.with_suffix(f".{rank}"))
    return evaluator.state()


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    alone = toy_task().evaluator()
    run_evaluator(alone, toy_task(), Levels(), Toys(11), batch_size=11)
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=_evaluate_in_process, args=(1, tmp_path / "meet"))
    other.start()

    first = _evaluate_in_process(0, tmp_path / "meet")

    other.join(timeout=60)
    assert other.exitcode == 0
    second = torch.load(tmp_path / "meet.1", weights_only=True)
    for name, expected in alone.state().items():
        torch.testing.assert_close(first[name], expected, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(second[name], first[name], rtol=0, atol=0)
