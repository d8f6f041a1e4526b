"""Claim: receptive fields of stacked convolutions, windowed attention and global attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.lab import harness as lab
from vitrail.lab.token_functions import Layers
from vitrail.nn.attention import Attention
from vitrail.nn.relative import GridRelativeBias
from vitrail.nn.windows import WindowAttention, WindowStage, fit_windows

StackName = Literal["stacked", "strided", "dilated", "windows", "shifted windows", "global"]
STACKS: tuple[StackName, ...] = get_args(StackName)
KERNEL_SIZE = 3
INFLUENTIAL = 0.0455  # of the largest gradient: Luo et al. 2016, section 3, one minus 95.45 %


class FieldRow(lab.SeededRow):
    """Receptive field of the centre of a feature map behind some layers of random weights."""

    stack: StackName
    """3x3 convolutions: plain, with stride 2, or with dilation 1, 2, 4 ...; or attention."""
    depth: int
    """Layers."""
    theory: int
    """Rows, and columns, of the theoretical receptive field."""
    measured: int
    """Rows from the first to the last position with a non-zero gradient."""
    seen_positions: int
    """Positions with a non-zero gradient."""
    influential_positions: int
    """Positions whose gradient is more than 4.55 % of the largest one."""


class ReceptiveField(lab.SeededClaim):
    """Differentiate one output with respect to every position of the image."""

    statement = (
        "What one output sees grows by a constant with each convolution, twofold with stride or dilation, "
        "not at all with windows and by a window with shifted ones; global attention sees everything at "
        "once. Of what stacked convolutions see, only a part has weight."
    )
    source = (
        "Luo et al. 2016, abstract; Dosovitskiy et al. 2021, section 3.1; Liu et al. 2021 (Swin), section "
        "3.2; Yu and Koltun 2016, section 2 (dilation)"
    )
    published = (
        '"an effective receptive field ... only occupies a fraction of the full theoretical receptive '
        'field" (Luo et al.); "In ViT, only MLP layers are local and translationally equivariant, while the '
        'self-attention layers are global" (Dosovitskiy et al.). Rows seen after l layers: 1 + 2 l stacked, '
        "2^(l+1) - 1 strided or dilated, w with windows of w, w l with shifted ones, all with global "
        "attention."
    )
    criterion = (
        "Holds if (1) the measured rows equal these formulas for every kind, depth and seed, and (2) at "
        "their greatest depth less than half of what stacked convolutions see has a gradient above "
        f"{INFLUENTIAL:.2%} of the largest, with every seed. Partly if (1) alone is so."
    )

    size: int = Field(default=48, ge=8)
    """Rows and columns of the image."""
    depths: tuple[int, ...] = Field(default=(1, 2, 4), min_length=1)
    """Numbers of layers."""
    deep: int = Field(default=20, ge=1)
    """Layers of a further convolution stack, for the effective receptive field."""
    window: int = Field(default=8, ge=2, multiple_of=2)
    """Rows and columns of a window; divides half of ``size``, so that a window begins at the centre."""
    dim: int = Field(default=8, ge=2, multiple_of=2)

    @model_validator(mode="after")
    def _check_room(self) -> ReceptiveField:
        if self.size % (2 * self.window):
            raise ValueError(f"size {self.size} is not a multiple of two windows of {self.window}")
        deepest = max(self.depths)
        if max(self._rows_seen("dilated", deepest), self.window * (deepest + 1)) > self.size:
            raise ValueError(f"what {deepest} layers see does not fit into a size of {self.size}")
        if self._rows_seen("stacked", self.deep) >= self.size:
            raise ValueError(f"what {self.deep} convolutions see does not fit into a size of {self.size}")
        return self

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[FieldRow]:
        seeds = self.seeds(seed)
        cases: list[tuple[StackName, int, int]] = list(product(STACKS, self.depths, seeds))
        cases += [("stacked", self.deep, each) for each in seeds]
        return [self._measure(*case) for case in lab.tracked(progress, cases, "{}, {} layers, seed {}")]

    def judge(self, rows: Sequence[FieldRow]) -> lab.Judgement:
        wrong = [row for row in rows if row.measured != row.theory]
        deepest = max(lab.column(rows, "depth", stack="global"))
        deep = max(lab.column(rows, "depth"))
        stacked = lab.rows_of(rows, FieldRow, stack="stacked", depth=deep)
        shares = [row.influential_positions / row.seen_positions for row in stacked]
        seen = (f"{stack} {lab.column(rows, 'measured', stack=stack, depth=deepest)[0]}" for stack in STACKS)
        return lab.Judgement(
            verdict=lab.decide(holds=not wrong and max(shares) < 0.5, partly=not wrong),
            measured=f"{len(rows) - len(wrong)} of {len(rows)} measurements equal the formula; rows seen "
            f"through {deepest} layers: {', '.join(seen)}; {min(shares):.0%} to "
            f"{max(shares):.0%} of the positions seen by {deep} convolutions have weight",
        )

    def draw(self, rows: Sequence[FieldRow]) -> lab.Figure:
        from matplotlib.colors import LogNorm

        seed = min(row.seed for row in rows)
        figure, (*maps, curves, beside) = lab.new_panels(len(STACKS) + 2, columns=4)
        for axes, stack in zip(maps, STACKS, strict=True):
            deepest = max(lab.column(rows, "depth", stack=stack))
            gradient = self._gradient(stack, deepest, seed)
            image = (gradient / gradient.max()).clamp_min(1e-4).numpy()
            heat = axes.imshow(image, norm=LogNorm(1e-4, 1), cmap="viridis", interpolation="nearest")
            axes.set_axis_off()
            lab.label(axes, x="", y="", title=f"{stack}, {deepest} layers")
        beside.set_axis_off()
        figure.colorbar(
            heat,
            cax=beside.inset_axes((0.05, 0.6, 0.9, 0.07)),
            orientation="horizontal",
            label="gradient of a position, over the largest",
        )
        of_seed = lab.rows_of(rows, FieldRow, seed=seed)
        for colour, stack in zip(lab.COLOURS, STACKS, strict=True):
            shown = lab.rows_of(of_seed, FieldRow, stack=stack)
            # Wide below narrow: by theory the dilated ones see as many rows as the strided ones.
            style = {"linewidth": 5, "markersize": 11} if stack == "strided" else {"markersize": 6}
            lab.draw_curve(curves, shown, "depth", "measured", color=colour, marker="o", label=stack, **style)
        curves.set_xticks(sorted(set(lab.column(of_seed, "depth"))))
        curves.set_ylim(bottom=0)
        lab.label(curves, x="layers", y="rows seen", legend=True)
        return figure

    def _measure(self, stack: StackName, depth: int, seed: int) -> FieldRow:
        gradient = self._gradient(stack, depth, seed)
        seen = gradient > 0
        rows = seen.any(dim=1).nonzero()[:, 0]
        return FieldRow(
            stack=stack,
            depth=depth,
            seed=seed,
            theory=self._rows_seen(stack, depth),
            measured=int(rows[-1] - rows[0]) + 1,
            seen_positions=int(seen.sum()),
            influential_positions=int((gradient > INFLUENTIAL * gradient.max()).sum()),
        )

    def _rows_seen(self, stack: StackName, depth: int) -> int:
        """Return the rows of the theoretical receptive field in a large enough image."""
        rows = {
            "stacked": 1 + (KERNEL_SIZE - 1) * depth,
            "windows": self.window,
            "shifted windows": self.window * depth,
            "global": self.size,
        }
        return rows.get(stack, 2 ** (depth + 1) - 1)

    def _gradient(self, stack: StackName, depth: int, seed: int) -> Float[Tensor, "rows columns"]:
        """Return the gradient norm at each image position of the output that is centred there."""
        with lab.seeded(seed):
            # Double precision, so that small gradients are not rounded to zero.
            layers = self._build(stack, depth).double()
            image = torch.randn(1, self.dim, self.size, self.size, dtype=torch.float64, requires_grad=True)
            # Strided outputs are centred on every 2^depth-th position: one is moved to the middle.
            step = 2**depth if stack == "strided" else 1
            moved = -(self.size // 2) % step
            at = (self.size // 2 + moved) // step
            middle = layers(F.pad(image, (moved, 0, moved, 0)))[0, :, at, at]
            (gradient,) = torch.autograd.grad((middle * torch.randn_like(middle)).sum(), image)
        return gradient[0].norm(dim=0)

    def _build(self, stack: StackName, depth: int) -> nn.Module:
        grid, size = (self.size, self.size), (self.window, self.window)

        def windowed(*are_shifted: bool) -> nn.Module:
            blocks = []
            for is_shifted in are_shifted:
                windows = fit_windows(grid, size, shifted=is_shifted)
                bias = GridRelativeBias(size, 2)
                blocks.append(WindowAttention(self.dim, 2, windows=windows, shifted=is_shifted, bias=bias))
            plain = fit_windows(grid, size, shifted=False)
            return WindowStage(downsample=nn.Identity(), blocks=blocks, windows=plain)

        if stack == "global":
            return _Global(*(Attention(self.dim, 2) for _ in range(depth)))
        if stack == "shifted windows":
            return windowed(*(index % 2 == 1 for index in range(depth)))
        if stack == "windows":
            # Each layer is a stage of its own: within one, the tokens of every second layer are shifted.
            return nn.Sequential(*(windowed(False) for _ in range(depth)))
        layers: list[nn.Module] = []
        for index in range(depth):
            dilation, stride = 2**index if stack == "dilated" else 1, 2 if stack == "strided" else 1
            convolution = nn.Conv2d(
                self.dim, self.dim, KERNEL_SIZE, stride, padding=dilation, dilation=dilation
            )
            layers += [convolution, nn.GELU()]
        return nn.Sequential(*layers)


CLAIM = ReceptiveField()


class _Global(Layers):
    """A stack of global self-attention layers over a feature map."""

    def forward(self, x: Float[Tensor, "batch dim rows columns"]) -> Float[Tensor, "batch dim rows columns"]:
        return super().forward(x.flatten(2).mT).mT.reshape(x.shape)
