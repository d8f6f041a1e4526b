"""What ``explain`` does without a file: draw what a model has learned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vitrail.core.errors import ConfigError

LEARNED_PAGE = Path("learned.html")


def explain_learned(
    run: Path, *, data: str | None, images: int | None, seed: int | None, output: Path | None
) -> int:
    """Write filters, positions and what heads do, and show the layers."""
    from vitrail.cli import show as terminal
    from vitrail.cli.show.learned import show_learned
    from vitrail.studies.inspecting import NUM_SAMPLES, inspect_learned
    from vitrail.studies.learned_page import check_learned_path, write_learned

    path = LEARNED_PAGE if output is None else output
    check_learned_path(path)
    count = NUM_SAMPLES if images is None else images
    with terminal.show_images_done(count) as listen:
        found = inspect_learned(run, data=data, num_samples=count, seed=seed or 0, on_sample=listen)
    written = write_learned(path, found, title=f"What {run.name} has learned")
    show_learned(found)
    terminal.show_lines(str(file) for file in written)
    return 0


def refuse_options(options: Mapping[str, object], *, needs: str) -> None:
    """Refuse options that would have no effect.

    Args:
        options: the value of each, None or empty where it was not given.
        needs: what they need, such as "a file to explain".

    Raises:
        ConfigError: one was given.
    """
    given = [name for name, value in options.items() if value not in (None, ())]
    if given:
        raise ConfigError(
            f"{' and '.join(given)} cannot be used so",
            expected=f"{needs} with {'it' if len(given) == 1 else 'them'}",
            remedy=f"Leave {' and '.join(given)} out, or see vitrail explain --help",
        )
