"""Claim: at equal operations a ViT takes less time than a ResNet, as matrix products suit hardware better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitrail.lab import harness as lab
from vitrail.lab.length_cost import time_calls
from vitrail.models.contract import ImageModelConfig, find_image_model
from vitrail.models.cost import count_model
from vitrail.models.vit import ViTConfig
from vitrail.train.machine import inspect_machine

Pass = Literal["forward", "training step"]
PASSES: tuple[Pass, ...] = get_args(Pass)
QUARTILES = (0.25, 0.5, 0.75)


class SpeedRow(lab.Row):
    """A convolutional model, and the ViT as wide as ViT-S with the nearest operations; plain torch layers."""

    model: str
    """The convolutional model."""
    vit_depth: int
    """Blocks of the ViT."""
    passes: Pass
    """Forward pass, or forward and backward pass of cross entropy."""
    gmacs: float
    """10^9 multiply-adds of an image's forward pass."""
    vit_gmacs: float
    """Those of the ViT."""
    gflops: float
    """10^9 operations per second, two per multiply-add, thrice as many in a training step; the median."""
    vit_gflops: float
    """Those of the ViT."""
    lower: float
    """Lower quartile over the rounds of the ViT's speed over the other's in the same round."""
    ratio: float
    """Median of that."""
    upper: float
    """Upper quartile of that."""


class HardwareEfficiency(lab.Claim):
    """Time ResNets and ViTs of equal operations in turns, in inference and in training."""

    statement = "With equal operations per image, a ViT takes less time than a ResNet."
    source = "Dosovitskiy et al. 2021, section 4.4, figures 5 and 12 (appendix D.5)"
    published = (
        '"ViT models have speed comparable to similar ResNets" (figure 12, TPUv3); pre-training of ViT-L/16 '
        "took 680 TPUv3-core-days, of a ResNet152x4 9,900 (table 2)."
    )
    criterion = (
        "A model is faster in a comparison if it makes more operations per second in three of four rounds at "
        "least. Holds if the ViT is faster than every ResNet, in the forward pass and in a training step. "
        "Partly if it is so in most of these comparisons. Undecided if those in which neither is faster "
        "could change that."
    )

    models: tuple[Literal["resnet18", "resnet50", "bit_r50x1"], ...] = Field(
        default=("resnet18", "resnet50", "bit_r50x1"), min_length=1
    )
    """Convolutional models."""
    image_size: int = Field(default=128, ge=32, multiple_of=16)
    """Side in pixels; the ViT has patches of 16 x 16."""
    batch_size: int = Field(default=4, ge=2)
    rounds: int = Field(default=15, ge=1)
    """Rounds in which all models take turns."""

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[SpeedRow]:
        """Time in turns, so that other load on the machine slows all alike."""
        size = (self.image_size, self.image_size)
        peers = {
            each: find_image_model("model", each).with_changes({"image_size": size}) for each in self.models
        }
        vit = ViTConfig(width=384, num_heads=6, image_size=size)
        one, two = (count_model(vit.with_changes({"depth": depth})).macs for depth in (1, 2))
        depths = {
            name: max(1, 1 + round((count_model(config).macs - one) / (two - one)))
            for name, config in peers.items()
        }
        configs: dict[str, ImageModelConfig] = peers | {
            f"vit {depth}": vit.with_changes({"depth": depth}) for depth in depths.values()
        }
        macs = {name: count_model(config).macs for name, config in configs.items()}
        with lab.seeded(seed):
            calls = {key: self._call(configs[key[0]], key[1]) for key in product(configs, PASSES)}
        speeds: dict[tuple[str, Pass], list[float]] = {key: [] for key in calls}
        cases = [(number + 1, *key) for number in range(self.rounds) for key in calls]
        for _, name, passes in lab.tracked(progress, cases, "round {}: {}, {}"):
            operations = 2 * macs[name] * self.batch_size * (1 if passes == "forward" else 3)
            speeds[name, passes].append(operations / time_calls(calls[name, passes], 1) / 1e9)
        rows = []
        for (name, depth), passes in product(depths.items(), PASSES):
            ours, theirs = (np.array(speeds[key, passes]) for key in (f"vit {depth}", name))
            lower, ratio, upper = np.quantile(ours / theirs, QUARTILES).tolist()
            sizes = (macs[name] / 1e9, macs[f"vit {depth}"] / 1e9)
            medians = (float(np.median(theirs)), float(np.median(ours)))
            values = (name, depth, passes, *sizes, *medians, lower, ratio, upper)
            rows.append(SpeedRow.from_tree(dict(zip(SpeedRow.model_fields, values, strict=True))))
        return rows

    def judge(self, rows: Sequence[SpeedRow]) -> lab.Judgement:
        ahead, behind = sum(row.lower > 1 for row in rows), sum(row.upper < 1 for row in rows)
        certain, possible = (
            lab.decide(holds=count == len(rows), partly=2 * count > len(rows))
            for count in (ahead, len(rows) - behind)
        )
        ratios = "; ".join(
            f"{row.model}, {row.passes}: {row.ratio:.2f} ({row.lower:.2f} to {row.upper:.2f})" for row in rows
        )
        return lab.Judgement(
            verdict=certain if certain == possible else "undecided",
            measured=f"Operations per second of the ViT over those of the ResNet, with quartiles: {ratios}. "
            f"The ViT is faster in {ahead} of {len(rows)}, the ResNet in {behind}",
        )

    def draw(self, rows: Sequence[SpeedRow]) -> lab.Figure:
        figure, panels = lab.new_panels(len(PASSES))
        for axes, passes in zip(panels, PASSES, strict=True):
            shown, names = lab.rows_of(rows, SpeedRow, passes=passes), list[str]()
            for place, row in enumerate(shown):
                for shift, speed in enumerate((row.gflops, row.vit_gflops)):
                    axes.barh(2.5 * place + shift, speed, color=lab.COLOURS[shift])
                names += [f"{row.model}, {row.gmacs:.2f} GMACs"]
                names += [f"ViT, {row.vit_depth} blocks, {row.vit_gmacs:.2f} GMACs"]
            axes.set_yticks([2.5 * (each // 2) + each % 2 for each in range(len(names))], names, fontsize=7)
            axes.invert_yaxis()
            lab.label(axes, x="GFLOP/s", y="", title=passes)
        return figure

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
