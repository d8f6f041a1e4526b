"""Claim: at equal operations a ViT takes less time than a ResNet, as matrix products suit hardware better."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitrail.lab import harness as lab
from vitrail.lab.length_cost import time_calls
from vitrail.models import MODELS
from vitrail.models.contract import ImageModelConfig
from vitrail.models.cost import count_forward
from vitrail.models.vit import ViTConfig
from vitrail.train.machine import inspect_machine

Pass = Literal["forward", "training step"]
PASSES: tuple[Pass, ...] = ("forward", "training step")
VIT = "ViT"


class SpeedRow(lab.Row):
    """Time of a model with random weights, plain torch layers in float32."""

    pair: str
    """The convolutional model, which a ViT with as many operations stands beside."""
    model: str
    """One of the pair; the ViT is as wide as ViT-S."""
    passes: Pass
    """Forward pass, or forward and backward pass of cross entropy."""
    gmacs: float
    """10^9 multiply-adds of an image's forward pass."""
    seconds: float
    """Of a batch, in the fastest round, as the least disturbed one."""
    gflops: float
    """10^9 operations per second, two per multiply-add; of a training step three times the forward pass."""


class HardwareEfficiency(lab.Claim):
    """Time ResNets and ViTs of equal operations in turns, in inference and in training."""

    name = "hardware_efficiency"
    statement = "With equal operations per image, a ViT takes less time than a ResNet."
    source = "Dosovitskiy et al. 2021, section 4.4, figures 5 and 12 (appendix D.5)"
    published = (
        '"ViT models have speed comparable to similar ResNets" (figure 12, TPUv3); pre-training of ViT-L/16 '
        "took 680 TPUv3-core-days, of a ResNet152x4 9,900 (table 2)."
    )
    criterion = (
        "Holds if in every pair the ViT makes more operations per second than the ResNet, in the forward pass"
        " and in a training step. Partly if it does so in most of these comparisons."
    )

    models: tuple[Literal["resnet18", "resnet50", "bit_r50x1"], ...] = Field(
        default=("resnet18", "resnet50", "bit_r50x1"), min_length=1
    )
    """Convolutional models."""
    image_size: int = Field(default=128, ge=32, multiple_of=16)
    """Side in pixels; the ViT has patches of 16 x 16."""
    batch_size: int = Field(default=4, ge=2)
    rounds: int = Field(default=7, ge=1)
    """Rounds in which all models take turns."""

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[SpeedRow]:
        """Time in turns, so that other load on the machine slows all alike."""
        pairs: dict[str, Any] = {name: self._pair(name) for name in self.models}
        with lab.seeded(seed):
            calls = {
                (pair, name, passes): self._call(config, passes)
                for pair, configs in pairs.items()
                for (name, config), passes in product(configs.items(), PASSES)
            }
        taken: dict[tuple[str, str, Pass], list[float]] = {key: [] for key in calls}
        cases = [(number + 1, *key) for number in range(self.rounds) for key in calls]
        for _, pair, name, passes in lab.tracked(progress, cases, "round {}: {}, {}, {}"):
            taken[pair, name, passes].append(time_calls(calls[pair, name, passes], 1))
        rows = []
        for (pair, name, passes), times in taken.items():
            gmacs, seconds = _count_macs(pairs[pair][name]) / 1e9, min(times)
            operations = 2 * gmacs * self.batch_size * (1 if passes == "forward" else 3)
            values = (pair, name, passes, gmacs, seconds, operations / seconds)
            rows.append(SpeedRow.from_tree(dict(zip(SpeedRow.model_fields, values, strict=True))))
        return rows

    def judge(self, rows: Sequence[SpeedRow]) -> lab.Judgement:
        gains = {
            (pair, passes): lab.mean(rows, "gflops", pair=pair, passes=passes, model=_vit_of(rows, pair))
            / lab.mean(rows, "gflops", pair=pair, passes=passes, model=pair)
            for pair, passes in product(dict.fromkeys(lab.column(rows, "pair")), PASSES)
        }
        ahead = sum(gain > 1 for gain in gains.values())
        told = "; ".join(f"{pair}, {passes}: {gain:.2f}" for (pair, passes), gain in gains.items())
        return lab.Judgement(
            verdict=lab.decide(holds=ahead == len(gains), partly=2 * ahead > len(gains)),
            measured=f"operations per second of the ViT over those of {told}; ahead in {ahead} of "
            f"{len(gains)}",
        )

    def draw(self, rows: Sequence[SpeedRow]) -> lab.Figure:
        figure, panels = lab.new_panels(len(PASSES))
        for axes, passes in zip(panels, PASSES, strict=True):
            shown = lab.rows_of(rows, SpeedRow, passes=passes)
            colours = [lab.COLOURS[row.model.startswith(VIT)] for row in shown]
            axes.barh(range(len(shown)), [row.gflops for row in shown], color=colours)
            names = [f"{row.model}, {row.gmacs:.2f} GMACs" for row in shown]
            axes.set_yticks(range(len(shown)), names, fontsize=7)
            axes.invert_yaxis()
            lab.label(axes, x="GFLOP/s", y="", title=passes)
        return figure

    def _pair(self, name: str) -> Mapping[str, ImageModelConfig]:
        """Return a model, and the ViT as wide as ViT-S whose depth comes nearest to its operations."""
        config = MODELS[name].with_changes({"image_size": (self.image_size, self.image_size)})
        assert isinstance(config, ImageModelConfig)
        vit = ViTConfig(width=384, num_heads=6, image_size=config.image_size, num_classes=config.num_classes)
        one, two = (_count_macs(vit.with_changes({"depth": depth})) for depth in (1, 2))
        depth = max(1, 1 + round((_count_macs(config) - one) / (two - one)))
        return {name: config, f"{VIT}, {depth} deep": vit.with_changes({"depth": depth})}

    def _call(self, config: ImageModelConfig, passes: Pass) -> Callable[[], Tensor]:
        device = inspect_machine().device
        model = config.build().to(device).train(passes != "forward")
        images = torch.randn(self.batch_size, 3, *config.image_size, device=device)
        labels = torch.randint(config.num_classes, (self.batch_size,), device=device)

        def forward() -> Tensor:
            with torch.inference_mode():
                return model(images).sum().cpu()  # waits for a GPU

        def step() -> Tensor:
            model.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            return loss.detach().cpu()

        return forward if passes == "forward" else step


CLAIM = HardwareEfficiency()


def _vit_of(rows: Sequence[SpeedRow], pair: str) -> str:
    (name,) = {row.model for row in rows if row.pair == pair and row.model != pair}
    return name


def _count_macs(config: ImageModelConfig) -> int:
    with torch.device("meta"):
        model: nn.Module = config.build().eval()
        images = torch.empty(1, config.num_channels, *config.image_size)
    return sum(part.macs for part in count_forward(model, images, {}).parts.values())
