"""A task without images, small enough to train in a fraction of a second, and runnable as a script.

The script trains under torchrun: ``torchrun --nproc-per-node 2 toy.py FOLDER``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.core.config import parse_assignments
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.settings import ClassificationExperiment, ImageDataSettings
from vitrail.tasks.registry import open_run
from vitrail.train.loop import fit
from vitrail.train.objective import Loss
from vitrail.train.processes import Processes, join_processes
from vitrail.train.run import Run
from vitrail.train.settings import Experiment, OptimSettings, TrainSettings

WIDTH = 5


class Pair(NamedTuple):
    """A vector and the number that belongs to it."""

    x: Tensor
    y: Tensor
    index: int


@dataclass(frozen=True)
class Pairs:
    """A batch of pairs."""

    x: Tensor
    y: Tensor
    indices: Tensor

    def to(self, device: torch.device) -> Self:
        return type(self)(self.x.to(device), self.y.to(device), self.indices.to(device))

    def __len__(self) -> int:
        return len(self.y)


class NoisySource:
    """Numbers that a fixed function gives for vectors, varied in training."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self._x = torch.randn(size, WIDTH, generator=generator)
        self._y = (self._x[:, 0] - 0.5 * self._x[:, 1]).sin()

    def __len__(self) -> int:
        return len(self._y)

    def load(self, index: int, generator: torch.Generator | None) -> Pair:
        noise = 0.0 if generator is None else 0.1 * torch.randn(WIDTH, generator=generator)
        return Pair(self._x[index] + noise, self._y[index], index)


class PlannedSource(NoisySource):
    """The same numbers in batches of one, two and more, none above the size that is asked for."""

    def plan_batches(self, batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
        order = (
            range(len(self)) if generator is None else torch.randperm(len(self), generator=generator).tolist()
        )
        batches: list[list[int]] = [[]]
        for index in order:
            if len(batches[-1]) > len(batches) % batch_size:
                batches.append([])
            batches[-1].append(index)
        return batches


class SquaresObjective:
    """Least squares."""

    best_by: tuple[str, Literal["max", "min"]] = ("mse", "min")

    def collate(self, samples: Sequence[Pair], generator: torch.Generator | None) -> Pairs:
        x, y = torch.stack([sample.x for sample in samples]), torch.stack([sample.y for sample in samples])
        return Pairs(x, y, torch.tensor([sample.index for sample in samples]))

    def loss(self, model: nn.Module, batch: Pairs) -> Loss:
        error = model(batch.x).squeeze(-1).float() - batch.y
        parts = {"absolute": error.detach().abs().sum()}
        return Loss(error.square().sum(), error.new_tensor(len(batch)), parts)

    def evaluator(self) -> SquaresEvaluator:
        return SquaresEvaluator()


class SquaresEvaluator:
    """The mean of squares over what was seen."""

    def __init__(self) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64)

    def update(self, model: nn.Module, batch: Pairs) -> None:
        error = model(batch.x).squeeze(-1).double() - batch.y
        self._sums += torch.stack([error.square().sum(), torch.tensor(float(len(batch)))])

    def state(self) -> dict[str, Tensor]:
        return {"sums": self._sums}

    def absorb(self, state: dict[str, Tensor]) -> None:
        self._sums += state["sums"]

    def result(self) -> dict[str, Any]:
        return {"mse": float(self._sums[0] / self._sums[1]), "count": int(self._sums[1])}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        return self.result(), {}


class Layer(nn.Module):
    """A residual layer with dropout."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(F.gelu(self.linear(self.norm(x))))


class Tower(nn.Module):
    """A few residual layers between a stem and a head."""

    def __init__(self, dim: int = 7, depth: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, dim)
        self.position_table = nn.Parameter(torch.zeros(1, dim))
        self.blocks = nn.ModuleList([Layer(dim, dropout) for _ in range(depth)])
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) + self.position_table
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def toy_experiment(**changes: Any) -> Experiment:
    """Return settings for the toy; ``changes`` name fields by dotted paths with ``__`` for the dot."""
    experiment = ClassificationExperiment(
        data=ImageDataSettings(source="toy", image_size=(1, 1)),
        model={"name": "vit_nano"},
        optim=OptimSettings(learning_rate=0.01, ema_fraction=0.1),
        train=TrainSettings(steps=23, batch_size=6, seed=11, validations=3),
    )
    return experiment.with_changes({path.replace("__", "."): value for path, value in changes.items()})


def toy_model(dropout: float = 0.2) -> Tower:
    """Return the model with its fixed initial weights."""
    torch.manual_seed(2)
    return Tower(dropout=dropout)


def train_toy(
    link: Path,
    processes: Processes,
    settings: Sequence[str] = (),
    dropout: float = 0.2,
    source: type[NoisySource] = NoisySource,
) -> Run:
    """Train in a run directory of a given name, resuming what is there, and save the finished model."""
    if processes.is_first and not link.exists():
        experiment = toy_experiment().with_changes(parse_assignments(settings))
        made = Run.create(link.parent / "made", experiment)
        made.path.rename(link)
    processes.wait()
    run = open_run(link)
    result = fit(
        SquaresObjective(),
        toy_model(dropout),
        source(31),
        source(13),
        run=run,
        processes=processes,
    )
    if processes.is_first:
        about = {"scores": result.scores, "steps": result.steps}
        LoadedModel(result.model, model_settings={}, preprocessing={}, class_names=[], about=about).save(
            run.model_folder
        )
    return run


def main(root: Path) -> None:
    """Train without dropout, replicated and then sharded, under torchrun."""
    parts = ["train.accumulate=2", "train.keep=best", "train.validations=9"]
    with join_processes("cpu") as processes:
        for parallel in ("ddp", "fsdp"):
            settings = [f"train.parallel={parallel}"]
            train_toy(root / parallel, processes, settings, dropout=0.0)
            train_toy(
                root / f"{parallel}-parts", processes, [*settings, *parts], dropout=0.0, source=PlannedSource
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
