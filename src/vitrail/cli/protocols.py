"""Commands that score models as papers do: benchmarks, calibrate, faithfulness, probe, robustness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from vitrail.cli import show
from vitrail.cli.app import EXIT_SOME_FAILED, Count, Flag, Page, app, parse_numbers, split_names
from vitrail.core.duration import parse_duration
from vitrail.core.errors import ConfigError, check_name, refuse

if TYPE_CHECKING:
    from vitrail.studies.vtab import VtabScores

USED_BY = {
    "preparation": ("linear", "knn"),
    "neighbours": ("knn",),
    "temperature": ("knn",),
    "budget": ("fine-tune",),
    "output": ("fine-tune",),
}
"""Options of ``vitrail probe``, and the protocols that use them."""


@app.command(help_epilogue="Example: vitrail calibrate runs/photos photos/")
def calibrate(
    run: str,
    data: str,
    /,
    *,
    split: str = "test",
    fit_on: str = "validation",
    json: Flag = False,
    output: Page = Path("calibration.html"),
) -> int:
    """Measure the calibration of a classifier, and fit a temperature.

    Args:
        run: A run directory, a checkpoint folder or a published model.
        data: Any images that `vitrail train` takes, with the same classes.
        split: Split to score.
        fit_on: Split to fit the temperature on.
        json: Print all figures as JSON.
        output: An .html page with reliability diagrams and table, or the diagrams as .png, .svg or .pdf.
    """
    from vitrail.report.plots import check_picture_path
    from vitrail.studies.calibrating import HEADER, score_rows, write_calibration
    from vitrail.studies.calibrating import calibrate as measure

    check_picture_path(output)
    found = measure(run, data, split=split, fit_on=fit_on)
    write_calibration(output, found, title=f"Calibration of {Path(run).name}")
    if json:
        show.json(found.model_dump(mode="json"))
    else:
        header = (*HEADER[:2], f"{HEADER[2]} {found.temperature:.3f}")
        show.table(header, score_rows(found.before, found.after), width=show.MAX_WIDTH)
        show.signature(found.signature)
        show.lines([str(output)])
    return 0


@app.command(help_epilogue="Example: vitrail probe runs/photos flowers/ --protocol knn")
def probe(
    run: str,
    data: str,
    /,
    *,
    protocol: Literal["linear", "knn", "fine-tune"] = "linear",
    preparation: Literal["published", "model"] | None = None,
    neighbours: int | None = None,
    temperature: float | None = None,
    budget: str | None = None,
    output: Path | None = None,
    json: Flag = False,
) -> int:
    """Score the features of a frozen model on other data, by linear probe or nearest neighbours.

    Args:
        run: A run directory, a checkpoint folder or a published model.
        data: Any images that `vitrail train` takes; the classes may differ from the model's. vtab-1k, or
            vtab-1k:FOLDER, stands for all 19 tasks.
        protocol: linear, logistic regression with its strength chosen on validation; knn; or, for vtab-1k
            only, fine-tune.
        preparation: How images of a benchmark are resized: published, as in papers, or model, as in its
            training. Default: published.
        neighbours: knn only: number of neighbours. Default: 20, or the images of the smallest class.
        temperature: knn only: smaller values weight the nearest images more. Default: 0.07.
        budget: Time limit of each fine-tuning, such as 90s or 10m.
        output: Parent folder of fine-tuning run directories, where finished ones are reused. Default: runs.
        json: Print the whole report as JSON.
    """
    from vitrail.studies.probing import probe as measure
    from vitrail.studies.vtab import is_vtab, score_vtab

    given = _options_of(
        protocol,
        preparation=preparation,
        neighbours=neighbours,
        temperature=temperature,
        budget=budget,
        output=output,
    )
    if is_vtab(data):
        with show.parts_done() as listen:
            scores = score_vtab(run, data, protocol=protocol, on_progress=listen, **given)
        show.json(scores.model_dump(mode="json")) if json else _show_vtab(scores)
        return EXIT_SOME_FAILED if any(task.error for task in scores.tasks) else 0
    if protocol == "fine-tune":
        raise ConfigError(
            f"--protocol fine-tune was given, and {data} is one data set",
            expected="vtab-1k, whose tasks are fine-tuned one after the other",
            remedy=f"Run: vitrail train {data} --weights {run}",
        )
    with show.parts_done() as listen:
        report = measure(run, data, protocol=protocol, on_progress=listen, **given)
    if json:
        show.json(report.model_dump(mode="json"))
    else:
        show.scores(report.scores)
        show.wrapped(report.measured_on)
        show.signature(report.signature)
    return 0


@app.command(help_epilogue="Example: vitrail robustness runs/photos photos/ --images 500")
def robustness(
    run: str,
    data: str,
    /,
    *,
    corruptions: str | None = None,
    severities: str = "1,2,3,4,5",
    reference: str | None = None,
    split: str = "test",
    images: Count | None = None,
    seed: int = 0,
    json: Flag = False,
    output: Page = Path("robustness.html"),
) -> int:
    """Measure a classifier's errors under the common corruptions: noise, blur, weather and digital.

    Args:
        run: A run directory, a checkpoint folder or a published model.
        data: Any images that `vitrail train` takes, with the same classes.
        corruptions: Comma-separated names, such as fog,snow. Default: all 15.
        severities: Comma-separated severities from 1 to 5.
        reference: Baseline run (or alexnet, on imagenet) that errors are normalised by, as in mCE.
        split: train, validation or test.
        images: Size of a random subset of the split. Default: all, in up to 76 passes.
        seed: Sampling seed.
        json: Print all figures as JSON.
        output: An .html page with curves, table and examples, or a picture (.png, .svg, .pdf) of the curves.
    """
    from vitrail.report.plots import check_picture_path
    from vitrail.studies.robustness import measure_robustness, robustness_table, write_robustness

    check_picture_path(output)
    with show.parts_done() as listen:
        found, examples = measure_robustness(
            run,
            data,
            corruptions=None if corruptions is None else split_names(corruptions),
            severities=parse_numbers("--severities", severities),
            reference=reference,
            split=split,
            num_images=images,
            seed=seed,
            on_progress=listen,
        )
    write_robustness(output, found, examples, title=f"Robustness of {Path(run).name}")
    if json:
        show.json(found.model_dump(mode="json"))
    else:
        show.lines([f"errors on clean images: {100 * found.clean:.1f} %; on corrupted ones, by severity:"])
        show.table(*robustness_table(found), width=show.MAX_WIDTH)
        show.signature(found.signature)
        show.lines([str(output)])
    return 0


@app.command(help_epilogue="Example: vitrail benchmarks oxford-pets")
def benchmarks(name: str | None = None, /) -> int:
    """List the data sets that papers report scores on, or describe one.

    Args:
        name: Benchmark to describe: location, score, preprocessing, published fine-tuning.
    """

    from vitrail.tasks.classification.benchmark_reading import find_folder
    from vitrail.tasks.classification.benchmarks import BENCHMARKS

    if name is not None:
        _show_benchmark(name)
        return 0
    rows = [
        (each.name, each.title, f"{each.num_classes:,}", "-" if find_folder(each) is None else "yes")
        for each in BENCHMARKS.values()
    ]
    show.table(("name", "data set", "classes", "here"), rows, texts=(0, 1, 3), width=show.MAX_WIDTH)
    show.lines([""])
    show.wrapped(
        "vtab-1k stands for all tasks of VTAB with vitrail probe; here: below the folder VITRAIL_DATA."
    )
    return 0


def _options_of(protocol: str, **options: Any) -> dict[str, Any]:
    """Return the given options of a probe under the names of the pipeline; refuse those without effect."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if protocol not in USED_BY[name]:
            refuse({name: value}, f"--protocol {' or '.join(USED_BY[name])}")
    if "neighbours" in given:
        given["num_neighbours"] = given.pop("neighbours")
    if "budget" in given:
        given["budget_s"] = parse_duration(given.pop("budget"))
    return given


