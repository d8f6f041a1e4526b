"""The command ``vitrail``: one short function per command, which loads what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError, validators

from vitrail._version import __version__
from vitrail.errors import ConfigError, VitrailError

EXIT_SOME_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 1  # as rich has it

Flag = Annotated[bool, Parameter(show_default=False)]

app = App(
    name="vitrail",
    help="Train, test, explain and use attention models on your own images.",
    help_epilogue="Example: vitrail train photos/ --budget 10m",
    help_format="plaintext",
    help_flags=["--help", "-h"],
    version=f"vitrail {__version__}",
    suppress_keyboard_interrupt=False,
    result_action="return_value",
    default_parameter=Parameter(negative=""),
)


@app.command(help_epilogue="Example: vitrail train photos/ --budget 10m --set train.batch_size=64")
def train(
    data: str | None = None,
    /,
    *,
    model: str | None = None,
    weights: str | None = None,
    budget: str | None = None,
    recipe: str | None = None,
    config: Path | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", show_default=False)] = (),
    resume: Path | None = None,
    dry_run: Flag = False,
    output: Path = Path("runs"),
    name: str | None = None,
    seed: int | None = None,
) -> int:
    """Train a classifier on a folder, a file or a named set of images.

    Args:
        data: Class folders, train/ and test/, a CSV or parquet file, a built-in or Hugging Face name.
        model: A model of `vitrail models`; chosen from the data and the machine otherwise.
        weights: Start from a run, a saved model or a published one, such as timm:NAME or hf:OWNER/NAME.
        budget: Time that the training may take, such as 90s, 10m or 1h30m.
        recipe: A named experiment; it goes before the automatic choices.
        config: The config.json of an earlier run, to repeat it.
        set_: One setting, such as optim.learning_rate=0.001; may be given again.
        resume: The run directory of a run that was stopped, to go on with.
        dry_run: Print the verdict and every choice with its reason, and stop.
        output: Folder that the run directory is made in.
        name: Name of the run directory; the date and the data otherwise.
        seed: Seed of weights, order and augmentation.
    """
    from vitrail.config import parse_assignments
    from vitrail.duration import parse_duration

    budget_s = None if budget is None else parse_duration(budget)
    changes = parse_assignments(set_)

    from vitrail import pipeline, terminal

    with terminal.show_training() as listen:
        trained = pipeline.train(
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
    if isinstance(trained, pipeline.TrainedRun):
        terminal.show_trained(trained)
    return 0


@app.command(help_epilogue="Example: vitrail compare photos/ --mixers attention,fourier --budget 3m")
def compare(
    data: str,
    /,
    *,
    mixers: str | None = None,
    models: str | None = None,
    budget: str | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", show_default=False)] = (),
    output: Path = Path("runs"),
    name: str | None = None,
    seed: int | None = None,
) -> int:
    """Train token mixers or models with the same budget each, and show their figures side by side.

    Args:
        data: Any data that `vitrail train` takes.
        mixers: Names of token mixers with commas between them, or all, which is the default.
        models: Names of models with commas between them, instead of mixers.
        budget: Time that each training may take, such as 90s or 3m.
        set_: One setting for all of them, such as model.name=vit_nano; may be given again.
        output: Folder that the comparison's folder is made in.
        name: Name of that folder; the date and the data otherwise. A comparison of that name goes on.
        seed: Seed of weights, order and augmentation of all.
    """
    from vitrail.config import parse_assignments
    from vitrail.duration import parse_duration

    budget_s = None if budget is None else parse_duration(budget)
    changes = parse_assignments(set_)

    from vitrail import pipeline, terminal

    with terminal.show_comparing() as listen:
        compared = pipeline.compare(
            data,
            mixers=_split_names(mixers),
            models=_split_names(models),
            budget_s=budget_s,
            changes=changes,
            output=output,
            name=name,
            seed=seed,
            on_event=listen,
        )
    terminal.show_comparison(compared)
    return EXIT_SOME_FAILED if any(run.error for run in compared.comparison.runs) else 0


@app.command(help_epilogue="Example: vitrail evaluate runs/photos photos/ --split validation")
def evaluate(run: Path, data: str, /, *, split: str = "test", json: Flag = False) -> int:
    """Score a trained model on a data set.

    Args:
        run: A run directory or a checkpoint folder.
        data: Any data that `vitrail train` takes, with the same classes.
        split: train, validation or test.
        json: Print the whole report as JSON.
    """
    from vitrail import pipeline, terminal

    report = pipeline.evaluate(run, data, split=split)
    terminal.show_json(report.model_dump(mode="json")) if json else terminal.show_report(report)
    return 0


@app.command(help_epilogue="Example: vitrail predict runs/photos holiday/*.jpg --top 1 --json")
def predict(
    run: Path,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    top: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 3,
    json: Flag = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Classify image files; one that cannot be read is reported and the others go on.

    Args:
        run: A run directory or a checkpoint folder.
        files: Image files, folders or quoted patterns such as "holiday/*.jpg".
        top: Number of classes to show for each image.
        json: Print JSON instead of a table.
        output: Write the JSON to this file.
    """
    from vitrail import terminal
    from vitrail.deploy.predictor import Predictor

    predictions = Predictor(run).predict(files, top=top)
    if json or output is not None:
        terminal.show_json([prediction.to_json() for prediction in predictions], output)
    else:
        terminal.show_predictions(predictions)
    return EXIT_SOME_FAILED if any(prediction.error for prediction in predictions) else 0


