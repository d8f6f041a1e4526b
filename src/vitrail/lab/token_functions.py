"""Shared parts of the claims on which functions of token sequences a layer can learn."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from vitrail.lab import harness as lab
from vitrail.nn.attention import Attention
from vitrail.train.settings import OptimSettings

LayerName = Literal["attention", "convolution", "stacked convolutions"]
LAYERS: tuple[LayerName, ...] = get_args(LayerName)
KERNEL_SIZE = 3


def build_layer(name: LayerName, dim: int, length: int) -> nn.Module:
    """Return a layer with random weights; the convolutions have slightly more parameters than attention.

    Args:
        length: symbols of the sequences; stacked convolutions also see the stop behind them.
    """
    attention = Layers(Attention(dim, 1, qkv_bias=False))
    if name == "attention":
        return attention
    num_layers = math.ceil(math.log2(length + 1))  # so that the first token sees the stop
    kernel_size, gaps = (
        (KERNEL_SIZE, [1]) if name == "convolution" else (2, [2**layer for layer in range(num_layers)])
    )
    model, width = nn.Module(), 0
    while lab.num_parameters(model) < lab.num_parameters(attention):
        width += 1
        model = _Convolutions(dim, width, kernel_size=kernel_size, gaps=gaps)
    return model


class Layers(nn.Module):
    """Layers in a row, in a list as in a model, where the optimiser finds their matrices."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        for layer in self.layers:
            x = layer(x)
        return x


class _Convolutions(nn.Module):
    """Dilated convolutions that look ahead from each token, and a final linear layer."""

    def __init__(self, dim: int, width: int, *, kernel_size: int, gaps: Sequence[int]) -> None:
        super().__init__()
        widths = [dim] + [width] * len(gaps)
        self.layers = nn.ModuleList(
            nn.Conv1d(before, after, kernel_size, dilation=gap)
            for (before, after), gap in zip(pairwise(widths), gaps, strict=True)
        )
        self.reach = [(kernel_size - 1) * gap for gap in gaps]
        self.projection = nn.Linear(width, dim)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        x = x.mT  # b d n
        for layer, reach in zip(self.layers, self.reach, strict=True):
            x = F.relu(layer(F.pad(x, (0, reach))))
        out: Tensor = self.projection(x.mT)
        return out


EXACT, LEARNED, FAILED = 1e-3, 0.02, 0.5
CRITERION = (
    f"Holds if (1) by hand the greatest error falls from each alpha to the next, down to at most {EXACT:g}; "
    f"(2) the learned attention layer errs by at most {LEARNED:.0%} of the mean square, with every seed, at "
    f"the trained length; and (3) the convolution errs there at least {FAILED:g} times as much as the best "
    "predictor that sees v1 alone, as it must with a kernel that reaches two other tokens. Partly if "
    "(1) is so. The stacked convolutions, which see every token, and longer sequences are shown and not "
    "judged."
)


class BuiltRow(lab.SeededRow):
    """An attention layer with constructed, not learned, weights."""

    alpha: float
    """Factor of the scores."""
    greatest_error: float
    """Largest error over sequences and components; a symbol has norm one."""


class LearnedRow(lab.SeededRow):
    """A layer trained with Muon and Adam on sequences of growing length."""

    layer: LayerName
    """One-head attention; one convolution from v1 on, ReLU and a linear layer; or a stack of dilated ones."""
    length: int
    """Tokens of a sequence."""
    was_trained: bool
    """Whether sequences of this length were in the training."""
    error: float
    """Mean squared error over the mean square of the targets."""
    parameters: int
    """Number of learned parameters."""


FunctionRow = BuiltRow | LearnedRow


class Sequences(NamedTuple):
    """Sequences with the value of the function at the first token of each."""

    tokens: Float[Tensor, "batch tokens dim"]
    """Symbols, then the stop."""
    target: Float[Tensor, "batch dim"]
    """The target vector."""


Draw = Callable[[int, int], Sequences]
"""Draws a number of sequences with a number of symbols."""


