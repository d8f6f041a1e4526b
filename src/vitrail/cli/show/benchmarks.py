"""What ``vitrail benchmarks`` shows: the list, and all that is known of one."""

from __future__ import annotations

from textwrap import wrap

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import MAX_WIDTH, make_table, show_lines

LABEL_WIDTH = 13


def show_benchmarks() -> None:
    """Write one row for each: its name, what papers call it, its classes, and whether it is here."""
    from vitrail.tasks.classification.benchmark_reading import find_folder
    from vitrail.tasks.classification.benchmarks import BENCHMARKS

    table = make_table("name", "data set", "classes", "here")
    table.columns[2].justify = "right"
    for benchmark in BENCHMARKS.values():
        is_here = "yes" if find_folder(benchmark) is not None else "-"
        table.add_row(
            Text(benchmark.name), Text(benchmark.title), Text(f"{benchmark.num_classes:,}"), Text(is_here)
        )
    Console(width=MAX_WIDTH).print(table)
    show_lines(
        [
            "",
            "vtab-1k stands for all tasks of VTAB with vitrail probe; here: below the",
            "folder VITRAIL_DATA.",
        ]
    )


def show_benchmark(name: str) -> None:
    """Write where a benchmark is looked for and how it is scored, with the commands for it.

    Raises:
        ConfigError: there is none of that name.
    """
    from vitrail.tasks.classification.benchmark_reading import find_folder, places_of
    from vitrail.tasks.classification.benchmarks import BENCHMARKS
    from vitrail.tasks.classification.benchmarks.contract import METRIC_TEXTS

    known = BENCHMARKS[name.strip().lower()]
    found = find_folder(known)
    places = ", ".join(map(str, places_of(known)))
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
    lines = []
    for label, text in entries.items():
        parts = wrap(text, MAX_WIDTH - LABEL_WIDTH, break_on_hyphens=False, break_long_words=False)
        lines += [f"{label if place == 0 else '':<{LABEL_WIDTH}}{part}" for place, part in enumerate(parts)]
    show_lines([*lines, "", *_commands(known.name)])


def _commands(name: str) -> list[str]:
    return [
        f"vitrail evaluate RUN {name}",
        f"vitrail probe RUN {name} --protocol knn",
        f"vitrail train {name} --weights RUN",
    ]