@app.command(help_epilogue="Example: vitrail explain runs/photos cat.jpg -o cat.html")
def explain(
    run: Path,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    method: str | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("explain.html"),
) -> int:
    """Show where the model looks: one page with every layer and head, or overlay pictures.

    Args:
        run: A run directory or a checkpoint folder.
        files: Image files, folders or quoted patterns.
        method: What a picture shows: rollout through all layers, or attention of the last; a page has both.
        output: An .html page, a .png picture of one image, or a folder for a picture of each.
    """
    from vitrail import terminal
    from vitrail.deploy.explain_files import explain_files
    from vitrail.deploy.predictor import Predictor

    explained = explain_files(Predictor(run), files, output=output, method=method)
    terminal.show_lines(str(path) for path in explained.files)
    terminal.show_errors(explained.errors)
    return EXIT_SOME_FAILED if explained.errors else 0


@app.command(help_epilogue="Example: vitrail check photos/")
def check(data: str, /, *, json: Flag = False) -> int:
    """Look for what is wrong with a data set before any training; exit code 2 if it is unusable.

    Args:
        data: Any data that `vitrail train` takes.
        json: Print every finding as JSON.
    """
    from vitrail import terminal
    from vitrail.data import check as check_dataset
    from vitrail.data import open_dataset

    verdict = check_dataset(open_dataset(data))
    if json:
        terminal.show_json(verdict.to_json())
    else:
        terminal.show_lines(verdict.summary())
    return 0 if verdict.usable else EXIT_USER_ERROR


@app.command(help_epilogue="Example: vitrail models swin_t --size 384x512")
def models(
    name: str | None = None, /, *, size: str | None = None, settings: Flag = False, json: Flag = False
) -> int:
    """List the models, or describe one: its parts, what it costs at a size, and whose weights it takes.

    Args:
        name: A model of the list.
        size: Pixels of the image that the costs are for, such as 384 or 384x512.
        settings: Show the settings of the model that --set model.NAME=VALUE changes.
        json: Print JSON instead of tables.
    """
    if size is not None and (name is None or settings):
        raise ConfigError(
            f"--size {size} was given without a card to show",
            expected="--size with the name of a model, and without --settings",
            remedy="Name the model, as in vitrail models swin_t --size 384",
        )
    if settings and (name is None or json):
        raise ConfigError(
            "--settings was given without a name or with --json",
            expected="--settings with the name of a model alone",
            remedy="Name the model, as in vitrail models swin_t --settings",
        )

    from vitrail import terminal
    from vitrail.describe import describe, list_cards, parse_size

    if name is None:
        terminal.show_json(list(list_cards())) if json else terminal.show_models()
    elif settings:
        terminal.show_settings(name)
    else:
        card = describe(name, size=None if size is None else parse_size(size))
        terminal.show_json(card.model_dump(mode="json")) if json else terminal.show_card(card)
    return 0


@app.command(help_epilogue="Example: vitrail convert timm:vit_small_patch16_224.augreg_in1k models/vit_s16")
def convert(source: str, output: Path, /, *, model: str | None = None) -> int:
    """Turn published weights into a folder that every command here takes as RUN.

    Args:
        source: timm:NAME, hf:OWNER/NAME or a folder of that layout, torchvision:NAME, file:PATH.
        output: Folder to make, with model.safetensors and model.json.
        model: The model of `vitrail models` that a file's weights belong to, where they fit several.
    """
    from vitrail import terminal
    from vitrail.weights.saving import convert_to_folder

    terminal.show_lines(convert_to_folder(source, output, model=model))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a user's error, 130 when interrupted."""
    try:
        code = app(
            list(sys.argv[1:] if arguments is None else arguments), print_error=False, exit_on_error=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except VitrailError as error:
        return _fail(str(error))
    except CycloptsError as error:
        return _fail(_explain(error))
    except KeyboardInterrupt as interrupt:
        from vitrail.terminal import is_first_process

        if is_first_process():
            print(f"vitrail: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has gone; what Python still holds for it must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _split_names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _explain(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected {' '.join(error.unused_tokens or [])}. See vitrail --help"
    return str(error)


def _fail(message: str) -> int:
    import textwrap

    lines = textwrap.wrap(f"vitrail: error: {message}", 80, break_on_hyphens=False, break_long_words=False)
    print("\n".join(lines), file=sys.stderr)
    return EXIT_USER_ERROR
