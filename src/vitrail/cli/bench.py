"""The command bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli import show
from vitrail.cli.app import EXIT_SOME_FAILED, Count, app
from vitrail.core.durable import atomic_write

if TYPE_CHECKING:
    from vitrail.engines.bench import BenchReport
    from vitrail.engines.choice import BenchResult

HEADER = ("engine", "precision", "images/s", "p50 ms", "p99 ms", "MiB", "% of peak", "")


@app.command(help_epilogue="Example: vitrail bench runs/photos --batch 1,8")
def bench(
    model_or_run: str,
    /,
    *,
    batch: str = "1,8",
    engines: str | None = None,
    precisions: str | None = None,
    size: str | None = None,
    data: str | None = None,
    threads: Count | None = None,
    rounds: Count = 7,
    json: Annotated[Path | None, Parameter(name="--json")] = None,
) -> int:
    """Measure how fast each engine runs a model here, relative to the fastest matrix product.

    The choice is stored for engine="auto": beside a run, or for a published model in the user's cache.

    Args:
        model_or_run: A run directory, a checkpoint folder, a published model, or a name of `vitrail models`,
            which gets random weights and stores no choice.
        batch: Comma-separated batch sizes, such as 1,8.
        engines: Some of torch, compiled, onnxruntime, openvino. Default: all.
        precisions: Some of float32, bfloat16, int8. Default: all.
        size: Height and width of the images in pixels, such as 224 or 384x512. Default: the model's own.
        data: Images to compare outputs and calibrate int8 on, instead of the run's own.
        threads: Threads of each engine. Default: as many as torch uses.
        rounds: Number of interleaved timing rounds.
        json: File to write all figures to.
    """
    from vitrail.studies.benching import bench_model

    report = bench_model(
        model_or_run,
        batches=batch,
        engines=engines,
        precisions=precisions,
        size=size,
        data=data,
        threads=threads,
        rounds=rounds,
        on_stage=show.stage,
    )
    show_bench(report)
    if json is not None:
        atomic_write(json, show.to_json(report.model_dump(mode="json")) + "\n")
        show.lines([str(json)])
    return 0 if any(result.ran for result in report.results) else EXIT_SOME_FAILED


def show_bench(report: BenchReport) -> None:
    """Print the results of each batch size, the best engine marked, and their conditions."""
    height, width = report.size
    show.wrapped(
        f"{report.name}, {height}x{width}, {report.gmacs:.2f} GMACs an image; {report.machine}, "
        f"{report.threads} threads, {report.rounds} rounds"
    )
    rows, inner, columns = report.product
    ceilings = ", ".join(f"{name} {rate:,.0f}" for name, rate in report.ceilings.items())
    show.wrapped(f"peak, a product of {rows}x{inner} with {inner}x{columns}, in GFLOP/s: {ceilings}")
    for batch in dict.fromkeys(result.batch for result in report.results):
        of_batch = [result for result in report.results if result.batch == batch]
        best = report.best(batch)
        show.lines(["", f"batch {batch}"])
        show.table(HEADER, [_figures(result, is_best=result == best) for result in of_batch], texts=(0, 1))
        for result in of_batch:
            if result.reason is not None:
                differ = "outputs differ: " if result.ran else ""
                show.wrapped(f"{result.engine} in {result.precision}: {differ}{result.reason}", indent="  ")
    show.lines([""])
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    show.wrapped(f"outputs compared on {report.images}; {versions}")
    if report.unstored is not None:
        show.wrapped(f"the choice is not stored: {report.unstored}")
    if report.folder is not None:
        show.wrapped(f'* the fastest whose outputs agree, used by engine="auto"; stored in {report.folder}')


def _figures(result: BenchResult, *, is_best: bool) -> list[str]:
    if not result.ran:
        return [result.engine, result.precision]
    return [
        result.engine,
        result.precision,
        f"{result.images_per_s:.2f}",
        f"{result.p50_ms:.1f}",
        f"{result.p99_ms:.1f}",
        f"{result.peak_mib:.0f}",
        "" if result.ceiling_share is None else f"{100 * result.ceiling_share:.0f}",
        "*" if is_best else "",
    ]
