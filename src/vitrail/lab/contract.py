"""What an executable claim is: what is said and where, how it is measured, and what decides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    runtime_checkable,
)

from vitrail.core.config import Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["holds", "partly", "does not hold", "undecided"]


class Row(Config):
    """One line of a table of measurements; its subclass' docstring is the caption, its fields the columns."""


R = TypeVar("R", bound=Row)


class Judgement(Config):
    """What the measured rows say of a claim."""

    verdict: Verdict
    """By the claim's own criterion; undecided where what was measured cannot tell."""
    measured: str
    """The numbers that decided it, in one sentence."""


class Progress(NamedTuple):
    """How far the measuring of a claim is."""

    done: int
    """Parts that are measured."""
    total: int
    """Parts in all."""
    what: str
    """The part that is measured next, or was measured last."""


OnProgress = Callable[[Progress], None]


@runtime_checkable
class Claim(Protocol[R]):
    """A claim and the program that measures it; its fields are the settings of the measurement.

    A claim is a ``Config``, so that a test, or a user with ``--set``, measures less of it or more. With its
    defaults it takes less than three minutes on two processor cores.
    """

    name: ClassVar[str]
    """The name of its file."""
    statement: ClassVar[str]
    """What is claimed, in one sentence of ours."""
    source: ClassVar[str]
    """Authors, year, section, table or figure."""
    published: ClassVar[str]
    """What stands there, in its own words or numbers."""
    criterion: ClassVar[str]
    """What the rows must show for the claim to hold, or to hold partly; ``judge`` computes exactly this."""

    def run(self, progress: OnProgress, *, seed: int) -> list[R]:
        """Measure, and return what was found.

        Args:
            progress: is told before each part, and after the last.
            seed: of everything random.
        """
        ...

    def judge(self, rows: Sequence[R]) -> Judgement:
        """Apply the criterion; the rows are all that it looks at."""
        ...

    def draw(self, rows: Sequence[R]) -> Figure:
        """Show the rows in one picture."""
        ...

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """Return the claim with other settings."""
        ...

    def model_dump(self, *, mode: Literal["json", "python"]) -> dict[str, Any]:
        """Return the settings."""
        ...


def decide(*, holds: bool, partly: bool) -> Verdict:
    """Return the verdict of two conditions, the second of which is the weaker one.

    >>> decide(holds=False, partly=True)
    'partly'
    """
    if holds:
        return "holds"
    return "partly" if partly else "does not hold"


def rows_of(rows: Iterable[Row], kind: type[R]) -> list[R]:
    """Return the rows of one table."""
    return [row for row in rows if isinstance(row, kind)]
