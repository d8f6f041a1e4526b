"""Claim: parts of a scene that decide only together need a layer that sees both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal, Self, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.lab import harness as lab
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block
from vitrail.nn.feature_maps import map_to_tokens
from vitrail.train.settings import OptimSettings

LayerName = Literal["convolution", "attention"]
LAYERS: tuple[LayerName, ...] = get_args(LayerName)
CROSS, RING = (
    ((1, 0, 0, 1), (0, 1, 1, 0), (0, 1, 1, 0), (1, 0, 0, 1)),
    ((1, 1, 1, 1), (1, 0, 0, 1), (1, 0, 0, 1), (1, 1, 1, 1)),
)
GLYPH_PX, NOISE = 4, 0.2
KERNEL_SIZE, NUM_CONVOLUTIONS = 3, 2
FIELD = 1 + NUM_CONVOLUTIONS * (KERNEL_SIZE - 1)  # patches that an output of the convolutions sees, a side
SOLVED = 0.95
SUM_BOUND = 0.8  # a boundary over a sum gets three of the four pairs of glyphs right, 75 %; five for sampling


class SceneRow(lab.SeededRow):
    """A model trained and tested on scenes of two glyphs, whose class is whether they are of one kind."""

    layer: LayerName
    """Two 3x3 convolutions over patches, or a block of global attention; then the mean and a linear layer."""
    distance: int
    """Columns between the glyphs, in patches of a glyph's size."""
    accuracy: float
    """On new scenes; 0.5 is chance, 0.75 the most that a sum over separate glyphs allows."""
    parameters: int
    """Number of learned parameters."""


