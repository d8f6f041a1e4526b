"""The command faithfulness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.app import Count, Flag, app, split_names


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
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("faithfulness.html"),
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
        output: An .html page with curves and table, or a .png picture of the curves.
    """
    from vitrail.cli import show as terminal
    from vitrail.report.pictures import check_picture_path
    from vitrail.studies.faithfulness import faithfulness as measure
    from vitrail.studies.faithfulness import write_faithfulness

    check_picture_path(output)
    names = None if methods is None else split_names(methods)
    with terminal.show_images_done(images) as listen:
        found = measure(
            run,
            data,
            split=split,
            num_images=images,
            methods=names,
            filling=filling,
            num_steps=steps,
            seed=seed,
            on_image=listen,
        )
    write_faithfulness(output, found, title=f"Faithfulness of explanations: {run.name}")
    if json:
        terminal.show_json(found.to_json())
    else:
        terminal.show_faithfulness(found)
        terminal.show_lines([str(output)])
    return 0
