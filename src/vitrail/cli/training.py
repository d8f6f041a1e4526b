"""Commands that make and score models: train, evaluate, check."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vitrail.cli import show
from vitrail.cli.app import EXIT_USER_ERROR, Flag, Output, Settings, Texts, app, data_settings, read_names
from vitrail.core.duration import format_duration, parse_duration
from vitrail.core.errors import ConfigError, refuse

if TYPE_CHECKING:
    from vitrail.tasks.training import OnPipelineEvent, PipelineEvent, TrainedRun
    from vitrail.train.evaluate import Report
    from vitrail.train.events import Event, Logged, OnEvent


@app.command(help_epilogue="Example: vitrail train photos/ --budget 10m --set train.batch_size=64")
def train(
    data: str | None = None,
    /,
    *,
    model: str | None = None,
    weights: str | None = None,
    budget: str | None = None,
    languages: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    recipe: str | None = None,
    config: Path | None = None,
    set_: Settings = (),
    resume: Path | None = None,
    dry_run: Flag = False,
    output: Path = Path("runs"),
    name: str | None = None,
    seed: int | None = None,
) -> int:
    """Train a classifier, detector, translator, labeller, captioner or CLIP; the data or --model decides.

    Args:
        data: Images by class, with boxes or captions, sentence pairs, or labelled texts: a folder, a table,
            or a name.
        model: A model of `vitrail models`. Default: chosen for the data and the machine.
        weights: Start from a run, a saved model or a published one, such as timm:NAME or hf:OWNER/NAME.
        budget: Time limit of the training, such as 90s, 10m or 1h30m.
        languages: Source and target language of sentence pairs, such as en,de.
        image_column: Column of image files in a table of images with classes. Default: found by its name.
        label_column: Likewise of the classes, or of the labels of texts.
        recipe: A named experiment; it takes precedence over the automatic choices.
        config: The config.json of an earlier run, to repeat it.
        set_: One setting, such as optim.learning_rate=0.001; may be given several times.
        resume: The run directory of a stopped run, to resume it; with --budget, train any run for longer.
        dry_run: Print the verdict and every choice with its reason, and stop.
        output: Parent folder of the run directory.
        name: Name of the run directory. Default: date and data.
        seed: Seed of weights, order and augmentation.
    """
    from vitrail.core.config import parse_assignments

    changes = parse_assignments(set_) | data_settings(languages, image_column, label_column)
    budget_s = None if budget is None else parse_duration(budget)
    from vitrail.tasks.training import TrainedRun
    from vitrail.tasks.training import train as run_train

    with show_training() as listen:
        trained = run_train(
            data,
            model=model,
            weights=weights,
            budget_s=budget_s,
            recipe=recipe,
            config=config,
            changes=changes,
            resume=resume,
            output=output,
            name=name,
            seed=seed,
            dry_run=dry_run,
            spent_s=_age_s() if sys.argv[1:2] == ["train"] else 0.0,  # not in a notebook or a test
            on_event=listen,
        )
    if isinstance(trained, TrainedRun):
        show_trained(trained)
    return 0


def _age_s() -> float:
    """Return how long this process has run, imports included."""
    import psutil

    return time.time() - psutil.Process().create_time()


@app.command(help_epilogue="Example: vitrail evaluate runs/photos photos/ --split validation")
def evaluate(
    run: Path,
    data: str,
    /,
    *,
    split: str | None = None,
    merge_tokens: int = 0,
    template: Texts = (),
    names: str | None = None,
    names_file: Path | None = None,
    alignments: Path | None = None,
    tags: Path | None = None,
    figures: Path | None = None,
    json: Flag = False,
) -> int:
    """Score a trained model on a data set; a CLIP by retrieval, or zero-shot by class names.

    Args:
        run: A run directory or a checkpoint folder.
        data: Any data that `vitrail train` takes, with the same classes (CLIP: any classes).
        split: train, validation or test. Default: test; of other data that names no test split, all.
        merge_tokens: ViT only: similar tokens to merge in each block, for speed; see docs/merging.md.
        template: CLIP only: prompt with {} for the class name, or seven; may be given several times.
        names: CLIP only: comma-separated class names, in the data set's class order.
        names_file: CLIP only: file with one class name per line, instead of --names.
        alignments: Translators only: score attention against gold word links in this file instead
            (Pharaoh, .talp or NAACL 2003).
        tags: Translators only: parts of speech of the target words, to show how concentrated attention is.
        figures: Detectors only: page (.html) or picture (.png, .svg, .pdf) of scores by decoder block with
            and without NMS, and of where each object query looks; the page also shows a matching.
        json: Print the whole report as JSON.
    """
    are_named = names is not None or names_file is not None
    chosen = read_names(names, names_file) if are_named else ()
    if alignments is not None or tags is not None:
        of_images = {"merge_tokens": merge_tokens or None, "template": template, "figures": figures}
        refuse({**of_images, "names": are_named}, "a model of images, without --alignments and --tags")
        from vitrail.studies.aligning import measure_alignments

        report = measure_alignments(run, data, alignments=alignments, tags=tags, split=split or "test")
        if json:
            show.json(report.model_dump(mode="json"))
        else:
            show_alignments(report)
            show_report(report, data, run.name)
        return 0
    from vitrail.tasks.evaluating import evaluate as run_evaluate

    report = run_evaluate(
        run, data, split=split, merge_tokens=merge_tokens, templates=template, names=chosen, figures=figures
    )
    from vitrail.tasks.classification.published_scores import published_rows

    if json:
        published = [row._asdict() for row in published_rows(data)]
        show.json(report.model_dump(mode="json") | ({"published": published} if published else {}))
    else:
        show_report(report, data, run.name)
    return 0


@app.command(help_epilogue="Example: vitrail check photos/")
def check(
    data: str,
    /,
    *,
    languages: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    json: Flag = False,
    output: Output = None,
    fix: Path | None = None,
) -> int:
    """Check a data set before any training; exit code 2 if it is unusable.

    Args:
        data: Any data that `vitrail train` takes.
        languages: Source and target language of sentence pairs, such as en,de.
        image_column: Column of image files in a table of images with classes. Default: found by its name.
        label_column: Likewise of the classes, or of the labels of texts.
        json: Print every finding as JSON.
        output: Write an .html page: samples, findings, classes and sizes.
        fix: Images with boxes only: write a clean copy into this folder, and check it.
    """
    from vitrail.tasks.contract import Repairing
    from vitrail.tasks.registry import task_of_source
    from vitrail.tasks.request import read_asked

    asked = data_settings(languages, image_column, label_column)
    task = task_of_source(data, asked)
    if fix is not None:
        if not isinstance(task, Repairing):
            raise ConfigError(
                f"--fix was given, and {data} has no boxes",
                expected="images with boxes: COCO, Pascal VOC or YOLO",
                remedy="Leave out --fix; --output writes a page of all findings of any data",
            )
        task.refuse_folder(fix, data)
    settings = read_asked(task, asked).data
    dataset = task.open(settings.model_copy(update={"source": data}))
    with show.parts_done() as listen:
        verdict = task.check(dataset, lambda done, total: listen("images checked", done, total))
    tree, is_usable = verdict.to_json(), verdict.usable

    def tell(lines: list[str]) -> None:
        if not json:
            show.lines(lines)

    tell(verdict.summary())
    if output is not None:
        from vitrail.tasks.data_page import write_data_page

        write_data_page(output, dataset, verdict, task.view(dataset))
        tell([f"page {output}"])
    if fix is not None and isinstance(task, Repairing):
        fixed = task.write_clean(dataset, fix)
        left = task.check(task.open(settings.model_copy(update={"source": str(fixed.folder)})))
        tell([*fixed.summary(), *left.summary()])
        tree |= {"fixed": fixed.to_json(), "copy": left.to_json()}
        is_usable = left.usable
    if json:
        show.json(tree)
    return 0 if is_usable else EXIT_USER_ERROR


@contextmanager
def show_training() -> Iterator[OnPipelineEvent]:
    """Yield a listener for ``train``: verdict and choices, then the run and its progress.

    Of several processes the pipeline calls only the first one's.
    """
    from vitrail.tasks.preparing import Checked, Checking, Prepared
    from vitrail.tasks.training import Began, Finished

    console = Console()
    with ExitStack() as stack, ExitStack() as check:
        progress: OnEvent | None = None
        checked: Callable[[str, int, int], None] | None = None

        def listen(event: PipelineEvent) -> None:
            nonlocal progress, checked
            if isinstance(event, Checking):
                checked = checked or check.enter_context(show.parts_done())
                checked("images checked", event.done, event.total)
            elif isinstance(event, Checked):
                check.close()
                width = min(console.width, show.MAX_WIDTH)
                console.print(show.styled("\n".join(event.verdict.summary(width=width))))
                console.print("choosing, and measuring a few steps ...")
            elif isinstance(event, Prepared):
                show.table(("setting", "value", "reason"), event.choices, texts=(0, 1, 2))
            elif isinstance(event, Began):
                console.print(show.styled(f"run {event.folder}"), soft_wrap=True)
                progress = stack.enter_context(show_progress(console))  # not while the data is checked
            elif isinstance(event, Finished):
                stack.close()
                console.print("evaluating and writing the report ...")
            else:
                assert progress is not None, "a training that has not begun"
                progress(event)

        yield listen


@contextmanager
def show_progress(console: Console) -> Iterator[OnEvent]:
    """Yield a listener for ``fit``: a bar on a terminal, occasional lines elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    from vitrail.train.events import Kept, Logged, Replanned, Started, Stepped, StoppedEarly, Validated

    columns = BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn()
    with show.live(console, *columns) as live:
        state = scores = ""
        plans: list[int] = []

        def listen(event: Event) -> None:
            nonlocal state, scores
            if isinstance(event, Started | Stepped):
                live.update(f"{state} {scores}", completed=event.step, total=event.steps)
            if isinstance(event, Started):
                begun = f"resuming after step {event.step} of {event.steps}"
                if event.step == event.steps:
                    begun = f"all {event.steps} steps are done already"
                live.write(begun if event.step else f"training for {event.steps} steps")
            elif isinstance(event, Logged):
                state = _describe(event)
                live.update(f"{state} {scores}")
                if event.step == event.steps or live.is_due:
                    left_s = event.elapsed_s / event.step * (event.steps - event.step)
                    live.write(f"step {event.step}/{event.steps}, {state}, {format_duration(left_s)} left")
            elif isinstance(event, Validated):
                named = (
                    f"{show.IN_WORDS.get(name, name)} {score:.4f}"
                    for name, score in event.scores.items()
                    if isinstance(score, float)
                )
                scores = "validation " + ", ".join(named)
                live.write(f"step {event.step}, {scores}")
            elif isinstance(event, Replanned):  # the bar shows each one, a line at the end where all led
                plans.extend((event.former_steps, event.steps))
            elif isinstance(event, StoppedEarly):
                live.update(f"{state} {scores}", total=event.step)
                plans.clear()
                ended = f"stopped early at step {event.step} of {event.former_steps}"
                if event.best is not None:
                    ended += f": {event.score} was best at step {event.best_step}, {event.best:.4f}"
                live.print(ended)
            elif isinstance(event, Kept):
                live.print(
                    f"the weights of step {event.step} are kept, the best validation of {event.steps} steps"
                )

        yield listen
        if plans and plans[0] != plans[-1]:
            pace = "slower" if plans[-1] < plans[0] else "faster"
            live.print(
                f"the machine was {pace} than measured before: {plans[-1]} steps instead of {plans[0]}"
            )


