"""The command draw: figures of papers, computed by the library's layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.cli import show
from vitrail.cli.app import Flag, Output, Settings, Texts, app
from vitrail.core.errors import ConfigError


@app.command(help_epilogue="Example: vitrail draw windows photo.jpg -o windows.svg")
def draw(
    name: str | None = None,
    image: Annotated[Path | None, Parameter(name="FILE")] = None,
    /,
    *,
    text: Texts = (),
    model: str | None = None,
    word: str | None = None,
    set_: Settings = (),
    json: Flag = False,
    output: Output = None,
) -> int:
    """List the figures that explain attention, or draw one: masks, windows, positions, norms, one head.

    Args:
        name: The figure. Without one: list them.
        image: Image file, for figures of an image.
        text: Sentence, for figures of words; may be given several times.
        model: CLIP to attack with a written word, or model of texts: a run, a folder or hf:OWNER/NAME.
        word: The word to write on the photograph, or to look at in several sentences.
        set_: One setting of the figure, such as window=7x7; may be given several times.
        json: Print settings and numbers as JSON.
        output: Picture to write: .png, .svg or .pdf. Default: NAME.png.
    """
    from vitrail.lab.figures import FIGURES

    if name is None:
        show.table(
            ("figure", "shows", "source"),
            ((each.name, each.shows, each.source) for each in FIGURES.values()),
            texts=(0, 1, 2),
        )
        return 0

    from vitrail.core.config import parse_assignments
    from vitrail.lab.figures.drawing import draw_figure

    given: dict[str, Any] = {"image": image and str(image), "text": [*text], "model": model, "word": word}
    given = {field: value for field, value in given.items() if value}
    known = type(FIGURES[name]).model_fields
    for field in given.keys() - known.keys():
        fitting = [other for other, each in FIGURES.items() if field in type(each).model_fields]
        raise ConfigError(
            f"the figure {name} takes no {'image file' if field == 'image' else f'--{field}'}",
            expected=f"one of {', '.join(fitting)} for it",
            remedy="Leave it out, or choose another figure",
        )
    path = output or Path(f"{name}.png")
    settings = given | parse_assignments(set_)
    if wait := FIGURES[name].with_changes(settings).wait():
        show.stage(wait)
    drawn = draw_figure(name, path, **settings)
    if json:
        show.json(
            {
                "figure": name,
                "file": str(path),
                "settings": settings,
                "matrices": [each.as_tree() for each in drawn.matrices],
            }
        )
        return 0
    if FIGURES[name].prints:
        show.matrices(drawn.matrices)
    show.lines([str(path)])
    return 0
