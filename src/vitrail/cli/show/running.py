"""Terminal output while training, exporting and serving."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import (
    MAX_WIDTH,
    is_first_process,
    show_facts,
    show_lines,
    show_signature,
    show_table,
)

if TYPE_CHECKING:
    from vitrail.data.findings import Verdict
    from vitrail.engines.export.package import Comparison, Package
    from vitrail.serve.running import ServeEvent
    from vitrail.tasks.preparing import Prepared
    from vitrail.tasks.training import OnPipelineEvent, PipelineEvent, TrainedRun
    from vitrail.train.evaluate import Report
    from vitrail.train.events import OnEvent


@contextmanager
def show_training() -> Iterator[OnPipelineEvent]:
    """Yield a listener for ``train``: verdict and choices, then the run and its progress.

    Of several processes the pipeline calls only the first one's.
    """
    from vitrail.cli.show.progress import show_progress
    from vitrail.tasks.preparing import Prepared
    from vitrail.tasks.training import Began, Checked, Finished

    console = Console()
    with ExitStack() as stack:
        progress: OnEvent | None = None

        def listen(event: PipelineEvent) -> None:
            nonlocal progress
            if isinstance(event, Checked):
                _show_verdict(console, event.verdict)
            elif isinstance(event, Prepared):
                _show_choices(event)
            elif isinstance(event, Began):
                console.print(Text(f"run {event.folder}"), soft_wrap=True)
                progress = stack.enter_context(show_progress(console))  # not while the data is checked
            elif isinstance(event, Finished):
                stack.close()
                console.print("evaluating and writing the report ...")
            else:
                assert progress is not None, "a training that has not begun"
                progress(event)

        yield listen


def show_trained(trained: TrainedRun) -> None:
    """Print the final scores and, as the last line, the headline score and the path of the report."""
    if is_first_process():
        show_lines(_score_lines(trained.scores))
        show_lines([f"{trained.headline} {trained.score:.3f}  report {trained.report_path}"])


def show_report(report: Report) -> None:
    """Print the scores of an evaluation and their signature."""
    if is_first_process():
        show_lines(_score_lines(report.scores))
        show_signature(report.signature)


def _show_verdict(console: Console, verdict: Verdict) -> None:
    console.print(Text("\n".join(verdict.summary(width=min(console.width, MAX_WIDTH)))))
    console.print("choosing, and measuring a few steps ...")


def _show_choices(prepared: Prepared) -> None:
    show_table(("setting", "value", "reason"), prepared.choices, texts=(0, 1, 2))


def _score_lines(scores: Mapping[str, float]) -> list[str]:
    width = max(map(len, scores), default=0)
    return [f"{name:<{width}}  {score:.4f}" for name, score in scores.items()]


def show_package(package: Package) -> None:
    """Print where a package is, its inputs, and how it compares with the model in torch."""
    show_lines([str(package.folder)])
    show_facts(_rows(package), None if sys.stdout.isatty() else MAX_WIDTH)


def _rows(package: Package) -> Iterator[tuple[str, str]]:
    name = package.model_settings.get("name", "a model")
    yield "model", f"{name}, {package.format}, {package.precision}"
    for label, ports in (("input", package.inputs), ("output", package.outputs)):
        shapes = (f"{port.name} {' x '.join(map(str, port.axes))}" for port in ports)
        multiple = max(port.multiple_of for port in ports)
        note = f" (height and width in multiples of {multiple})" if multiple > 1 else ""
        yield label, f"{', '.join(shapes)}{note}"
    yield from _compared(package.comparison, package)


def _compared(found: Comparison, package: Package) -> Iterator[tuple[str, str]]:
    is_generated = found.num_scored == 0  # their title gives the number
    number = "" if is_generated else f"{found.num_images:,} images of "
    yield "compared on", f"{number}{found.images}"
    allowed = "maximum allowed" if package.precision == "float32" else "mean allowed"
    greatest, mean = f"{found.largest_logit_difference:.1e}", f"{found.mean_logit_difference:.1e}"
    yield "logits differ", f"by {greatest} at most, {mean} on average ({allowed}: {package.tolerance:.2g})"
    of_what = "images"
    if found.largest_box_difference is not None and found.mean_box_difference is not None:
        of_what = "boxes"
        greatest, mean, most = (
            f"{100 * (share or 0):.2g} %"
            for share in (found.largest_box_difference, found.mean_box_difference, package.box_tolerance)
        )
        yield "boxes differ", f"by {greatest} of the image at most, {mean} on average ({allowed}: {most})"
    yield "same prediction", f"for {100 * found.top1_agreement:.2f} % of the {of_what}"
    for name, pair in found.scores.items():
        points = "" if name == "nll" else f" ({100 * (pair.export - pair.model):+.2f} points)"
        yield name, f"{pair.model:.4f} in torch, {pair.export:.4f} exported{points}"


def show_serving(event: ServeEvent) -> None:
    """Print a line for an event, at once."""
    from vitrail.serve.running import Listening, ModelFailed, ModelLoaded

    if isinstance(event, Listening):
        if event.is_open:
            sys.stderr.write(
                "vitrail: warning: other machines can reach this server, and it asks for no token\n"
            )
        lines = [f"serving on {event.url} (Ctrl+C stops)"]
    elif isinstance(event, ModelLoaded):
        lines = [f"ready    {event.name}: {event.kind}, loaded in {event.seconds:.1f} s"]
    elif isinstance(event, ModelFailed):
        sys.stderr.write(f"vitrail: failed: {event.name}: {event.error}\n")
        lines = []
    else:
        lines = ["stopping, accepted requests are answered first"]
    show_lines(lines)
    sys.stdout.flush()
