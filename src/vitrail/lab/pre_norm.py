"""Claim: a post-norm Transformer needs learning rate warm-up, a pre-norm one does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import Literal, get_args

import torch
from pydantic import Field

from vitrail.lab import harness as lab
from vitrail.lab.symbols import build_transformer, draw_symbols, learn, mean_loss
from vitrail.models.transformer import Transformer

Norm = Literal["post", "pre"]
NORMS: tuple[Norm, ...] = get_args(Norm)
LEARNED = 0.5  # share of the guessing loss; a Transformer that learns this task goes far below
THEORY = {"post": 0.0, "pre": -0.5}  # Xiong et al. 2020, theorem 1: bounds, as exponents of the depth
TOLERANCE = 0.25
FAILING = 0.6  # share of the runs: two of three


class GradientRow(lab.Row):
    """Norm of the gradient of a decoder block's second MLP matrix before the first step."""

    norm: Norm
    """After each sum, or before each branch."""
    depth: int
    """Blocks of the decoder, and of the encoder."""
    block: int
    """The block, counted from 1; the last one is next to the output."""
    gradient_norm: float
    """Frobenius norm, mean over the seeds."""


class TrainedRow(lab.SeededRow):
    """One training with Adam at a constant learning rate, without warm-up."""

    norm: Norm
    """After each sum, or before each branch."""
    depth: int
    """Blocks of the decoder, and of the encoder."""
    learning_rate: float
    """Constant from the first step."""
    loss: float | None
    """Mean over the last tenth of the steps, in nats; none if it diverged."""
    guessing_loss: float
    """Loss of a model that knows only the length."""
    failed: bool
    """Whether the loss is more than half of the guessing loss."""


PreNormRow = GradientRow | TrainedRow