@app.command(help_epilogue="Example: vitrail faithfulness runs/photos photos/ --images 100")
def faithfulness(
    run: Path,
    data: str,
    /,
    *,
    split: str = "test",
    images: Count = 64,
    methods: str | None = None,
    filling: Literal["blur", "mean"] = "blur",
    steps: Count = 16,
    seed: int = 0,
    json: Flag = False,
    output: Page = Path("faithfulness.html"),
) -> int:
    """Test whether explanations name what a model decides by: cover the most relevant patches first.

    Args:
        run: A run directory or a checkpoint folder of an image classifier.
        data: Any images that `vitrail train` takes, with the same classes.
        split: train, validation or test.
        images: Size of a random subset of the split.
        methods: Comma-separated methods of `vitrail explain --method`. Default: all that take at most a
            forward and a backward pass.
        filling: What covers a patch: the blurred image, or the data's mean colour.
        steps: Steps of each curve.
        seed: Sampling seed.
        json: Print all figures as JSON.
        output: An .html page with curves and table, or a picture (.png, .svg, .pdf) of the curves.
    """
    from vitrail.report.plots import check_picture_path
    from vitrail.studies.faithfulness import faithfulness as measure
    from vitrail.studies.faithfulness import faithfulness_table, write_faithfulness

    check_picture_path(output)
    names = None if methods is None else split_names(methods)
    with show.parts_done() as listen:
        found = measure(
            run,
            data,
            split=split,
            num_images=images,
            methods=names,
            filling=filling,
            num_steps=steps,
            seed=seed,
            on_image=lambda done: listen("images", done, images),
        )
    write_faithfulness(output, found, title=f"Faithfulness of explanations: {run.name}")
    if json:
        show.json(found.to_json())
    else:
        header, rows = faithfulness_table(found)
        show.table(header, [[row[0], *map(show.on_two_lines, row[1:])] for row in rows])
        Console().print("deletion: lower is better; insertion: higher is better", style="dim")
        show.lines([str(output)])
    return 0