def _describe(event: Logged) -> str:
    parts = "".join(f", {show.IN_WORDS.get(name, name)} {value:.3f}" for name, value in event.parts.items())
    rate = event.samples_per_s if event.items_per_s is None else event.items_per_s
    return f"loss {event.loss:.3f}{parts}, {rate:.0f} {event.unit}/s"


def show_trained(trained: TrainedRun) -> None:
    """Print the final scores, what is the matter, and the headline score with the path of the report."""
    if show.is_first_process():
        show.scores(trained.scores)
        for sentence in filter(None, (*trained.diagnosis.problems, trained.diagnosis.remedy)):
            show.wrapped(sentence, indent="  ")
        former = trained.former_scores.get(trained.headline)
        before = "" if former is None else f" (before: {former:.3f})"
        show.lines([f"{trained.headline} {trained.score:.3f}{before}  report {trained.report_path}"])


def show_alignments(report: Report) -> None:
    """Print the means over heads of every layer with the best head, and the parts of speech."""
    maps, tags = report.tables["maps"], report.tables["tags"]
    heads: list[dict[str, Any]] = [dict(row) for row in maps if row["head"] is not None]
    heads.sort(key=lambda row: row["aer"] if "aer" in row else row["entropy"])
    shown = [*({**row, "head": "mean"} for row in maps if row["head"] is None), *heads[:1]]
    for row in shown:
        row["layer"] = row["layer"].removesuffix(", cross-attention")
    for rows, texts in ((shown, (0, 2)), (tags, (0,))):
        if rows:
            cells = [
                [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row.values()]
                for row in rows
            ]
            show.table(list(rows[0]), cells, texts=texts)


def show_report(report: Report, source: str, name: str) -> None:
    """Print the scores of an evaluation and their signature, among published ones."""
    if show.is_first_process():
        show.scores(report.scores)
        show.wrapped(report.measured_on)
        show.signature(report.signature)
        show.published(source, (name, next(iter(report.scores.values()))))