def draw_symbols(num_symbols: int, generator: torch.Generator) -> Float[Tensor, "symbols_and_stop dim"]:
    """Return orthonormal vectors: the symbols, then the stop, which ends a sequence and means nothing.

    Without a stop, the attention weights would sum to one even where there is nothing to find.
    """
    dim = num_symbols + 1
    vectors, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    return vectors.T


def attend_by_hand(
    scores: Float[Tensor, "dim dim"],
    values: Float[Tensor, "dim dim"],
    symbols: Float[Tensor, "symbols_and_stop dim"],
    alpha: float,
) -> nn.Module:
    """Return a layer that approximates ``sum_i [scores > 0] values v_i``, better the larger alpha is.

    The stop has score 2 alpha. So a token with score alpha weighs about exp(-alpha) in the average,
    however many there are, and the last product multiplies it by exp(alpha); one with score 0 still weighs
    about exp(-alpha) after that.

    Args:
        scores: Q K^T over alpha; the score of v_j for v_1 is v_1^T Q K^T v_j.
        symbols: rows; the last one is the stop.
    """
    dim = len(symbols)
    layer = Attention(dim, 1, qkv_bias=False).double()
    stop_scores = torch.outer(symbols[:-1].sum(dim=0), 2 * symbols[-1])
    with torch.no_grad():
        # The layer divides scores by the root of the width.
        query = math.sqrt(dim) * alpha * (scores + stop_scores).T
        layer.qkv.weight.copy_(torch.cat((query, torch.eye(dim, dtype=torch.float64), values)))
        layer.projection.weight.copy_(math.exp(alpha) * torch.eye(dim))
        layer.projection.bias.zero_()
    return layer


@torch.no_grad()
def greatest_error(layer: nn.Module, sequences: Sequences) -> float:
    """Return the largest error of a layer at the first tokens."""
    return float((layer(sequences.tokens)[:, 0] - sequences.target).abs().max())


class Construction(NamedTuple):
    """A function of sequences, and the weights of attention that compute it, as for ``attend_by_hand``."""

    symbols: Float[Tensor, "symbols_and_stop dim"]
    scores: Float[Tensor, "dim dim"]
    values: Float[Tensor, "dim dim"]
    draw: Draw