def _show_vtab(scores: VtabScores) -> None:
    rows = []
    for group, mean in scores.groups.items():
        tasks = [task for task in scores.tasks if task.group == group]
        missing = {task.title: "failed" if task.error else "not here" for task in tasks}
        rows += [
            [task.title, missing[task.title] if task.accuracy is None else _percent(task.accuracy)]
            for task in tasks
        ]
        rows.append([f"mean of {group}", _percent(mean)])
    rows.append(["mean of all 19 tasks", _percent(scores.mean)])
    show.table(("task", "accuracy, %"), rows, width=show.MAX_WIDTH)
    for task in scores.tasks:
        if task.error:
            show.wrapped(f"{task.title} failed: {task.error}")
    show.signature(scores.signature)
    if scores.mean is not None:
        show.published("vtab-1k", (scores.signature["model"], scores.mean))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _show_benchmark(name: str) -> None:
    """Print where a benchmark is looked for and how it is scored, with the commands for it."""
    from vitrail.tasks.classification.benchmark_reading import find_folder, folders_of
    from vitrail.tasks.classification.benchmarks import BENCHMARKS, METRIC_TEXTS

    check_name("benchmark", name, BENCHMARKS)
    known = BENCHMARKS[name]
    found = find_folder(known)
    places = ", ".join(map(str, folders_of(known)))
    looked = f"no; looked for {places}" if places else "no; VITRAIL_DATA is not set"
    counts = ", ".join(
        f"{count:,} {split}"
        for count, split in zip(known.counts, ("train", "validation", "test"), strict=True)
        if count
    )
    prepared = known.preparation
    entries = {
        "data set": f"{known.title}, {known.paper}",
        "images": f"{counts}; {known.num_classes:,} classes",
        "score": f"{METRIC_TEXTS[known.metric]} ({known.metric_source})",
        "preparation": f"{prepared.resize}, {prepared.crop_fraction:g} of the side, {prepared.interpolation} "
        f"({prepared.source})",
        "here": str(found) if found is not None else looked,
        "hub": known.hub or "-",
        "published at": known.download,
        "layout": known.layout,
    }
    if known.fine_tuning is not None:
        tuned = known.fine_tuning
        rates = ", ".join(f"{rate:g}" for rate in tuned.rates)
        entries["fine-tuned"] = (
            f"{tuned.steps:,} steps of {tuned.batch_size} images of {tuned.side_px} px, SGD with momentum, "
            f"the best rate of {rates} ({tuned.source})"
        )
    show.facts(entries.items(), show.MAX_WIDTH)
    options = "evaluate RUN {0}", "probe RUN {0} --protocol knn", "train {0} --weights RUN"
    show.lines(["", *(f"vitrail {option.format(known.name)}" for option in options)])
    show.published(known.name)
