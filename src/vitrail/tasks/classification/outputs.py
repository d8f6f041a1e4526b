"""The outputs of a model on a source: logits and labels."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.tasks.classification.objective import ImageBatch
from vitrail.train.objective import first_of_each


class LogitsEvaluator:
    """Collect the logits of every image, on the CPU, as an ``Evaluator``."""

    def __init__(self, num_classes: int) -> None:
        self._logits = [torch.empty(0, num_classes)]
        self._labels = [torch.empty(0, dtype=torch.int64)]
        self._indices = [torch.empty(0, dtype=torch.int64)]

    def update(self, model: nn.Module, batch: ImageBatch) -> None:
        self._logits.append(model(batch.images).detach().float().cpu())
        self._labels.append(batch.labels.cpu())
        self._indices.append(batch.indices.cpu())

    def state(self) -> dict[str, Tensor]:
        indices = torch.cat(self._indices)
        first = first_of_each(indices)
        return {
            "logits": torch.cat(self._logits)[first],
            "labels": torch.cat(self._labels)[first],
            "indices": indices[first],
        }

    def absorb(self, state: dict[str, Tensor]) -> None:
        self._logits.append(state["logits"])
        self._labels.append(state["labels"])
        self._indices.append(state["indices"])

    def result(self) -> dict[str, Any]:
        logits, labels = self.outputs()
        correct = int((logits.argmax(dim=-1) == labels).sum())
        return {"accuracy": correct / max(len(labels), 1), "count": len(labels)}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        return {"accuracy": self.result()["accuracy"]}, {}

    def outputs(self) -> tuple[Float[Tensor, "n classes"], Int[Tensor, " n"]]:
        """Return the logits and labels of all images, in source order."""
        state = self.state()
        return state["logits"], state["labels"]
