from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.settings import AugmentSettings
from vitrail.data.source import ImageSample
from vitrail.tasks.classification.objective import ClassificationObjective, ImageBatch
from vitrail.train.objective import Counting, Ranking

CPU = torch.device("cpu")
PREPROCESSING = Preprocessing(image_size=(5, 7), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))


def samples(count: int = 3) -> list[ImageSample]:
    generator = torch.Generator().manual_seed(2)
    return [
        ImageSample(
            torch.randint(256, (3, 5, 7), generator=generator, dtype=torch.uint8), index % 3, 10 + index
        )
        for index in range(count)
    ]


class Fixed(nn.Module):
    """Return the next of some logits, whatever the images."""

    def __init__(self, logits: list[torch.Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.logits: Iterator[torch.Tensor] = iter(logits)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return next(self.logits) * self.scale


def batch_of(labels: list[int], indices: list[int], classes: int = 3) -> ImageBatch:
    chosen = torch.tensor(labels)
    return ImageBatch(
        images=torch.zeros(len(labels), 3, 2, 2),
        targets=torch.eye(classes)[chosen],
        labels=chosen,
        indices=torch.tensor(indices),
    )


def test_collate_normalises_and_keeps_labels_and_indices() -> None:
    given = samples()
    batch = ClassificationObjective(4, PREPROCESSING).collate(given, None)
    torch.testing.assert_close(batch.images[1, 2], (given[1].image[2].float() / 255 - 0.3) / 0.7)
    assert batch.labels.tolist() == [0, 1, 2]
    assert batch.indices.tolist() == [10, 11, 12]
    assert batch.targets.tolist() == torch.eye(4)[:3].tolist()
    assert len(ClassificationObjective(3, PREPROCESSING).collate(samples(5), None)) == 5
    moved = batch.to(torch.device("meta"))
    tensors = (moved.images, moved.targets, moved.labels, moved.indices)
    assert {tensor.device for tensor in tensors} == {torch.device("meta")}


def test_training_batches_are_mixed_and_evaluation_batches_are_not() -> None:
    augment = AugmentSettings.from_tree({"mixup": 1.0})
    task = ClassificationObjective(3, PREPROCESSING, augment)
    mixed = task.collate(samples(), torch.Generator().manual_seed(1)).to(CPU)
    plain = task.collate(samples(), None)
    assert ((mixed.targets > 0).sum(-1) == 2).all()
    torch.testing.assert_close(mixed.targets.sum(-1), torch.ones(3))
    assert mixed.labels.tolist() == mixed.targets.argmax(-1).tolist()
    assert plain.targets.max(-1).values.tolist() == [1, 1, 1]


def test_training_batches_are_augmented_by_their_generator_alone() -> None:
    task = ClassificationObjective(3, PREPROCESSING, AugmentSettings.from_tree({"flip": True, "shift": 2}))
    first, again, other = (
        task.collate(samples(), torch.Generator().manual_seed(seed)).to(CPU).images for seed in (4, 4, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_loss_is_the_sum_of_cross_entropies() -> None:
    logits = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3]])
    loss = ClassificationObjective(3, PREPROCESSING).loss(Fixed([logits]), batch_of([0, 1], [0, 1]))
    expected = -math.log(math.exp(2) / (math.exp(2) + math.exp(0.5) + math.exp(-1)))
    expected -= math.log(math.exp(0.2) / (math.exp(0.1) + math.exp(0.2) + math.exp(0.3)))
    assert loss.total.item() == pytest.approx(expected, rel=1e-6)
    assert loss.count.item() == 2
    assert loss.parts["correct"].item() == 1


def test_label_smoothing_equals_that_of_torch() -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(7))
    batch = batch_of([0, 1, 2, 2, 0], [0, 1, 2, 3, 4])
    loss = ClassificationObjective(3, PREPROCESSING, label_smoothing=0.2).loss(Fixed([logits]), batch)
    expected = nn.functional.cross_entropy(logits, batch.labels, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(loss.total, expected)


def test_loss_of_narrow_logits_is_float32_and_differentiable() -> None:
    model = Fixed([torch.randn(2, 3).bfloat16()])
    loss = ClassificationObjective(3, PREPROCESSING).loss(model, batch_of([0, 1], [0, 1]))
    loss.total.backward()
    assert loss.total.dtype == loss.count.dtype == torch.float32
    assert model.scale.grad is not None


def test_evaluator_counts_correct_images_and_their_likelihood() -> None:
    evaluator = ClassificationObjective(3, PREPROCESSING).evaluator()
    assert evaluator.result() == {"accuracy": 0.0, "nll": 0.0, "count": 0}
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]]))
    evaluator.update(Fixed([logits]), batch_of([0, 1], [4, 2]))
    result = evaluator.result()
    assert result["accuracy"] == 0.5
    assert result["count"] == 2
    assert result["nll"] == pytest.approx(-(math.log(0.7) + math.log(0.25)) / 2, rel=1e-6)


def test_two_evaluators_joined_equal_one_and_repeated_images_count_once() -> None:
    task = ClassificationObjective(3, PREPROCESSING)
    first, second, whole = task.evaluator(), task.evaluator(), task.evaluator()
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(6))
    whole.update(Fixed([logits]), batch_of([0, 1, 2, 0, 1], [0, 1, 2, 3, 4]))
    first.update(Fixed([logits[[4, 0, 2]]]), batch_of([1, 0, 2], [4, 0, 2]))
    second.update(Fixed([logits[[1, 3, 2]]]), batch_of([1, 0, 2], [1, 3, 2]))
    first.absorb(second.state())
    assert first.result() == whole.result()
    for name, value in whole.state().items():
        assert torch.equal(first.state()[name], value)


def test_models_are_chosen_by_accuracy_or_by_the_class_mean_where_that_is_the_score() -> None:
    task = ClassificationObjective(3, PREPROCESSING)
    assert isinstance(task, Ranking)
    assert task.best_by == ("accuracy", "max")
    assert task.best_by[0] in task.evaluator().result()
    assert not isinstance(task, Counting)  # its items are samples

    task = ClassificationObjective(3, PREPROCESSING, with_class_mean=True)
    assert task.best_by == ("balanced_accuracy", "max")
    assert task.best_by[0] in task.evaluator().result()
    evaluator = task.evaluator()
    logits = 5 * torch.eye(3)[[0, 0, 0, 0]]
    evaluator.update(Fixed([logits]), batch_of([0, 0, 0, 1], [0, 1, 2, 3]))
    assert evaluator.result()["accuracy"] == 0.75
    assert evaluator.result()["balanced_accuracy"] == 0.5
