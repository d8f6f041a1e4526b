"""Claim: a Vision Transformer needs more images than a ResNet of its size for the same accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageDataset, ImageSplit
from vitrail.data.preprocessing import Preprocessing
from vitrail.lab import harness as lab
from vitrail.models.ablations import ConvStemConfig
from vitrail.models.contract import ImageModelConfig
from vitrail.models.resnet import ResNetConfig
from vitrail.models.vit import ViTConfig
from vitrail.tasks.classification.opening import open_dataset

ModelName = Literal["ViT", "hybrid", "ResNet"]
MODELS: tuple[ModelName, ...] = get_args(ModelName)
FALLBACK = "digits"  # comes with scikit-learn
BEHIND, CAUGHT_UP = 0.03, 0.5
WARM_UP = 0.1  # of the steps
TEST_BATCH = 250


class HungerRow(lab.SeededRow):
    """A model trained from scratch on the first images of a random order."""

    data: str
    """The data set."""
    model: ModelName
    """ViT with patches of 4 x 4, the same behind two convolutions, or a ResNet of basic blocks."""
    num_images: int
    """Number of training images."""
    accuracy: float
    """Test accuracy."""
    parameters: int
    """Number of learned parameters."""


class DataHunger(lab.SeededClaim):
    """Train a ViT, a hybrid and a ResNet of equal size on ever more images, for the same number of steps."""

    statement = (
        "Trained from random weights on few images, a ViT is less accurate than a ResNet of its size; with "
        "more images it catches up."
    )
    source = "Dosovitskiy et al. 2021, sections 1 and 4.3, figures 3 and 4"
    published = (
        '"Transformers lack some of the inductive biases inherent to CNNs, such as translation equivariance '
        'and locality, and therefore do not generalize well when trained on insufficient amounts of data." '
        "There: ImageNet (1.3 M images) is too few, ImageNet-21k and JFT-300M (14 and 303 M) are enough."
    )
    criterion = (
        f"Holds if (1) with the fewest images the ResNet is on average at least {BEHIND:.0%} of the test "
        f"images ahead of the ViT, and (2) with the most its lead is at most {CAUGHT_UP:.0%} of that. Partly "
        "if (1) is so. The hybrid is shown and not judged."
    )

    data: str = "fashion-mnist"
    """Data that ``vitrail train`` takes; without a local fashion-mnist, digits are used instead."""
    sizes: tuple[int, ...] = Field(default=(100, 400, 1300), min_length=1)
    """Numbers of training images, rising; a verdict needs two. Digits have 1,366."""
    image_size: int = Field(default=20, ge=8, multiple_of=4)
    """Side in pixels."""
    width: int = Field(default=64, ge=8, multiple_of=8)
    """Of the ViT's tokens; the widths of the others are chosen to match its parameters."""
    depth: int = Field(default=3, ge=1)
    """Blocks of ViT and hybrid."""
    num_steps: int = Field(default=250, gt=10)
    """Of each training, whatever the number of images; a tenth of them is warm-up."""
    batch_size: int = Field(default=32, ge=2)
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak rate of AdamW, with cosine decay to zero."""
    weight_decay: float = Field(default=0.05, ge=0)
    """Applied to all weights."""
    num_tested: int = Field(default=1000, ge=1)
    """Most test images."""

    @model_validator(mode="after")
    def _check_sizes(self) -> DataHunger:
        if list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1:
            raise ValueError("sizes must rise from at least 1")
        return self

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[HungerRow]:
        dataset = _open(self.data)
        test = _read(dataset.test, range(min(self.num_tested, len(dataset.test))), self.image_size)
        if len(dataset.train) < self.sizes[-1]:
            raise DataError(
                f"{dataset.source} has {len(dataset.train)} training images",
                expected=f"at least {self.sizes[-1]}, the greatest of sizes",
                remedy="Choose smaller sizes, or other data",
            )
        cases = list(product(self.seeds(seed), self.sizes, MODELS))
        configs = self._configs(len(dataset.class_names))
        rows: list[HungerRow] = []
        for each, size, name in lab.tracked(progress, cases, "{2}, {1} images, seed {0}"):
            generator = torch.Generator().manual_seed(each)
            order = torch.randperm(len(dataset.train), generator=generator)[:size]
            train = _read(dataset.train, order.tolist(), self.image_size)
            with lab.seeded(each):
                model = configs[name].build()
            self._learn(model, train, generator)
            rows.append(
                HungerRow(
                    data=dataset.source,
                    model=name,
                    num_images=size,
                    seed=each,
                    accuracy=_accuracy(model, test),
                    parameters=lab.num_parameters(model),
                )
            )
        return rows

    def judge(self, rows: Sequence[HungerRow]) -> lab.Judgement:
        sizes = lab.column(rows, "num_images")
        leads, scores = list[float](), list[str]()
        for size in (min(sizes), max(sizes)):  # with a single size both are the same, which decides nothing
            of_size = {name: lab.mean(rows, "accuracy", model=name, num_images=size) for name in MODELS}
            leads.append(of_size["ResNet"] - of_size["ViT"])
            accuracies = ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in of_size.items())
            scores.append(f"{size:,} images: {accuracies}")
        few, many = leads
        return lab.Judgement(
            verdict=lab.decide(holds=few >= BEHIND and many <= CAUGHT_UP * few, partly=few >= BEHIND),
            measured=f"{rows[0].data}, {'; '.join(scores)}. The ResNet's lead goes from {few:+.1%} to "
            f"{many:+.1%}",
        )

    def draw(self, rows: Sequence[HungerRow]) -> lab.Figure:
        figure, (axes,) = lab.new_panels(1)
        draw_curves(axes, rows)
        return figure

    def _configs(self, num_classes: int) -> Mapping[ModelName, ImageModelConfig]:
        """Return a ViT, and the others in the width that best matches its parameters."""
        size = (self.image_size, self.image_size)
        vit = ViTConfig(
            image_size=size,
            patch_size=4,
            width=self.width,
            depth=self.depth,
            num_heads=4,
            mlp_ratio=2.0,
            num_classes=num_classes,
            class_token=False,
            pool="mean",
        )
        target = lab.num_parameters(vit.build())

        def nearest(candidates: Iterable[ImageModelConfig]) -> ImageModelConfig:
            return min(candidates, key=lambda config: abs(lab.num_parameters(config.build()) - target))

        def hybrid(width: int) -> ImageModelConfig:
            stem = ConvStemConfig(channels=(width // 2, width), strides=(2, 2), norm="batch")
            return vit.with_changes({"width": width, "stem": stem})

        def resnet(width: int) -> ImageModelConfig:
            depths = (1,) * self.depth
            return ResNetConfig(
                image_size=size, block="basic", width=width, depths=depths, num_classes=num_classes
            )

        return {
            "ViT": vit,
            "hybrid": nearest(map(hybrid, range(8, self.width + 1, 4))),
            "ResNet": nearest(map(resnet, range(4, self.width // 2 + 1))),
        }

    def _learn(self, model: nn.Module, train: tuple[Tensor, Tensor], generator: torch.Generator) -> None:
        images, labels = train
        optimiser = torch.optim.AdamW(
            model.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, self.learning_rate, total_steps=self.num_steps, pct_start=WARM_UP, cycle_momentum=False
        )
        model.train()
        for _ in range(self.num_steps):
            chosen = torch.randint(len(labels), (self.batch_size,), generator=generator)
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()


CLAIM = DataHunger()


def draw_curves(axes: lab.Axes, rows: Sequence[HungerRow]) -> None:
    """Plot a curve for each model on one data set, with the range over its seeds behind it."""
    sizes = sorted(set(lab.column(rows, "num_images")))
    for name, colour in zip(MODELS, lab.COLOURS, strict=False):
        of_model = lab.rows_of(rows, HungerRow, model=name)
        spread = [lab.column(lab.rows_of(of_model, HungerRow, num_images=size), "accuracy") for size in sizes]
        axes.fill_between(sizes, list(map(min, spread)), list(map(max, spread)), color=colour, alpha=0.2)
        title = f"{name}, {of_model[0].parameters:,} parameters"
        lab.draw_curve(axes, of_model, "num_images", "accuracy", color=colour, marker="o", label=title)
    lab.label(axes, x="training images", y="test accuracy", title=rows[0].data, legend=True, log="x")


def _open(name: str) -> ImageDataset:
    try:
        return open_dataset(name)
    except DataError:
        if name != DataHunger.model_fields["data"].default:
            raise
        return open_dataset(FALLBACK)


def _read(
    split: ImageSplit, indices: Sequence[int], size: int
) -> tuple[Float[Tensor, "batch 3 height width"], Int[Tensor, " batch"]]:
    """Return normalised images with their classes."""
    preprocessing = Preprocessing(image_size=(size, size))
    images = [preprocessing.read(split.images[index], name=split.names[index]) for index in indices]
    labels = torch.from_numpy(split.labels[list(indices)])
    return torch.stack(images).float() / 127.5 - 1, labels


@torch.no_grad()
def _accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    model.eval()
    predicted = torch.cat([model(images).argmax(dim=1) for images in test[0].split(TEST_BATCH)])
    return (predicted == test[1]).sum().item() / len(predicted)
