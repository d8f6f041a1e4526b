"""The command bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.app import EXIT_SOME_FAILED, Count, app


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
    from vitrail.cli import show as terminal
    from vitrail.cli.show.lines import show_stage
    from vitrail.cli.show.studies import show_bench
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
        on_stage=show_stage,
    )
    show_bench(report)
    if json is not None:
        terminal.show_json(report.model_dump(mode="json"), json)
    return 0 if any(result.ran for result in report.results) else EXIT_SOME_FAILED
