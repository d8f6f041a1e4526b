"""Image classification: one label per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from vitrail.data.augment import augment, mix
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.settings import AugmentSettings
from vitrail.data.source import ImageSample
from vitrail.train.objective import Loss, TensorBatch, first_of_each


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """Images with class targets."""

    images: Float[Tensor, "batch 3 height width"]
    targets: Float[Tensor, "batch classes"]
    """Class probabilities: one-hot, or mixed by mixup and CutMix."""
    labels: Int[Tensor, " batch"]
    """The class with the largest target."""
    indices: Int[Tensor, " batch"]
    """Index of each image in its source."""


@dataclass(frozen=True)
class TrainingBatch(TensorBatch):
    """Images as they were read, which are augmented and mixed on the device that they are moved to."""

    images: UInt8[Tensor, "batch 3 height width"]
    targets: Float[Tensor, "batch classes"]
    indices: Int[Tensor, " batch"]
    preprocessing: Preprocessing
    augment: AugmentSettings
    seed: int
    """Of the augmentation, which does not depend on the device but for rounding."""

    def to(self, device: torch.device) -> ImageBatch:  # type: ignore[override]
        moved, generator = super().to(device), torch.Generator().manual_seed(self.seed)
        images = augment(self.preprocessing.normalise(moved.images), self.augment, generator)
        images, targets = mix(images, moved.targets, self.augment, generator)
        return ImageBatch(images, targets, targets.argmax(dim=-1), moved.indices)


class ClassificationObjective:
    """Collation, cross entropy and scores of a classifier.

    Args:
        preprocessing: turns uint8 images into model input.
        augment: batch-wise augmentation and mixing; random crops are done by the source.
        label_smoothing: probability mass spread evenly over all classes (Szegedy et al. 2016, section 7).
        targets: class probabilities of each training image, by index, instead of its label.
        with_class_mean: also compute mean per-class accuracy at every validation, and select by it.
    """

    headline = "accuracy"

    def __init__(
        self,
        num_classes: int,
        preprocessing: Preprocessing,
        augment: AugmentSettings | None = None,
        label_smoothing: float = 0.0,
        *,
        targets: Float[Tensor, "images classes"] | None = None,
        with_class_mean: bool = False,
    ) -> None:
        self.num_classes, self.preprocessing = num_classes, preprocessing
        self.with_class_mean = with_class_mean
        self.augment = AugmentSettings.from_tree({}) if augment is None else augment
        self.label_smoothing = label_smoothing
        self.targets = targets

    @property
    def best_by(self) -> tuple[str, Literal["max", "min"]]:
        return ("balanced_accuracy" if self.with_class_mean else "accuracy"), "max"

    def collate(
        self, samples: Sequence[Any], generator: torch.Generator | None
    ) -> ImageBatch | TrainingBatch:
        """Stack images, and normalise them; with a generator, to be augmented and mixed on their device."""
        images = torch.stack([sample.image for sample in samples])
        labels = torch.tensor([sample.label for sample in samples], dtype=torch.int64)
        indices = torch.tensor([sample.index for sample in samples], dtype=torch.int64)
        targets = F.one_hot(labels, self.num_classes).float()
        if generator is None:
            return ImageBatch(self.preprocessing.normalise(images), targets, labels, indices)
        targets = targets if self.targets is None else self.targets[indices]
        seed = generator.initial_seed()
        return TrainingBatch(images, targets, indices, self.preprocessing, self.augment, seed)

    def loss(self, model: nn.Module, batch: ImageBatch) -> Loss:
        """Sum the cross entropy with label smoothing over the images, in float32.

        Targets y become (1 - s) y + s / classes with label smoothing s.
        """
        logits = model(batch.images).float()
        smoothed = (1 - self.label_smoothing) * batch.targets + self.label_smoothing / self.num_classes
        return Loss(
            total=F.cross_entropy(logits, smoothed, reduction="sum"),
            count=logits.new_full((), len(batch)),
            parts={"correct": (logits.detach().argmax(dim=-1) == batch.labels).sum().float()},
        )

    def unlabelled(self, image: UInt8[Tensor, "3 height width"], index: int) -> ImageSample:
        return ImageSample(image=image, label=0, index=index)

    def inputs(self, batch: ImageBatch) -> tuple[Tensor]:
        return (batch.images,)

    def evaluator(self) -> ClassificationEvaluator:
        return ClassificationEvaluator(self.num_classes, with_class_mean=self.with_class_mean)


class LogitsEvaluator:
    """Collect the logits of every image, on the CPU, as an ``Evaluator``."""

    def __init__(self, num_classes: int) -> None:
        nothing = torch.empty(0, dtype=torch.int64)
        self._found = [{"outputs": torch.empty(0, num_classes), "labels": nothing, "indices": nothing}]

    def update(self, model: nn.Module, batch: ImageBatch) -> None:
        self.add(model(batch.images), batch.labels, batch.indices)

    def add(
        self, logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], indices: Int[Tensor, " n"]
    ) -> None:
        """Add the logits of samples with their labels, and their indices in the source."""
        outputs = self._convert(logits.detach().float())
        found = {"outputs": outputs, "labels": labels, "indices": indices}
        self._found.append({name: tensor.cpu() for name, tensor in found.items()})

    def state(self) -> dict[str, Tensor]:
        """Return what was collected, in source order and without duplicates.

        Scores are therefore independent of batch size and number of processes.
        """
        joined = {name: torch.cat([part[name] for part in self._found]) for name in self._found[0]}
        first = first_of_each(joined["indices"])
        return {name: tensor[first] for name, tensor in joined.items()}

    def absorb(self, state: dict[str, Tensor]) -> None:
        self._found.append(state)

    def result(self) -> dict[str, Any]:
        outputs, labels = self.outputs()
        correct = int((outputs.argmax(dim=-1) == labels).sum())
        return {"accuracy": correct / max(1, len(labels)), "count": len(labels)}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        return {"accuracy": self.result()["accuracy"]}, {}

    def outputs(self) -> tuple[Float[Tensor, "n classes"], Int[Tensor, " n"]]:
        """Return the outputs and labels of all images, in source order."""
        state = self.state()
        return state["outputs"], state["labels"]

    def _convert(self, logits: Float[Tensor, "n classes"]) -> Float[Tensor, "n classes"]:
        return logits


class ClassificationEvaluator(LogitsEvaluator):
    """Collect the class probabilities of every image, and score them."""

    def __init__(self, num_classes: int, *, with_class_mean: bool = False) -> None:
        super().__init__(num_classes)
        self._with_class_mean = with_class_mean

    def result(self) -> dict[str, Any]:
        from vitrail.tasks.classification.scores import mean_class_accuracy, negative_log_likelihood

        probabilities, labels = self.outputs()
        scores = super().result()
        count = scores.pop("count")
        if self._with_class_mean:
            predicted = probabilities.argmax(dim=-1)
            scores["balanced_accuracy"] = mean_class_accuracy(predicted, labels) if count else 0.0
        nll = negative_log_likelihood(probabilities, labels) if count else 0.0
        return {**scores, "nll": nll, "count": count}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        from vitrail.tasks.classification.scores import classification_tables, headline_scores

        state = self.state()
        tables = classification_tables(state["outputs"], state["labels"], state["indices"])
        return headline_scores(tables, state["outputs"], state["labels"]), tables.model_dump(mode="json")

    def _convert(self, logits: Float[Tensor, "n classes"]) -> Float[Tensor, "n classes"]:
        return logits.softmax(dim=-1)
