"""Functions of token sequences that a layer computes or not: layers, sequences, rows and the shared claim."""

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
from vitrail.nn.attention import MultiHeadAttention
from vitrail.train.optimise import Optimisers
from vitrail.train.schedule import rate_at
from vitrail.train.settings import OptimSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LayerName = Literal["attention", "convolution", "stacked convolutions"]
LAYERS: tuple[LayerName, ...] = ("attention", "convolution", "stacked convolutions")
KERNEL_SIZE = 3


def build_layer(name: LayerName, dim: int, length: int) -> nn.Module:
    """Return a layer with random weights; the convolutions have as many as attention, or a few more.

    Args:
        name: of the layer.
        dim: width of tokens.
        length: symbols of the sequences; stacked convolutions see the stop behind them, too.
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
    """Return how many numbers are learned."""
    return sum(parameter.numel() for parameter in model.parameters())


class _Attention(nn.Module):
    """A layer of attention; in a list, as in a model, so that its matrices are those of a block."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MultiHeadAttention(dim, 1, qkv_bias=False)])

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        out: Tensor = self.layers[0](x)
        return out


class _Convolutions(nn.Module):
    """Convolutions that look from each token ahead, each with a greater gap, and a product at last."""

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
    """An attention layer whose weights are written down, not learned."""

    alpha: float
    """Factor of the scores."""
    seed: int
    """Of symbols and sequences."""
    greatest_error: float
    """Over sequences and components; a symbol has length one."""


class LearnedRow(Row):
    """A layer that was trained by Muon and Adam, on sequences that grew to one length."""

    layer: LayerName
    """Attention of one head; one convolution from v1 on, ReLU and a product; or several with growing gaps."""
    seed: int
    """Of symbols, weights and sequences."""
    length: int
    """Tokens of a sequence."""
    was_trained: bool
    """Whether sequences of this length were trained."""
    error: float
    """Mean square of the errors over that of the answers."""
    parameters: int
    """Learned numbers."""


FunctionRow = BuiltRow | LearnedRow


class Sequences(NamedTuple):
    """Sequences, and the value of the function at the first token of each."""

    tokens: Float[Tensor, "batch tokens dim"]
    """Symbols, and the stop at the end."""
    answer: Float[Tensor, "batch dim"]
    """What the function is, a vector."""


Draw = Callable[[int, int], Sequences]
"""Draws so many sequences, of so many symbols."""


class Readers(Config):
    """How layers are trained and tested."""

    length: int = Field(default=8, ge=2)
    """Symbols of the trained sequences."""
    longer: int = Field(default=20, ge=2)
    """Symbols of sequences that are tested, too."""
    num_steps: int = Field(default=2000, ge=1)
    """Of each training."""
    batch_size: int = Field(default=64, ge=1)
    """Sequences of a step."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Of Adam at first, for biases and the last product; all rates fall to zero along a cosine."""
    matrix_learning_rate: float = Field(default=0.02, gt=0)
    """Of Muon at first, for the matrices of attention and the kernels of convolutions."""
    num_tested: int = Field(default=1000, ge=1)
    """Sequences of each test."""


def draw_symbols(num_symbols: int, generator: torch.Generator) -> Float[Tensor, "symbols_and_stop dim"]:
    """Return orthonormal vectors: the symbols, and last the stop, which ends a sequence and means nothing.

    Without a stop the weights of a sequence with nothing to find would still sum to one.
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
    """Return a layer that computes ``sum_i [scores > 0] values v_i`` the better, the larger alpha is.

    The stop has score 2 alpha. So of a token with score alpha there is about exp(-alpha) in the average,
    however many there are, and the last product multiplies it by exp(alpha); of one with score 0 there is
    about exp(-alpha) left after that.

    Args:
        scores: alpha times this is Q K^T; the score of v_j for v_1 is v_1^T Q K^T v_j.
        values: what is taken of a token.
        symbols: rows; the last one is the stop.
        alpha: factor of the scores.
    """
    dim = len(symbols)
    layer = MultiHeadAttention(dim, 1, qkv_bias=False).double()
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
    """Return the greatest error of a layer at the first tokens."""
    return float((layer(sequences.tokens)[:, 0] - sequences.answer).abs().max())


def learn_all(draw: Draw, dim: int, settings: Readers, seed: int, *, shortest: int) -> list[LearnedRow]:
    """Train and test every layer; the convolutions have as many parameters as attention, or a few more.

    Args:
        draw: of the function.
        dim: width of tokens.
        settings: of training and test.
        seed: of the weights.
        shortest: symbols of the first sequences; they grow evenly to the trained length.
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
        rows: of both tables.
        blind_error: of the best answer that depends on v1 alone, relative to the mean square.
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
    """Show the error against alpha, and those of the learned layers."""
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
    """Train on short sequences first: among few tokens no partner is lost to a softmax that has settled."""
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
    """A function of sequences, and the attention layer that computes it, written down."""

    symbols: Float[Tensor, "symbols_and_stop dim"]
    """As ``draw_symbols`` returns them."""
    scores: Float[Tensor, "dim dim"]
    """As ``attend_by_hand`` takes them."""
    values: Float[Tensor, "dim dim"]
    """Likewise."""
    draw: Draw
    """Of sequences with their answers."""


class TokenFunction(Readers):
    """A claim about one function; a subclass says which, and how it is written down."""

    criterion: ClassVar[str] = CRITERION

    alphas: tuple[float, ...] = Field(default=(1, 2, 4, 6, 8, 10, 12), min_length=2)
    """Factors of the scores that are written down, rising."""
    num_symbols: int = Field(default=24, ge=3)
    """Symbols that there are."""
    num_seeds: int = Field(default=3, ge=1)
    """Choices of symbols, of the function, of weights and sequences."""

    @property
    @abstractmethod
    def blind_error(self) -> float:
        """Error of the best answer that depends on v1 alone, over the mean square of the answers."""

    @property
    def shortest(self) -> int:
        """Symbols of the shortest sequences of which the function can be asked."""
        return 2

    @abstractmethod
    def write_down(self, generator: torch.Generator) -> Construction:
        """Choose symbols and write the layer down."""

    def run(self, progress: OnProgress, *, seed: int) -> list[FunctionRow]:
        """Write down and train with each seed."""
        rows: list[FunctionRow] = []
        for done in range(self.num_seeds):
            progress(Progress(done, self.num_seeds, f"seed {seed + done}"))
            rows += self._measure(seed + done)
        progress(Progress(self.num_seeds, self.num_seeds, "done"))
        return rows

    def judge(self, rows: Sequence[FunctionRow]) -> Judgement:
        """Look at the errors by hand, learned, and of the convolution."""
        return judge_function(rows, self.blind_error)

    def draw(self, rows: Sequence[FunctionRow]) -> Figure:
        """Show the errors by hand against alpha, and the learned ones."""
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
