"""What a model says of every image of a source, collected as it is: logits, and the labels beside them."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.tasks.classification.objective import ImageBatch
from vitrail.train.objective import first_of_each


class LogitsEvaluator:
    """Collect the logits of every image, on the processor; the methods are those of ``Evaluator``.

    Args:
        num_classes: width of the logits.
    """

    def __init__(self, num_classes: int) -> None:
        self._logits = [torch.empty(0, num_classes)]
        self._labels = [torch.empty(0, dtype=torch.int64)]
        self._indices = [torch.empty(0, dtype=torch.int64)]

    def update(self, model: nn.Module, batch: ImageBatch) -> None:
        """Add the model's logits for one batch."""
        self._logits.append(model(batch.images).detach().float().cpu())
        self._labels.append(batch.labels.cpu())
        self._indices.append(batch.indices.cpu())

    def state(self) -> dict[str, Tensor]:
        """Return what was collected, images in the order of their source and each only once."""
        indices = torch.cat(self._indices)
        first = first_of_each(indices)
        return {
            "logits": torch.cat(self._logits)[first],
            "labels": torch.cat(self._labels)[first],
            "indices": indices[first],
        }

    def absorb(self, state: dict[str, Tensor]) -> None:
        """Add what another process collected, as its ``state`` returned it."""
        self._logits.append(state["logits"])
        self._labels.append(state["labels"])
        self._indices.append(state["indices"])

    def result(self) -> dict[str, Any]:
        """Return accuracy and the number of images."""
        logits, labels = self.outputs()
        correct = int((logits.argmax(dim=-1) == labels).sum())
        return {"accuracy": correct / max(len(labels), 1), "count": len(labels)}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the accuracy, and no tables."""
        return {"accuracy": self.result()["accuracy"]}, {}

    def outputs(self) -> tuple[Float[Tensor, "n classes"], Int[Tensor, " n"]]:
        """Return the logits and labels of all images, in the order of their source."""
        state = self.state()
        return state["logits"], state["labels"]
