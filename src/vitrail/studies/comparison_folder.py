"""Folder of a comparison: its two files, which grow with every run, and the run directories."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from vitrail.core.durable import atomic_write
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.studies.comparison import ComparedRun, Comparison
from vitrail.studies.comparison_page import write_comparison

COMPARISON_FILE, COMPARISON_PAGE = "comparison.json", "comparison.html"
FOUND = {"runs", "standings", "pairs", "statements"}  # results rather than settings


def open_comparison(folder: Path, asked: Comparison) -> Comparison:
    """Return the comparison that the folder holds, or a new one.

    Raises:
        ConfigError: the folder holds something else, or the comparison has other settings.
        CheckpointError: it cannot be read.
    """
    path = folder / COMPARISON_FILE
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                f"{folder} exists and holds no comparison",
                expected="a new name, or that of a comparison to go on with",
                remedy="Choose another --name",
            )
        return asked
    try:
        stored = Comparison.from_tree(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}",
            expected="the file that this version of vitrail compare wrote",
            remedy="Choose another --name, or remove this folder",
        ) from None
    wanted, found = (value.model_dump(mode="json", exclude=FOUND) for value in (asked, stored))
    differing = [f"{key} {found[key]!r}, not {wanted[key]!r}" for key in wanted if found[key] != wanted[key]]
    if differing:
        raise ConfigError(
            f"the comparison {folder} was made with {'; '.join(differing)}",
            expected="the same data, budget and settings for all runs of a comparison",
            remedy="Give the same options, or choose another --name",
        )
    return stored


def with_runs(comparison: Comparison, names: Sequence[str], seeds: Sequence[int]) -> Comparison:
    """Add the runs that are missing, seed by seed."""
    known = {(run.name, run.seed) for run in comparison.runs}
    added = tuple(
        ComparedRun(name=name, seed=seed) for seed in seeds for name in names if (name, seed) not in known
    )
    return comparison.model_copy(update={"runs": comparison.runs + added})


def with_run(comparison: Comparison, run: ComparedRun) -> Comparison:
    """Replace the run of the same name and seed."""
    runs = tuple(
        run if (former.name, former.seed) == (run.name, run.seed) else former for former in comparison.runs
    )
    return comparison.model_copy(update={"runs": runs})


def write_folder(folder: Path, comparison: Comparison) -> None:
    """Write the results and the page.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    text = json.dumps(comparison.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    atomic_write(folder / COMPARISON_FILE, text)
    write_comparison(folder / COMPARISON_PAGE, comparison)


def folder_name(run: ComparedRun) -> str:
    """Return the name of a run's directory."""
    return f"{run.name}-seed{run.seed}"


def default_name(data: str) -> str:
    """Return a name made of date and data."""
    word = re.sub(r"[^a-z0-9_]+", "-", Path(data.rstrip("/")).name.lower()).strip("-")
    return "-".join(filter(None, [datetime.now().strftime("%Y%m%d-%H%M%S"), word, "comparison"]))
