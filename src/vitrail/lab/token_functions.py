"""Functions of a sequence's first token and all others, and layers that are to compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from vitrail.core.config import Config
from vitrail.lab.contract import Judgement, Row, decide, rows_of
from vitrail.lab.figures import COLOURS, label, new_panels
from vitrail.lab.token_layers import LAYERS, LayerName, build_layer, num_parameters
from vitrail.nn.attention import MultiHeadAttention
from vitrail.train.optimise import Optimisers
from vitrail.train.schedule import rate_at
from vitrail.train.settings import OptimSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
