"""Benchmark every engine and precision of a model in interleaved rounds, beside the machine's peak.

Each engine runs in its own process, so that memory, threads and crashes are isolated. The matrix products
come first in every round: other load on the machine slows all of them.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from vitrail.core.config import Config
from vitrail.core.errors import CheckpointError, VitrailError
from vitrail.engines import choice, turns
from vitrail.engines.contract import ENGINES, PRECISIONS, Engine, EngineName, Inputs, find_kind
from vitrail.engines.export import comparison
from vitrail.engines.export.exporting import OnStage, canvas_of, export_model
from vitrail.engines.export.package import PortSpec, Precision, digest_model
from vitrail.engines.export.tracing import input_ports
from vitrail.engines.loading import MODEL_FOLDER
from vitrail.engines.remote import EngineError, RemoteEngine, write_inputs
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.cost import count_model

NUM_SCORED = 1000  # images for scoring reduced precisions


class BenchSettings(Config):
    """Settings of a benchmark."""

    batches: tuple[int, ...] = Field((1, 8), min_length=1)
    """Batch sizes."""
    engines: tuple[EngineName, ...] = ENGINES
    precisions: tuple[Precision, ...] = PRECISIONS
    rounds: int = Field(7, ge=1)
    """Number of interleaved timing rounds."""
    threads: int = Field(ge=1)
    """Per engine."""


class BenchReport(Config):
    """All results of one benchmark."""

    name: str
    size: tuple[int, int]
    """Image height and width."""
    gmacs: float
    """10^9 multiply-accumulates per image."""
    machine: str
    """CPU model and cores."""
    threads: int
    """Per engine."""
    rounds: int
    """Number of interleaved timing rounds."""
    product: tuple[int, int, int]
    """Rows, inner and columns of the matrix product."""
    ceilings: dict[str, float]
    """Median GFLOP/s of the matrix product by precision."""
    images: str
    """The images that outputs were compared on."""
    results: tuple[choice.BenchResult, ...]
    """In the requested order."""
    versions: dict[str, str]
    """Of the libraries."""
    folder: str | None = None
    """Where the results are stored, if they are."""
    unstored: str | None = None
    """Why the results could not be stored."""

    def best(self, batch: int) -> choice.BenchResult | None:
        """Return the fastest kept result of a batch size that agrees, like ``engine="auto"``."""
        usable = [each for each in self.results if each.ran and each.agrees and each.is_kept]
        of_batch = [each for each in usable if each.batch == batch]
        return max(of_batch, key=lambda each: each.images_per_s, default=None)


def summarise(
    rounds: Sequence[Sequence[float]], *, batch: int, gflops: float, ceilings: Sequence[float] | None
) -> dict[str, float | None]:
    """Summarise the passes of an engine as fields of ``BenchResult``.

    Args:
        rounds: seconds of each pass of every round.
        gflops: of one image, counting multiplications and additions.
        ceilings: GFLOP/s of the matrix product in every round, if measured.

    Example:
        >>> summarise([[0.5, 0.3], [0.4, 0.4]], batch=2, gflops=10, ceilings=[100, 200])
        {'images_per_s': 5.0, 'p50_ms': 400.0, 'p99_ms': 500.0, 'ceiling_share': 0.375}
    """
    rates = [batch * len(passes) / sum(passes) for passes in rounds]
    share = None
    if ceilings:
        # Round by round: other load on the machine slows both.
        share = statistics.median(
            rate * gflops / ceiling for rate, ceiling in zip(rates, ceilings, strict=True)
        )
    every = sorted(seconds for passes in rounds for seconds in passes)
    return {
        "images_per_s": statistics.median(rates),
        "p50_ms": 1000 * statistics.median(every),
        "p99_ms": 1000 * every[math.ceil(0.99 * len(every)) - 1],
        "ceiling_share": share,
    }


def bench(
    loaded: LoadedModel,
    settings: BenchSettings,
    *,
    samples: comparison.Samples,
    store: Path | None = None,
    on_stage: OnStage = lambda stage: None,
) -> BenchReport:
    """Benchmark a model's engines, and store the results for ``engine="auto"``.

    Args:
        loaded: a classifier or a detector.
        samples: to compare outputs on and to calibrate int8.
        store: folder of results and exported models; None keeps nothing.

    Returns:
        : All figures, and why the store could not be written, if so.
    """
    fault = None if store is None else choice.why_unwritable(store)
    keeper = store if fault is None else None
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shape = turns.shape_for(loaded.model)
        loaded.save(scratch / MODEL_FOLDER)
        bench_of = _Bench(loaded, settings, samples, shape, keeper or scratch / "store", scratch, on_stage)
        products = turns.start_products(shape, settings.precisions, stack, threads=settings.threads)
        prepared, failed = [], []
        for engine in settings.engines:
            for precision in settings.precisions:
                try:
                    prepared.append(bench_of.start_engine(engine, precision, stack))
                except VitrailError as error:
                    reason = error.reason if isinstance(error, EngineError) else str(error)
                    failed.append(choice.BenchResult(engine=engine, precision=precision, reason=reason))
        report = bench_of.measure(products, prepared, failed)
        if keeper is not None:
            report = bench_of.keep(report)
        return report.model_copy(update={"unstored": fault}) if fault is not None else report


@dataclass(frozen=True)
class _Bench:
    """One run of ``bench``."""

    loaded: LoadedModel
    settings: BenchSettings
    samples: comparison.Samples
    shape: turns.ProductShape
    store: Path
    scratch: Path
    """Where the model is, too."""
    on_stage: OnStage

    def start_engine(
        self, engine: EngineName, precision: Precision, stack: ExitStack
    ) -> tuple[choice.BenchResult, RemoteEngine]:
        """Start an engine, export the model for it if needed, and compare its outputs.

        Returns:
            : The outcome of the comparison, without figures, and the engine.

        Raises:
            VitrailError: the engine is unavailable here.
        """
        kind = find_kind(engine)
        if precision not in kind.precisions:
            raise EngineError(f"{engine} has no {precision}")
        kind.check(precision, torch.device("cpu"))
        self.on_stage(f"preparing {engine} in {precision}")
        arguments: dict[str, Any] = {"engine": engine, "precision": precision}
        is_labelled = self.samples.has_labels and self.samples.calibration is not None
        exports = kind.format != "torch" and (precision != "int8" or is_labelled)
        package = f"{kind.format}-{precision}" if exports else None
        if package is not None:
            export_model(
                self.loaded,
                self.store / package,
                export_format=kind.format,
                precision=precision,
                samples=self.samples,
            )
            arguments["package"] = str(self.store / package)
        elif precision == "int8":
            arguments["calibration"] = self._write_calibration()
        arguments["model"] = str(self.scratch / MODEL_FOLDER)
        remote = RemoteEngine(
            "vitrail.engines.remote:build_engine_of", arguments, threads=self.settings.threads
        )
        stack.enter_context(remote)
        reason = judge(self.loaded, remote, self.samples, precision, is_scored=package is not None)
        compared = choice.BenchResult(
            engine=engine,
            precision=precision,
            agrees=reason is None,
            package=package,
            is_kept=package is not None or precision != "int8",
            reason=reason,
        )
        return compared, remote

    def measure(
        self,
        products: dict[Precision, RemoteEngine],
        prepared: Sequence[tuple[choice.BenchResult, RemoteEngine]],
        failed: Sequence[choice.BenchResult],
    ) -> BenchReport:
        asked = self.settings
        outcomes = {(each.engine, each.precision): each for each in failed}
        contenders = {}
        for outcome, remote in prepared:
            outcomes[outcome.engine, outcome.precision] = outcome
            for batch in asked.batches:
                title = f"{outcome.engine} in {outcome.precision}"
                contenders[batch, outcome.engine, outcome.precision] = turns.Contender(remote, batch, title)
        ceilings = turns.take_turns(
            [*contenders.values()],
            products,
            shape=self.shape,
            make_batch=lambda batch: make_batch(self.loaded, batch),
            rounds=asked.rounds,
            on_stage=self.on_stage,
        )
        gmacs, results = count_gmacs(self.loaded), []
        for batch, engine, precision in product(asked.batches, asked.engines, asked.precisions):
            found: dict[str, Any] = {"batch": batch}
            contender = contenders.get((batch, engine, precision))
            if contender is not None and contender.reason is not None:
                found |= {"agrees": False, "reason": contender.reason}
            elif contender is not None:
                rates = ceilings.get(precision)
                found |= summarise(contender.seconds, batch=batch, gflops=2 * gmacs, ceilings=rates)
                found["peak_mib"] = contender.peak_mib
            results.append(outcomes[engine, precision].with_changes(found))
        return BenchReport(
            name=str(self.loaded.model_settings.get("name", "the model")),
            size=self.loaded.preprocessing["image_size"],
            gmacs=gmacs,
            machine=choice.describe_machine(),
            threads=asked.threads,
            rounds=asked.rounds,
            product=tuple(self.shape),
            ceilings={name: statistics.median(rates) for name, rates in ceilings.items()},
            images=self.samples.title,
            results=tuple(results),
            versions=turns.find_versions(),
        )

    def keep(self, report: BenchReport) -> BenchReport:
        """Store the results, and return the report with their folder, or why it could not be written."""
        measured = tuple(each for each in report.results if each.ran)
        choices = choice.EngineChoices(
            machine=report.machine,
            threads=report.threads,
            weights=digest_model(self.loaded),
            measured=measured,
        )
        ran = {(each.engine, each.precision) for each in measured}
        failed = {(each.engine, each.precision) for each in report.results} - ran
        try:
            choice.write_choices(self.store, choice.add_former(self.store, choices, failed))
        except CheckpointError as error:
            return report.model_copy(update={"unstored": error.given})
        return report.model_copy(update={"folder": str(self.store)})

    def _write_calibration(self) -> list[str]:
        folder = self.scratch / "calibration"
        if not folder.exists():
            folder.mkdir()
            for index, inputs in enumerate(
                comparison.calibration_batches(self.samples, ports_of(self.loaded))
            ):
                write_inputs(folder / f"{index:04}.safetensors", inputs)
        return [str(file) for file in sorted(folder.iterdir())]


def judge(
    loaded: LoadedModel,
    engine: Engine | RemoteEngine,
    samples: comparison.Samples,
    precision: Precision,
    *,
    is_scored: bool = False,
) -> str | None:
    """Return why an engine's outputs do not agree with the model's; None if they do.

    Args:
        precision: determines the tolerance, as for exports; with labels, the score counts as well.
        is_scored: whether the score has been compared on all images already, as for an export.

    Raises:
        EngineError: it fails.
        DataError: no image can be read.
    """
    scores = comparison.is_scored_whole(precision, samples) and not is_scored
    indices = comparison.spread(len(samples.source), NUM_SCORED if scores else comparison.NUM_COMPARED)
    found = comparison.compare(loaded.model, engine.run, samples, indices, ports_of(loaded))
    try:
        comparison.check_differences(found, precision)
        if not is_scored:
            comparison.check_loss(
                found, samples.objective.headline, precision, comparison.DEFAULT_LOSS_POINTS
            )
    except CheckpointError as error:
        return error.given
    return None


def ports_of(loaded: LoadedModel) -> tuple[PortSpec, ...]:
    """Return the input ports of a model's engine, of a size that holds every image."""
    config: Any = loaded.model.config
    return input_ports(config, canvas_of(loaded))


def make_batch(loaded: LoadedModel, batch: int) -> Inputs:
    """Return random images of a model's size as engine inputs."""
    config: Any = loaded.model.config
    images, *sizes = config.example_inputs(batch, tuple(loaded.preprocessing["image_size"]))
    return (torch.randn(images.shape, generator=torch.Generator().manual_seed(batch)), *sizes)


def count_gmacs(loaded: LoadedModel) -> float:
    """Return 10^9 multiply-accumulates per image."""
    return count_model(loaded.config, tuple(loaded.preprocessing["image_size"])).macs / 1e9
