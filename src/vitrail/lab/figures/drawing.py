"""What every figure is: its name, its settings, and the code that computes and draws it."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from vitrail.core.config import Config
from vitrail.core.durable import atomic_write
from vitrail.core.registry import Registry
from vitrail.report.plots import check_picture_path, to_picture
from vitrail.report.tiles import Matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn(NamedTuple):
    """A figure and its numbers."""

    figure: Figure
    matrices: tuple[Matrix, ...] = ()
    """What the figure shows, where that is a few matrices."""


class Drawing(Config):
    """A figure; its fields are its settings."""

    name: ClassVar[str]
    shows: ClassVar[str]
    """In one sentence."""
    source: ClassVar[str]
    """Authors, year, and section or figure."""
    prints: ClassVar[bool] = False
    """Whether the numbers are worth a terminal."""

    def wait(self) -> str:
        """Return what takes long before anything is drawn; empty if nothing does."""
        return ""

    @abstractmethod
    def draw(self) -> Drawn:
        """Compute and draw the figure.

        Raises:
            VitrailError: a file, a model or a text cannot be used.
        """


FIGURES: Registry[Drawing] = Registry(
    "figure", "vitrail.lab.figures", lambda file: {each.name: each for each in getattr(file, "DRAWINGS", ())}
)


def draw_figure(name: str, output: str | Path, **settings: Any) -> Drawn:
    """Draw a figure by its name into a file: .png, .svg or .pdf.

    Args:
        settings: fields of the figure; a value may be text.

    Raises:
        ConfigError: there is no such figure, setting or file format, or a value does not fit.
        CheckpointError: the file cannot be written.

    Example:
        >>> draw_figure("causal_mask", "mask.png", text=["a dog runs"])  # doctest: +SKIP
    """
    path = Path(output)
    check_picture_path(path, others=())
    drawn = FIGURES[name].with_changes(settings).draw()
    atomic_write(path, to_picture(drawn.figure, path.suffix))
    return drawn