class TokenFunction(lab.SeededClaim):
    """A claim about one function; a subclass defines it and constructs its layer."""

    criterion = CRITERION

    length: int = Field(default=8, ge=2)
    """Symbols of the training sequences."""
    longer: int = Field(default=20, ge=2)
    """Symbols of longer test sequences."""
    num_steps: int = Field(default=2000, ge=1)
    batch_size: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=5e-3, gt=0)
    """Initial rate of Adam, for biases and the last product; all rates have cosine decay to zero."""
    matrix_learning_rate: float = Field(default=0.02, gt=0)
    """Initial rate of Muon, for attention matrices and convolution kernels."""
    num_tested: int = Field(default=1000, ge=1)
    """Sequences of each test."""
    alphas: tuple[float, ...] = Field(default=(1, 2, 4, 6, 8, 10, 12), min_length=2)
    """Score factors of the constructed layers, rising."""
    num_symbols: int = Field(default=24, ge=3)
    """Size of the alphabet."""

    @property
    @abstractmethod
    def blind_error(self) -> float:
        """Relative squared error of the best predictor that sees only v1."""

    @property
    def shortest(self) -> int:
        """Symbols of the shortest sequence that the function is defined on."""
        return 2

    @abstractmethod
    def write_down(self, generator: torch.Generator) -> Construction:
        """Choose symbols and construct the layer."""

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[FunctionRow]:
        rows: list[FunctionRow] = []
        for (each,) in lab.tracked(progress, [(each,) for each in self.seeds(seed)], "seed {}"):
            symbols, scores, values, draw = self.write_down(torch.Generator().manual_seed(each))
            tested = draw(self.num_tested, self.length)
            for alpha in self.alphas:
                error = greatest_error(attend_by_hand(scores, values, symbols, alpha), tested)
                rows.append(BuiltRow(alpha=alpha, seed=each, greatest_error=error))
            for name in LAYERS:
                rows += self.learn(name, draw, len(symbols), each)
        return rows

    def learn(self, name: LayerName, draw: Draw, dim: int, seed: int) -> Iterator[LearnedRow]:
        with lab.seeded(seed):
            model = build_layer(name, dim, self.length)
        self.train(model, draw)
        for length in (self.length, self.longer):
            yield LearnedRow(
                layer=name,
                seed=seed,
                length=length,
                was_trained=length == self.length,
                error=relative_error(model, draw(self.num_tested, length)),
                parameters=lab.num_parameters(model),
            )

    def train(self, model: nn.Module, draw: Draw) -> None:
        """Train a layer on ever longer sequences: among few tokens a saturated softmax misses no partner."""
        settings = OptimSettings(
            name="muon",
            learning_rate=self.learning_rate,
            matrix_learning_rate=self.matrix_learning_rate,
            betas=(0.9, 0.98),
            weight_decay=0.0,
            warmup_fraction=0.0,
        )

        def loss(done: float) -> Tensor:
            length = self.shortest + int(done * (self.length - self.shortest + 1))
            tokens, target = draw(self.batch_size, length)
            errors = model(tokens.float())[:, 0] - target.float()
            return errors.square().sum(dim=-1).mean()

        lab.minimise(model, loss, settings, num_steps=self.num_steps)

    def judge(self, rows: Sequence[FunctionRow]) -> lab.Judgement:
        built, learned = lab.rows_of(rows, BuiltRow), lab.rows_of(rows, LearnedRow)
        alphas = sorted(set(lab.column(built, "alpha")))
        by_alpha = [max(lab.column(built, "greatest_error", alpha=alpha)) for alpha in alphas]
        falls = all(later < earlier for earlier, later in pairwise(by_alpha))
        is_exact = falls and by_alpha[-1] <= EXACT
        errors = {name: lab.column(learned, "error", layer=name, was_trained=True) for name in LAYERS}
        is_learned = max(errors["attention"]) <= LEARNED
        fails = min(errors["convolution"]) >= FAILED * self.blind_error
        means = ", ".join(f"{name} {fmean(errors[name]):.2%}" for name in LAYERS)
        return lab.Judgement(
            verdict=lab.decide(holds=is_exact and is_learned and fails, partly=is_exact),
            measured=f"By hand the greatest error falls from {by_alpha[0]:.2g} at alpha {alphas[0]:g} to "
            f"{by_alpha[-1]:.2g} at {alphas[-1]:g}. Learned, of the mean square: {means}; seeing v1 alone "
            f"{self.blind_error:.0%}",
        )

    def draw(self, rows: Sequence[FunctionRow]) -> lab.Figure:
        figure, (by_hand, learned) = lab.new_panels(2)
        built, trained = lab.rows_of(rows, BuiltRow), lab.rows_of(rows, LearnedRow)
        for seed in sorted(set(lab.column(built, "seed"))):
            of_seed, style = lab.rows_of(built, BuiltRow, seed=seed), {"color": lab.COLOURS[0], "marker": "o"}
            lab.draw_curve(by_hand, of_seed, "alpha", "greatest_error", **style)
        lab.label(by_hand, x="alpha", y="greatest error", title="attention, built by hand", log="y")
        names = {row.layer: f"{row.layer}, {row.parameters:,} parameters" for row in trained}
        lengths = lab.draw_dots(learned, trained, ("length",), "error", by="layer", names=names)
        learned.axhline(self.blind_error, color="grey", linestyle="--", label="best of v1 alone")
        kinds = {row.length: ", trained" if row.was_trained else "" for row in trained}
        learned.set_xticks(range(len(lengths)), [f"{each} tokens{kinds[each]}" for each in lengths])
        title = "learned by gradient descent"
        y = "mean squared error / mean square"
        lab.label(learned, x="", y=y, title=title, legend=True, log="y")
        return figure


@torch.no_grad()
def relative_error(model: nn.Module, sequences: Sequences) -> float:
    """Return the squared error at the first tokens over the square of the targets."""
    errors = model(sequences.tokens.float())[:, 0] - sequences.target
    return float(errors.square().sum() / sequences.target.square().sum())