class FarParts(lab.SeededClaim):
    """Train convolutions of small field and attention on scenes in which two glyphs decide together."""

    statement = (
        "Where two far parts of a scene decide only together, layers with a small field followed by a mean "
        "cannot tell them; attention relates them at any distance."
    )
    source = "Vaswani et al. 2017, section 4 and table 1; Brendel and Bethge 2019 (bags of local features)"
    published = "Maximum path length between two positions: attention O(1), convolution O(n/k) or O(log_k(n))"
    criterion = (
        f"Holds if, with every seed, attention is right in at least {SOLVED:.0%} of the scenes at every "
        f"distance, and the convolutions in at least {SOLVED:.0%} where both glyphs lie in a field of "
        f"{FIELD} patches and in at most {SUM_BOUND:.0%} beyond it. Partly if the convolutions fail "
        "beyond their field and attention does better there."
    )

    grid: tuple[int, int] = (5, 12)
    """Rows and columns of patches."""
    distances: tuple[int, ...] = Field(default=(2, 3, 5, 9), min_length=2)
    """In patches, rising; some within the field of the convolutions and some beyond it."""
    width: int = Field(default=32, ge=4, multiple_of=4)
    num_steps: int = Field(default=500, ge=1)
    batch_size: int = Field(default=32, ge=1)
    num_tested: int = Field(default=1000, ge=1)
    """Scenes of each test."""

    @model_validator(mode="after")
    def _check_distances(self) -> Self:
        if not 0 < min(self.distances) < FIELD <= max(self.distances) < self.grid[1]:
            raise ValueError(f"distances need one below {FIELD}, and a greater one that fits into the grid")
        return self

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[SceneRow]:
        cases = list(product(LAYERS, self.distances, self.seeds(seed)))
        return [self._measure(*case) for case in lab.tracked(progress, cases, "{} at distance {}, seed {}")]

    def judge(self, rows: Sequence[SceneRow]) -> lab.Judgement:
        beyond = [row for row in rows if row.distance >= FIELD]
        near = lab.column([row for row in rows if row.distance < FIELD], "accuracy", layer="convolution")
        far, attended = (lab.column(beyond, "accuracy", layer=layer) for layer in LAYERS)
        least = min(lab.column(rows, "accuracy", layer="attention"))
        fails = max(far) <= SUM_BOUND
        return lab.Judgement(
            verdict=lab.decide(
                holds=fails and min(least, *near) >= SOLVED, partly=fails and min(attended) > max(far)
            ),
            measured=f"Attention is right in at least {least:.1%} at any distance, convolutions within their "
            f"field of {FIELD} in at least {min(near):.1%}, and beyond it in at most {max(far):.1%}",
        )

    def draw(self, rows: Sequence[SceneRow]) -> lab.Figure:
        figure, (scenes, curves) = lab.new_panels(2)
        with lab.seeded(0):
            images, labels = self._draw_scenes(self.distances[-1], 4)
        scenes.imshow(F.pad(images, (0, 0, 0, 2), value=1.0).flatten(0, 2).numpy(), cmap="gray_r")
        scenes.grid(visible=False)
        middles = [(index + 0.5) * (self.grid[0] * GLYPH_PX + 2) for index in range(len(labels))]
        scenes.set_yticks(middles, ["different" if each else "the same" for each in labels])
        scenes.set_xticks([])
        lab.label(scenes, x="", y="", title=f"glyphs {self.distances[-1]} patches apart")
        names = {row.layer: f"{row.layer}, {row.parameters:,} parameters" for row in rows}
        lab.draw_curves(curves, rows, "distance", "accuracy", by="layer", names=names, marker="o")
        curves.axvline(FIELD - 0.5, color="grey", linestyle="--", label="field of the convolutions")
        curves.axhline(0.75, color="grey", linestyle=":", label="most that a sum of parts allows")
        curves.set_ylim(0.4, 1.03)
        lab.label(curves, x="patches between the glyphs", y="accuracy", title="new scenes", legend=True)
        return figure

    def _measure(self, layer: LayerName, distance: int, seed: int) -> SceneRow:
        with lab.seeded(seed):
            model = _SceneModel(layer, self.width)

            def loss(done: float) -> Tensor:
                images, labels = self._draw_scenes(distance, self.batch_size)
                return F.cross_entropy(model(images), labels)

            settings = OptimSettings(name="muon", learning_rate=3e-3, weight_decay=0.0, warmup_fraction=0.05)
            lab.minimise(model, loss, settings, num_steps=self.num_steps)
            images, labels = self._draw_scenes(distance, self.num_tested)
            with torch.no_grad():
                accuracy = float((model(images).argmax(dim=-1) == labels).float().mean())
        return SceneRow(
            layer=layer, distance=distance, seed=seed, accuracy=accuracy, parameters=lab.num_parameters(model)
        )

    def _draw_scenes(
        self, distance: int, count: int
    ) -> tuple[Float[Tensor, "{count} 1 height width"], Int[Tensor, " {count}"]]:
        """Return noisy scenes, and whether their glyphs are of two kinds; each glyph alone says nothing."""
        rows, columns = self.grid
        patches = torch.zeros(count, rows, columns, GLYPH_PX, GLYPH_PX)
        glyphs = torch.tensor((CROSS, RING), dtype=torch.float32)
        kinds, scene = torch.randint(2, (2, count)), torch.arange(count)
        left = torch.randint(columns - distance, (count,))
        for kind, column in zip(kinds, (left, left + distance), strict=True):
            patches[scene, torch.randint(rows, (count,)), column] = glyphs[kind]
        images = patches.transpose(2, 3).reshape(count, 1, rows * GLYPH_PX, columns * GLYPH_PX)
        return images + NOISE * torch.randn_like(images), (kinds[0] != kinds[1]).long()


CLAIM = FarParts()


class _SceneModel(nn.Module):
    """Patches, layers that relate them, the mean over the patches, and a linear layer."""

    def __init__(self, layer: LayerName, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, GLYPH_PX, stride=GLYPH_PX)
        self.convolutions, self.blocks = nn.ModuleList(), nn.ModuleList()
        if layer == "attention":
            self.blocks.append(Block(width, mixer=Attention(width, 4), mlp=MLP(width, width)))
        else:
            for _ in range(NUM_CONVOLUTIONS):
                self.convolutions.append(nn.Conv2d(width, width, KERNEL_SIZE, padding=1))
        self.head = nn.Linear(width, 2)

    def forward(self, images: Float[Tensor, "batch 1 height width"]) -> Float[Tensor, "batch 2"]:
        x = self.stem(images)  # b d rows columns
        for convolution in self.convolutions:
            x = x + F.relu(convolution(F.relu(x)))
        x = map_to_tokens(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x.mean(dim=1))
        return out
