"""Commands that make and score models: train, evaluate, check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.app import EXIT_USER_ERROR, Flag, Settings, app, parse_languages
from vitrail.cli.image_text import Texts, read_names
from vitrail.core.errors import ConfigError


@app.command(help_epilogue="Example: vitrail train photos/ --budget 10m --set train.batch_size=64")
def train(
    data: str | None = None,
    /,
    *,
    model: str | None = None,
    weights: str | None = None,
    budget: str | None = None,
    languages: str | None = None,
    recipe: str | None = None,
    config: Path | None = None,
    set_: Settings = (),
    resume: Path | None = None,
    dry_run: Flag = False,
    output: Path = Path("runs"),
    name: str | None = None,
    seed: int | None = None,
) -> int:
    """Train a classifier, detector, translator, captioner or CLIP; the data or --model decides.

    Args:
        data: Images by class, with boxes or captions, or sentence pairs: a folder, a table, or a name.
        model: A model of `vitrail models`. Default: chosen for the data and the machine.
        weights: Start from a run, a saved model or a published one, such as timm:NAME or hf:OWNER/NAME.
        budget: Time limit of the training, such as 90s, 10m or 1h30m.
        languages: Source and target language of sentence pairs, such as en,de.
        recipe: A named experiment; it takes precedence over the automatic choices.
        config: The config.json of an earlier run, to repeat it.
        set_: One setting, such as optim.learning_rate=0.001; may be given several times.
        resume: The run directory of a stopped run, to resume it.
        dry_run: Print the verdict and every choice with its reason, and stop.
        output: Parent folder of the run directory.
        name: Name of the run directory. Default: date and data.
        seed: Seed of weights, order and augmentation.
    """
    from vitrail.core.config import parse_assignments
    from vitrail.core.duration import parse_duration

    changes = parse_assignments(set_) | parse_languages(languages)
    budget_s = None if budget is None else parse_duration(budget)
    from vitrail.cli import show as terminal
    from vitrail.tasks.training import TrainedRun
    from vitrail.tasks.training import train as run_train

    with terminal.show_training() as listen:
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
            on_event=listen,
        )
    if isinstance(trained, TrainedRun):
        terminal.show_trained(trained)
    return 0


@app.command(help_epilogue="Example: vitrail evaluate runs/photos photos/ --split validation")
def evaluate(
    run: Path,
    data: str,
    /,
    *,
    split: str = "test",
    merge_tokens: int = 0,
    template: Texts = (),
    names: str | None = None,
    names_file: Path | None = None,
    json: Flag = False,
) -> int:
    """Score a trained model on a data set; a CLIP by retrieval, or zero-shot by class names.

    Args:
        run: A run directory or a checkpoint folder.
        data: Any data that `vitrail train` takes, with the same classes (CLIP: any classes).
        split: train, validation or test.
        merge_tokens: ViT only: similar tokens to merge in each block, for speed; see docs/merging.md.
        template: CLIP only: prompt with {} for the class name, or seven; may be given several times.
        names: CLIP only: comma-separated class names, in the data set's class order.
        names_file: CLIP only: file with one class name per line, instead of --names.
        json: Print the whole report as JSON.
    """
    are_named = names is not None or names_file is not None
    chosen = read_names(names, names_file) if are_named else ()
    from vitrail.cli import show as terminal
    from vitrail.tasks.evaluating import evaluate as run_evaluate

    report = run_evaluate(run, data, split=split, merge_tokens=merge_tokens, templates=template, names=chosen)
    terminal.show_json(report.model_dump(mode="json")) if json else terminal.show_report(report)
    return 0


@app.command(help_epilogue="Example: vitrail check photos/")
def check(
    data: str,
    /,
    *,
    languages: str | None = None,
    json: Flag = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    fix: Path | None = None,
) -> int:
    """Check a data set before any training; exit code 2 if it is unusable.

    Args:
        data: Any data that `vitrail train` takes.
        languages: Source and target language of sentence pairs, such as en,de.
        json: Print every finding as JSON.
        output: Images with boxes only: write an .html page of images and boxes.
        fix: Images with boxes only: write a clean copy into this folder, and check it.
    """
    from vitrail.cli import show as terminal
    from vitrail.tasks.contract import Repairing
    from vitrail.tasks.registry import task_of_source
    from vitrail.tasks.request import read_asked

    task = task_of_source(data)
    option = "--fix" if fix is not None else "--output" if output is not None else None
    if option is not None and not isinstance(task, Repairing):
        raise ConfigError(
            f"{option} was given, and {data} has no boxes",
            expected="images with boxes: COCO, Pascal VOC or YOLO",
            remedy=f"Leave out {option}; --json prints all findings of any data",
        )
    settings = read_asked(task, parse_languages(languages)).data
    dataset = task.open(settings.model_copy(update={"source": data}))
    verdict = task.check(dataset)
    tree, is_usable = verdict.to_json(), verdict.usable

    def tell(lines: list[str]) -> None:
        if not json:
            terminal.show_lines(lines)

    tell(verdict.summary())
    if output is not None and isinstance(task, Repairing):
        task.draw_findings(output, dataset, verdict)
        tell([f"page {output}"])
    if fix is not None and isinstance(task, Repairing):
        fixed = task.write_clean(dataset, verdict, fix)
        left = task.check(task.open(settings.model_copy(update={"source": str(fixed.folder)})))
        tell([*fixed.summary(), *left.summary()])
        tree |= {"fixed": fixed.to_json(), "copy": left.to_json()}
        is_usable = left.usable
    if json:
        terminal.show_json(tree)
    return 0 if is_usable else EXIT_USER_ERROR
