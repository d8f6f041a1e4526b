"""Shared parts of the claims on which functions of token sequences a layer can learn."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from vitrail.core.config import Config
from vitrail.lab.harness import (
    COLOURS,
    Judgement,
    OnProgress,
    Progress,
    Row,
    decide,
    label,
    new_panels,
    rows_of,
)
from vitrail.nn.attention import Attention
from vitrail.train.optimise import Optimisers
from vitrail.train.schedule import rate_at
from vitrail.train.settings import OptimSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LayerName = Literal["attention", "convolution", "stacked convolutions"]
LAYERS: tuple[LayerName, ...] = ("attention", "convolution", "stacked convolutions")
KERNEL_SIZE = 3


def build_layer(name: LayerName, dim: int, length: int) -> nn.Module:
    """Return a layer with random weights; the convolutions have slightly more parameters than attention.

    Args:
        length: symbols of the sequences; stacked convolutions also see the stop behind them.
    """
    attention = _Attention(dim)
    if name == "attention":
        return attention
    num_layers = math.ceil(math.log2(length + 1))  # so that the first token sees the stop
    kernel_size, gaps = (
        (KERNEL_SIZE, [1]) if name == "convolution" else (2, [2**layer for layer in range(num_layers)])
    )
    model, width = nn.Module(), 0
    while num_parameters(model) < num_parameters(attention):
        width += 1
        model = _Convolutions(dim, width, kernel_size=kernel_size, gaps=gaps)
    return model


def num_parameters(model: nn.Module) -> int:
    """Count the learned parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


