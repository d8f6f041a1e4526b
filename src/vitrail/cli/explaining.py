"""The command explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.cli import show
from vitrail.cli.app import EXIT_SOME_FAILED, Count, Flag, Output, Share, Texts, app, parse_numbers
from vitrail.core.errors import ConfigError, refuse

SEE_HELP = "See vitrail explain --help"


@app.command(help_epilogue="Example: vitrail explain runs/photos cat.jpg -o cat.html")
def explain(
    run: Path,
    files: Annotated[list[str] | None, Parameter(name="FILE")] = None,
    /,
    *,
    text: Texts = (),
    target: str | None = None,
    subwords: Flag = False,
    layer: int | None = None,
    head: int | None = None,
    method: str | None = None,
    class_: Annotated[str | None, Parameter(name="--class")] = None,
    threshold: Share | None = None,
    steps: Flag = False,
    part: str | None = None,
    tokens: str | None = None,
    json: Flag = False,
    data: str | None = None,
    images: Count | None = None,
    seed: int | None = None,
    output: Output = None,
) -> int:
    """Show where the model looks: one page with every layer and head, or overlay pictures.

    Without a file and a text, draw what it has learned: filters, positions, and what its heads do.

    Args:
        run: A run directory or a checkpoint folder.
        files: Image files, folders or quoted patterns; image models only.
        text: Translators and labellers: sentence to explain. CLIPs: text to compare the images with. May be
            given several times.
        target: Translation or caption to explain, instead of the model's own.
        subwords: Translators: show the alignment of subwords alone. Default: that of words first.
        layer: Layer whose attention is shown, counted from 1 as on the page, or -1, the last.
        head: Head of that layer, counted from 1. Default: the mean.
        method: Shown first: rollout through all layers, attention of the last, or class-specific: relevance
            (gradients times attention), gradient_input, occlusion or integrated_gradients.
        class_: Class for the class-specific methods. Default: the most probable one.
        threshold: Detectors only: confidence threshold. Default: the one tuned on the run's validation set.
        steps: Show X, Q, K, V, scores, mask, softmax and Z of one head, as numbers and as a picture.
        part: With --steps: attention of a model with several, such as source, target or cross.
        tokens: With --steps: queries shown, such as 0,3,5, counted from 0; a class token is the first.
        json: With --steps: print all numbers as JSON.
        data: Without a file: data to measure heads on. Default: the run's own.
        images: Without a file: number of images or sentences sampled. Default: 128.
        seed: Without a file: seed of that sample. Default: 0.
        output: An .html page, a picture (.png, .svg, .pdf) of one image or text, or a folder for a picture
            of each. Default: explain.html, or learned.html without a file.
    """
    given: dict[str, Any] = {
        "text": text,
        "target": target,
        "subwords": subwords or None,
        "layer": layer,
        "head": head,
        "method": method,
        "class_name": class_,
        "threshold": threshold,
    }
    given = {name: value for name, value in given.items() if value not in (None, ())}
    if not steps:
        refuse({"part": part, "tokens": tokens, "json": json}, "--steps", SEE_HELP)
    if not text and not files:
        refuse({**given, "steps": steps}, "a file", SEE_HELP)
        return _explain_learned(run, data=data, images=images, seed=seed, output=output)
    refuse({"data": data, "images": images, "seed": seed}, "RUN alone, without files or --text", SEE_HELP)

    from vitrail.engines.export.package import is_package
    from vitrail.engines.loading import cannot_explain, load_any
    from vitrail.tasks.explaining import ExplainOptions
    from vitrail.tasks.registry import TASKS, task_of_model

    if is_package(run):
        raise cannot_explain(run)
    loaded = load_any(run)
    task = task_of_model(loaded)
    if task.explains_texts:
        given.pop("text", None)
    if bool(files) == task.explains_texts:
        raise ConfigError(
            f"{'files were' if files else '--text was'} given to explain {run}, a model for {task.name}",
            expected="sentences as --text" if task.explains_texts else "image files",
            remedy="Give a sentence as in --text 'A dog runs.'" if task.explains_texts else "Name the images",
        )
    able = task.explain_options | ({"layer", "head"} if steps else set())
    unfit = [name for name in given if name not in able]
    if unfit:
        others = [name for name, other in TASKS.items() if other.explain_options.issuperset(unfit)]
        needs = f"a model for {' or '.join(others)}" if others else "models of different tasks"
        refuse({name: given[name] for name in unfit}, needs, SEE_HELP)
    inputs = text if task.explains_texts else files or ()
    options = ExplainOptions(output or Path("steps.png" if steps else "explain.html"), **given)
    if steps:
        from vitrail.studies.stepping import explain_steps

        if len(inputs) != 1:
            raise ConfigError(
                f"{len(inputs)} inputs were given with --steps",
                expected="one image or one sentence",
                remedy="Leave out the others",
            )
        indices = None if tokens is None else parse_numbers("--tokens", tokens)
        found = explain_steps(task, loaded, inputs[0], options, part=part, tokens=indices)
        if json:
            matrices = [each.as_tree() for each in found.matrices]
            show.json({"title": found.title, "file": str(options.output), "matrices": matrices})
            return 0
        show.lines([found.title, ""])
        show.matrices(found.matrices)
        show.lines([str(options.output)])
        return 0
    done = task.explain(loaded, inputs, options)
    for each in done.explained:
        called = f'"{each.name}"' if each.picture is None else Path(each.name).name
        show.stage(f"{called}: {each.said(options.method, **options.pick)}")
    show.lines(str(path) for path in done.files)
    show.errors(done.errors)
    for each in done.explained:
        if words := getattr(each.answer, "unknown_words", ()):
            subject = "1 word is" if len(words) == 1 else f"{len(words)} words are"
            show.stage(f"warning: {subject} not in the model's vocabulary: {', '.join(words)}")
    return EXIT_SOME_FAILED if done.errors else 0


def _explain_learned(
    run: Path, *, data: str | None, images: int | None, seed: int | None, output: Path | None
) -> int:
    from vitrail.studies.inspecting import NUM_SAMPLES, inspect_learned
    from vitrail.studies.learned_page import (
        check_learned_path,
        layer_table,
        measured_on,
        reasons,
        write_learned,
    )

    path = output or Path("learned.html")
    check_learned_path(path)
    count = NUM_SAMPLES if images is None else images
    with show.parts_done() as listen:
        found = inspect_learned(
            run,
            data=data,
            num_samples=count,
            seed=seed or 0,
            on_sample=lambda done: listen("samples", done, count),
        )
    written = write_learned(path, found, title=f"What {run.name} has learned")
    if found.heads is not None:
        header, rows = layer_table(found.heads)
        # As many as fit; nats are on the page.
        show.table(header[:4], [[*map(show.on_two_lines, row[:4])] for row in rows], texts=[0])
        show.wrapped(measured_on(found.heads))
    for names, reason in reasons(found):
        show.wrapped(f"not drawn: {names}: {reason}")
    show.lines(str(file) for file in written)
    return 0
