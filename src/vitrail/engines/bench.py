"""Benchmark every engine and precision of a model in interleaved rounds, beside the machine's matrix product
ceiling.

Each engine runs in its own process, so that memory, threads and crashes are isolated. The matrix products
come first in every round: other load on the machine slows all of them.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field

from vitrail.core.config import Config
from vitrail.core.errors import CheckpointError, VitrailError
from vitrail.engines.agreement import judge
from vitrail.engines.bench_report import BenchCell, BenchReport, summarise
from vitrail.engines.building import find_kind
from vitrail.engines.ceiling import ProductShape, shape_for
from vitrail.engines.cell_process import write_inputs
from vitrail.engines.choice import (
    EngineChoices,
    Measured,
    add_former,
    describe_machine,
    why_unwritable,
    write_choices,
)
from vitrail.engines.contract import ENGINES, PRECISIONS, EngineName
from vitrail.engines.export.digest import digest_model
from vitrail.engines.export.exporting import export_model
from vitrail.engines.export.package import Precision
from vitrail.engines.export.samples import Samples, generate_samples
from vitrail.engines.remote import CellError, RemoteCell
from vitrail.engines.turns import CELLS, Contender, Timed, find_versions, start_products, take_turns
from vitrail.engines.workload import calibration_batches, count_gmacs, image_size, make_batch
from vitrail.models.checkpoint import LoadedModel, save_model

NUM_COMPARED = 64  # images

OnStage = Callable[[str], None]
"""Called with the current stage."""


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


class _Prepared(NamedTuple):
    """A running engine, with the outcome of the comparison."""

    first: BenchCell
    """Its cell of the first batch size."""
    remote: RemoteCell
    package: str | None


def bench(
    loaded: LoadedModel,
    settings: BenchSettings,
    *,
    samples: Samples | None = None,
    store: Path | None = None,
    on_stage: OnStage = lambda stage: None,
) -> BenchReport:
    """Benchmark a model's engines, and store the results for ``engine="auto"``.
        loaded: a classifier or a detector.
        samples: to compare outputs on and to calibrate int8; generated ones by default.
        store: folder of results and exported models; None keeps nothing.

    Returns:
        : All figures, and why the store could not be written, if so.

    Raises:
        ConfigError: the model is none of images.
    """
    has_data = samples is not None
    fault = None if store is None else why_unwritable(store)
    keeper = store if fault is None else None
    samples = generate_samples(loaded, NUM_COMPARED) if samples is None else samples
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench_of = _Bench(loaded, settings, samples, keeper or scratch / "store", scratch, has_data, on_stage)
        threads = settings.threads
        products = start_products(bench_of.shape, settings.precisions, stack, threads=threads)
        prepared, failed = [], []
        for engine in settings.engines:
            for precision in settings.precisions:
                try:
                    prepared.append(bench_of.start_engine(engine, precision, stack))
                except VitrailError as error:
                    reason = error.reason if isinstance(error, CellError) else str(error)
                    failed.append(BenchCell(engine=engine, precision=precision, batch=1, reason=reason))
        report = bench_of.measure(products, prepared, failed)
        if keeper is not None:
            report = bench_of.keep(report, prepared)
        return report.model_copy(update={"unstored": fault}) if fault is not None else report


class _Bench:
    """One run of ``bench``."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: BenchSettings,
        samples: Samples,
        store: Path,
        scratch: Path,
        has_data: bool,
        on_stage: OnStage,
    ) -> None:
        self.loaded, self.settings, self.samples = loaded, settings, samples
        self.store, self.scratch, self.has_data, self.on_stage = store, scratch, has_data, on_stage
        self.shape: ProductShape = shape_for(loaded.model)
        self.gflops = 2 * count_gmacs(loaded)
        self.model_folder = scratch / "model"
        save_model(
            self.model_folder,
            loaded.model,
            model_settings=loaded.model_settings,
            preprocessing=loaded.preprocessing,
            class_names=loaded.class_names,
            about=loaded.about,
            files=loaded.files,
        )

    def start_engine(self, engine: EngineName, precision: Precision, stack: ExitStack) -> _Prepared:
        """Start an engine, export the model for it if needed, and compare its outputs.

        Raises:
            VitrailError: the engine is unavailable here.
        """
        kind = find_kind(engine)
        if precision not in kind.precisions:
            raise CellError(f"{engine} has no {precision}")
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
                samples=self.samples if self.has_data else None,
            )
            arguments["package"] = str(self.store / package)
        elif precision == "int8":
            arguments["calibration"] = self._write_calibration()
        arguments["model"] = str(self.model_folder)
        remote = RemoteCell(f"{CELLS}:build_cell", arguments, threads=self.settings.threads)
        stack.enter_context(remote)
        reason = judge(self.loaded, remote, self.samples, precision, is_scored=package is not None)
        cell = BenchCell(
            engine=engine,
            precision=precision,
            batch=1,
            agrees=reason is None,
            is_kept=package is not None or precision != "int8",
            reason=reason,
        )
        return _Prepared(cell, remote, package)

    def measure(
        self,
        products: dict[Precision, RemoteCell],
        prepared: Sequence[_Prepared],
        failed: Sequence[BenchCell],
    ) -> BenchReport:
        """Run all rounds, and collect the figures."""
        cells = [
            each.first.with_changes({"batch": batch}) for each in prepared for batch in self.settings.batches
        ]
        remotes = [each.remote for each in prepared for _ in self.settings.batches]
        turns = take_turns(
            [
                Contender(remote, cell.batch, f"{cell.engine} in {cell.precision}")
                for cell, remote in zip(cells, remotes, strict=True)
            ],
            products,
            shape=self.shape,
            make_batch=lambda batch: make_batch(self.loaded, batch),
            rounds=self.settings.rounds,
            on_stage=self.on_stage,
        )
        cells = [
            self._fill(cell, timed, turns.ceilings.get(cell.precision))
            for cell, timed in zip(cells, turns.timed, strict=True)
        ]
        others = [each.with_changes({"batch": batch}) for each in failed for batch in self.settings.batches]
        return BenchReport(
            name=str(self.loaded.model_settings.get("name", "the model")),
            size=image_size(self.loaded),
            gmacs=self.gflops / 2,
            machine=describe_machine(),
            threads=self.settings.threads,
            rounds=self.settings.rounds,
            product=tuple(self.shape),
            ceilings={name: statistics.median(rates) for name, rates in turns.ceilings.items()},
            images=self.samples.title,
            cells=tuple(sorted([*cells, *others], key=self._order)),
            versions=find_versions(),
        )

    def _fill(self, cell: BenchCell, timed: Timed, ceilings: Sequence[float] | None) -> BenchCell:
        """Return a cell with its figures, or with the reason for having none."""
        if timed.reason is not None:
            return cell.with_changes({"agrees": False, "reason": timed.reason})
        figures = summarise(timed.seconds, batch=cell.batch, gflops=self.gflops, ceilings=ceilings)
        return cell.with_changes({**figures._asdict(), "peak_mib": timed.peak_mib})

    def keep(self, report: BenchReport, prepared: Sequence[_Prepared]) -> BenchReport:
        """Store the results, and return the report with their folder, or why it could not be written."""
        of_engine = {(each.first.engine, each.first.precision): each for each in prepared}
        measured = tuple(
            Measured(
                engine=cell.engine,
                precision=cell.precision,
                batch=cell.batch,
                images_per_s=cell.images_per_s,
                agrees=cell.agrees,
                package=of_engine[cell.engine, cell.precision].package,
                is_kept=cell.is_kept,
            )
            for cell in report.cells
            if cell.ran
        )
        ran = {(cell.engine, cell.precision) for cell in report.cells if cell.ran}
        choices = EngineChoices(
            machine=report.machine,
            threads=report.threads,
            weights=digest_model(self.loaded),
            measured=measured,
        )
        failed = {(cell.engine, cell.precision) for cell in report.cells} - ran
        try:
            write_choices(self.store, add_former(self.store, choices, failed))
        except CheckpointError as error:
            return report.model_copy(update={"unstored": error.given})
        return report.model_copy(update={"folder": str(self.store)})

    def _write_calibration(self) -> list[str]:
        folder = self.scratch / "calibration"
        if not folder.exists():
            folder.mkdir()
            for place, inputs in enumerate(calibration_batches(self.loaded, self.samples)):
                write_inputs(folder / f"{place:04}.safetensors", inputs)
        return [str(file) for file in sorted(folder.iterdir())]

    def _order(self, cell: BenchCell) -> tuple[int, ...]:
        places = (ENGINES.index(cell.engine), PRECISIONS.index(cell.precision))
        return (self.settings.batches.index(cell.batch), *places)
