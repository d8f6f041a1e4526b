"""Run an evaluator over data and sign the scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.errors import DataError
from vitrail.core.sealed import read_sealed, write_sealed
from vitrail.data.stream import SampleSource, evaluation_batches
from vitrail.train.machine import Precision, autocast
from vitrail.train.objective import Evaluator, Objective, Signing


class Report(Config):
    """The scores of one evaluation, and what they were measured on."""

    signature: dict[str, str]
    """What must agree for scores to be comparable: data, split, input, samples, precision, version; for text
    also decoding and scoring.
    """
    scores: dict[str, float]
    """The headline scores by name."""
    tables: dict[str, Any]
    """Details behind the scores; each task defines their fields."""
    class_names: tuple[str, ...] = ()
    """In label order."""

    @property
    def signature_line(self) -> str:
        """Return the signature on one line, in the manner of sacreBLEU."""
        return join_signature(self.signature)

    @property
    def measured_on(self) -> str:
        """Return in a sentence what the scores were measured on; empty if the signature does not say.

        >>> signature = {"data": "toys@1a2b", "split": "test (from the source)", "samples": "20"}
        >>> Report(signature=signature, scores={}, tables={}).measured_on
        'Measured on 20 test samples of toys (from the source).'
        """
        if not {"data", "split", "samples"} <= self.signature.keys():
            return ""
        name, samples = self.signature["data"].rpartition("@")[0], int(self.signature["samples"])
        part, _, origin = self.signature["split"].partition(" ")
        read = f", input {self.signature['input']}" if "input" in self.signature else ""
        met = f", classes {self.signature['classes']}" if "classes" in self.signature else ""
        measured = f"Measured on {samples:,} {part} samples of {name}{origin and ' '}{origin}{read}{met}."
        if "changed" in self.signature:
            measured += (
                " The data has changed since the training and was divided anew: samples of the training may "
                "be among these, and the scores too high."
            )
        if "copies" in self.signature:
            measured += f" {self.signature['copies']} are in the training data, too: the scores are too high."
        return measured

    def save(self, path: Path) -> None:
        """Write the report as JSON; errors are those of ``atomic_write``."""
        write_sealed(path, self.model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a report that ``save`` wrote; ``DataError`` if there is none."""
        expected, remedy = "a report.json that an evaluation wrote", "Evaluate the run again"
        tree = read_sealed(path, expected=expected, remedy=remedy, error=DataError)
        return cls.from_file(path, tree, expected=expected, remedy=remedy, error=DataError)


def join_signature(signature: Mapping[str, str]) -> str:
    """Return a signature on one line, in the manner of sacreBLEU."""
    return "|".join(f"{name}:{value}" for name, value in signature.items())


def evaluate(
    objective: Objective,
    model: nn.Module,
    source: SampleSource,
    *,
    batch_size: int,
    precision: Precision = "float32",
    num_workers: int = 0,
    class_names: tuple[str, ...] = (),
    signature: Mapping[str, str] | None = None,
) -> Report:
    """Score a model on every sample of a source.

    Under ``torch.distributed`` each process scores its share, and every process returns the full report.

    Args:
        model: already on its device; its mode is restored afterwards.
        source: samples, without augmentation.
        batch_size: per forward pass and process; does not change the scores.
        precision: of the matrix products; models are used in float32, and in bfloat16 a score may change with
            the batch size.
        signature: what the caller knows of the data: ``data`` (fingerprint), ``split``, ``input``.

    Raises:
        DataError: the source is empty.
    """
    if not len(source):
        raise DataError(
            "there is nothing to evaluate on, the split holds no sample",
            expected="at least one sample",
            remedy="Choose another split or data set",
        )
    evaluator = objective.evaluator()
    run_evaluator(
        evaluator,
        objective,
        model,
        source,
        batch_size=batch_size,
        precision=precision,
        num_workers=num_workers,
    )
    scores, tables = evaluator.report()
    signed = dict(signature or {})
    if isinstance(evaluator, Signing):
        signed |= evaluator.signature(tables)
    signed |= {"samples": str(len(source)), "precision": precision, "vitrail": __version__}
    return Report(signature=signed, scores=scores, tables=tables, class_names=class_names)


def run_evaluator(
    evaluator: Evaluator,
    objective: Objective,
    model: nn.Module,
    source: SampleSource,
    *,
    batch_size: int,
    precision: Precision = "float32",
    num_workers: int = 0,
) -> None:
    """Update an evaluator on every sample, and merge the states of all processes."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    batches = evaluation_batches(
        source, objective, batch_size=batch_size, num_workers=num_workers, rank=rank, world_size=world_size
    )
    for batch in batches:  # outside inference mode: a source may fill its cache of pixels now
        with torch.inference_mode(), autocast(precision, device):
            evaluator.update(model, batch.to(device))
    model.train(was_training)
    if world_size > 1:
        states: list[Any] = [None] * world_size
        dist.all_gather_object(states, evaluator.state())
        for other, state in enumerate(states):
            if other != rank:
                evaluator.absorb(state)