class _Attention(nn.Module):
    """An attention layer, in a list so that its matrices are named as in a model's block."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(dim, 1, qkv_bias=False)])

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        out: Tensor = self.layers[0](x)
        return out


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
    "answer of one who sees v1 alone, as it must with a kernel that reaches two other tokens. Partly if (1) "
    "is so. The stacked convolutions, which see every token, and longer sequences are shown and not judged."
)


class BuiltRow(Row):
    """An attention layer with constructed, not learned, weights."""

    alpha: float
    """Factor of the scores."""
    seed: int
    """Of symbols and sequences."""
    greatest_error: float
    """Largest error over sequences and components; a symbol has norm one."""


class LearnedRow(Row):
    """A layer trained with Muon and Adam on sequences of growing length."""

    layer: LayerName
    """One-head attention; one convolution from v1 on, ReLU and a linear layer; or a stack of dilated ones."""
    seed: int
    """Of symbols, weights and sequences."""
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
    answer: Float[Tensor, "batch dim"]
    """The target vector."""


Draw = Callable[[int, int], Sequences]
"""Draws a number of sequences with a number of symbols."""


class Readers(Config):
    """Training and test settings."""

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
        alpha: factor of the scores.
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
    return float((layer(sequences.tokens)[:, 0] - sequences.answer).abs().max())


def learn_all(draw: Draw, dim: int, settings: Readers, seed: int, *, shortest: int) -> list[LearnedRow]:
    """Train and test every layer; the convolutions have slightly more parameters than attention.

    Args:
        shortest: symbols of the first sequences; the length grows evenly during training.
    """
    rows = []
    for name in LAYERS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build_layer(name, dim, settings.length)
        _learn(model, draw, settings, shortest)
        rows += [
            LearnedRow(
                layer=name,
                seed=seed,
                length=length,
                was_trained=length == settings.length,
                error=_relative_error(model, draw(settings.num_tested, length)),
                parameters=num_parameters(model),
            )
            for length in (settings.length, settings.longer)
        ]
    return rows


def judge_function(rows: Sequence[FunctionRow], blind_error: float) -> Judgement:
    """Apply ``CRITERION``.

    Args:
        blind_error: relative error of the best predictor that sees only v1.
    """
    built = rows_of(rows, BuiltRow)
    alphas = sorted({row.alpha for row in built})
    by_alpha = [max(row.greatest_error for row in built if row.alpha == alpha) for alpha in alphas]
    falls = all(later < earlier for earlier, later in pairwise(by_alpha))
    is_exact = falls and by_alpha[-1] <= EXACT
    errors = {
        name: [row.error for row in rows_of(rows, LearnedRow) if row.layer == name and row.was_trained]
        for name in LAYERS
    }
    is_learned = max(errors["attention"]) <= LEARNED
    fails = min(errors["convolution"]) >= FAILED * blind_error
    means = ", ".join(f"{name} {fmean(errors[name]):.2%}" for name in LAYERS)
    return Judgement(
        verdict=decide(holds=is_exact and is_learned and fails, partly=is_exact),
        measured=f"By hand the greatest error falls from {by_alpha[0]:.2g} at alpha {alphas[0]:g} to "
        f"{by_alpha[-1]:.2g} at {alphas[-1]:g}. Learned, of the mean square: {means}; seeing v1 alone "
        f"{blind_error:.0%}",
    )


def draw_function(rows: Sequence[FunctionRow], blind_error: float) -> Figure:
    """Plot the error against alpha, and the errors of the learned layers."""
    figure, (by_hand, learned) = new_panels(2)
    built = rows_of(rows, BuiltRow)
    for seed in sorted({row.seed for row in built}):
        of_seed = [row for row in built if row.seed == seed]
        points = [row.alpha for row in of_seed], [row.greatest_error for row in of_seed]
        by_hand.plot(*points, color=COLOURS[0], marker="o", markersize=4, alpha=0.6)
    by_hand.set_yscale("log")
    label(by_hand, x="alpha", y="greatest error", title="attention, built by hand")
    trained = rows_of(rows, LearnedRow)
    lengths = sorted({row.length for row in trained})
    for place, (name, colour) in enumerate(zip(LAYERS, COLOURS, strict=False)):
        of_name = [row for row in trained if row.layer == name]
        learned.scatter(
            [lengths.index(row.length) + 0.2 * (place - 1) for row in of_name],
            [row.error for row in of_name],
            color=colour,
            label=f"{name}, {of_name[0].parameters:,} parameters",
            s=22,
        )
    learned.axhline(blind_error, color="grey", linestyle="--", label="best of v1 alone")
    names = {row.length: f"{row.length} tokens" + (", trained" if row.was_trained else "") for row in trained}
    learned.set_xticks(range(len(lengths)), [names[length] for length in lengths])
    learned.set_yscale("log")
    label(learned, x="", y="mean squared error / mean square", title="learned by gradient descent")
    learned.legend(frameon=False, fontsize=7)
    return figure


def _learn(model: nn.Module, draw: Draw, settings: Readers, shortest: int) -> None:
    """Train with a length curriculum: among few tokens a saturated softmax does not miss the partner."""
    optimisers = Optimisers(
        model,
        OptimSettings(
            name="muon",
            learning_rate=settings.learning_rate,
            matrix_learning_rate=settings.matrix_learning_rate,
            betas=(0.9, 0.98),
            weight_decay=0.0,
        ),
    )
    for step in range(settings.num_steps):
        done = step / settings.num_steps
        optimisers.set_rate(rate_at(done, warmup_fraction=0.0, final_rate=0.0))
        tokens, answer = draw(settings.batch_size, shortest + int(done * (settings.length - shortest + 1)))
        out = model(tokens.float())[:, 0]
        (out - answer.float()).square().sum(dim=-1).mean().backward()
        optimisers.step()


@torch.no_grad()
def _relative_error(model: nn.Module, sequences: Sequences) -> float:
    errors = model(sequences.tokens.float())[:, 0] - sequences.answer
    return float(errors.square().sum() / sequences.answer.square().sum())


class Construction(NamedTuple):
    """A function of sequences, and the attention layer constructed to compute it."""

    symbols: Float[Tensor, "symbols_and_stop dim"]
    scores: Float[Tensor, "dim dim"]
    values: Float[Tensor, "dim dim"]
    """Both as ``attend_by_hand`` takes them."""
    draw: Draw


class TokenFunction(Readers):
    """A claim about one function; a subclass defines it and constructs its layer."""

    criterion: ClassVar[str] = CRITERION

    alphas: tuple[float, ...] = Field(default=(1, 2, 4, 6, 8, 10, 12), min_length=2)
    """Score factors of the constructed layers, rising."""
    num_symbols: int = Field(default=24, ge=3)
    """Size of the alphabet."""
    num_seeds: int = Field(default=3, ge=1)
    """Draws of symbols, function, weights and sequences."""

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

    def run(self, progress: OnProgress, *, seed: int) -> list[FunctionRow]:
        rows: list[FunctionRow] = []
        for done in range(self.num_seeds):
            progress(Progress(done, self.num_seeds, f"seed {seed + done}"))
            rows += self._measure(seed + done)
        progress(Progress(self.num_seeds, self.num_seeds, "done"))
        return rows

    def judge(self, rows: Sequence[FunctionRow]) -> Judgement:
        return judge_function(rows, self.blind_error)

    def draw(self, rows: Sequence[FunctionRow]) -> Figure:
        return draw_function(rows, self.blind_error)

    def _measure(self, seed: int) -> list[FunctionRow]:
        symbols, scores, values, draw = self.write_down(torch.Generator().manual_seed(seed))
        tested = draw(self.num_tested, self.length)
        built: list[FunctionRow] = [
            BuiltRow(
                alpha=alpha,
                seed=seed,
                greatest_error=greatest_error(attend_by_hand(scores, values, symbols, alpha), tested),
            )
            for alpha in self.alphas
        ]
        return [*built, *learn_all(draw, len(symbols), self, seed, shortest=self.shortest)]