class PreNorm(lab.SeededClaim):
    """Train both kinds of Transformer to reverse sequences; measure their gradients at initialisation."""

    statement = (
        "Without warm-up, deep Transformers fail to train at rates at which those with the norms before the "
        "branches learn, since the gradients of their last layers do not shrink with depth."
    )
    source = "Xiong et al. 2020, abstract, theorem 1 and section 3.3"
    published = (
        '"for the original-designed Post-LN Transformer ... the expected gradients of the parameters near '
        "the output layer are large. Therefore, using a large learning rate on those gradients makes the "
        "training unstable.\" The last layer's are O(d sqrt(ln d)) with Post-LN at any depth L, and "
        "O(d sqrt(ln d / L)) with Pre-LN."
    )
    criterion = (
        "Holds if (1) the last block's gradient norm follows a power of the depth whose exponent is within "
        f"{TOLERANCE} of 0 for post-norm, and at most {THEORY['pre'] + TOLERANCE} for pre-norm, whose theory "
        "is the bound -1/2; and (2) at the greatest depth there is a rate at which all pre-norm runs learn "
        f"and at least {FAILING:.0%} of the post-norm runs fail. Partly if one of both is so."
    )

    width: int = Field(default=32, ge=4, multiple_of=4)
    """Width of a token; the MLPs are four times as wide."""
    gradient_depths: tuple[int, ...] = Field(default=(4, 8, 16, 32), min_length=2)
    """Depths at which gradients are measured."""
    depths: tuple[int, ...] = Field(default=(2, 6), min_length=1)
    """Depths at which models are trained."""
    learning_rates: tuple[float, ...] = Field(default=(1e-3, 3e-3), min_length=1)
    """Constant rates of Adam."""
    num_steps: int = Field(default=200, ge=1)
    batch_size: int = Field(default=32, ge=1)
    length: int = Field(default=6, ge=1)
    """Symbols of a sequence."""
    num_symbols: int = Field(default=8, ge=2)

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[PreNormRow]:
        seeds = self.seeds(seed)
        parts: list[tuple[str, Callable[[], Iterable[PreNormRow]]]] = [
            (f"gradients, {norm}-norm, {depth} blocks", partial(self._look, norm, depth, seeds))
            for depth, norm in product(self.gradient_depths, NORMS)
        ]
        # Seeds vary slowest: an interrupted look at the progress has seen every kind.
        parts += [
            (
                f"{norm}-norm, {depth} blocks, rate {rate:g}, seed {each}",
                partial(self._train, norm, depth, rate, each),
            )
            for each, depth, rate, norm in product(seeds, self.depths, self.learning_rates, NORMS)
        ]
        return [row for _, measure in lab.tracked(progress, parts, "{}") for row in measure()]

    def judge(self, rows: Sequence[PreNormRow]) -> lab.Judgement:
        exponents = {norm: _exponent(rows, norm) for norm in NORMS}
        trained = lab.rows_of(rows, TrainedRow)
        deepest = max(lab.column(trained, "depth"))
        rates = sorted(set(lab.column(trained, "learning_rate", depth=deepest)))
        failed = {
            (norm, rate): lab.column(trained, "failed", norm=norm, depth=deepest, learning_rate=rate)
            for norm, rate in product(NORMS, rates)
        }
        stays = abs(exponents["post"] - THEORY["post"]) <= TOLERANCE
        shrinks = exponents["pre"] <= THEORY["pre"] + TOLERANCE
        gradients_agree = stays and shrinks
        only_post_fails = any(
            fmean(failed["post", rate]) >= FAILING and not any(failed["pre", rate]) for rate in rates
        )
        counts = "; ".join(
            f"rate {rate:g}: " + ", ".join(f"{norm} {sum(failed[norm, rate])}" for norm in NORMS)
            for rate in rates
        )
        return lab.Judgement(
            verdict=lab.decide(
                holds=gradients_agree and only_post_fails, partly=gradients_agree or only_post_fails
            ),
            measured=f"Failed runs of {len(failed['post', rates[0]])} at depth {deepest}: {counts}. "
            f"Exponents of the last gradient {exponents['post']:+.2f} (post, theory 0) and "
            f"{exponents['pre']:+.2f} (pre, theory -0.5)",
        )

    def draw(self, rows: Sequence[PreNormRow]) -> lab.Figure:
        figure, (by_block, by_depth, losses) = lab.new_panels(3)
        deepest = max(lab.column(lab.rows_of(rows, GradientRow), "depth"))
        names = {norm: f"{norm}-norm" for norm in NORMS}
        fitted = {norm: f"{names[norm]}, exponent {_exponent(rows, norm):+.2f}" for norm in NORMS}
        blocks, last = lab.rows_of(rows, GradientRow, depth=deepest), _last_blocks(rows)
        lab.draw_curves(by_block, blocks, "block", "gradient_norm", by="norm", names=names)
        lab.draw_curves(by_depth, last, "depth", "gradient_norm", by="norm", names=fitted, marker="o")
        title = f"before training, {deepest} blocks"
        lab.label(by_block, x="block", y="gradient norm", title=title, legend=True, log="y")
        title = "before training, last block"
        lab.label(by_depth, x="depth", y="gradient norm", title=title, legend=True, log="xy", base=2)
        trained = lab.rows_of(rows, TrainedRow)
        finite = [row for row in trained if row.loss is not None]
        groups = lab.draw_dots(losses, finite, ("depth", "learning_rate"), "loss", by="norm", names=names)
        guessing = trained[0].guessing_loss
        losses.axhline(guessing, color="grey", linestyle="--", label="guessing")
        losses.axhline(LEARNED * guessing, color="grey", linestyle=":", label="failed above")
        losses.set_xticks(range(len(groups)), [f"{depth} blocks\n{rate:g}" for depth, rate in groups])
        losses.set_ylim(bottom=0)
        title = "after training without warm-up"
        lab.label(losses, x="depth and learning rate", y="final loss, nats", title=title, legend=True)
        return figure

    def _look(self, norm: Norm, depth: int, seeds: Sequence[int]) -> Iterator[GradientRow]:
        norms = []
        for seed in seeds:
            model, generator = self._build(norm, depth, seed)
            draw = draw_symbols(self.batch_size, self.length, self.num_symbols, generator, reverse=True)
            mean_loss(model, draw).backward()
            gradients = [block.mlp.contract.weight.grad for block in model.decoder]  # type: ignore[union-attr]
            norms.append([float(gradient.norm()) for gradient in gradients])  # type: ignore[union-attr, operator]
        for block, of_seeds in enumerate(zip(*norms, strict=True), start=1):
            yield GradientRow(norm=norm, depth=depth, block=block, gradient_norm=fmean(of_seeds))

    def _train(self, norm: Norm, depth: int, learning_rate: float, seed: int) -> list[TrainedRow]:
        model, generator = self._build(norm, depth, seed)
        losses = learn(
            model,
            lambda: draw_symbols(self.batch_size, self.length, self.num_symbols, generator, reverse=True),
            num_steps=self.num_steps,
            learning_rate=learning_rate,
        )
        loss = fmean(losses[-max(1, self.num_steps // 10) :])
        guessing = math.log(self.num_symbols) * self.length / (self.length + 1)  # the end costs nothing
        finite = math.isfinite(loss)
        row = TrainedRow(
            norm=norm,
            depth=depth,
            learning_rate=learning_rate,
            seed=seed,
            loss=loss if finite else None,
            guessing_loss=guessing,
            failed=not finite or loss > LEARNED * guessing,
        )
        return [row]

    def _build(self, norm: Norm, depth: int, seed: int) -> tuple[Transformer, torch.Generator]:
        """Return a model and the generator of its data."""
        with lab.seeded(seed):
            model = build_transformer(self.num_symbols, self.width, depth, norm=norm, tie="none")
        return model, torch.Generator().manual_seed(seed)


CLAIM = PreNorm()


def _last_blocks(rows: Sequence[PreNormRow]) -> list[GradientRow]:
    return [row for row in lab.rows_of(rows, GradientRow) if row.block == row.depth]


def _exponent(rows: Sequence[PreNormRow], norm: Norm) -> float:
    """Return the exponent of the last block's gradient norm as a power of the depth."""
    last = lab.rows_of(_last_blocks(rows), GradientRow, norm=norm)
    return lab.fit_exponent(lab.column(last, "depth"), lab.column(last, "gradient_norm"))
