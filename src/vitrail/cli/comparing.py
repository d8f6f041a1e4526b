"""The command compare."""

from __future__ import annotations

from pathlib import Path

from vitrail.cli.app import EXIT_SOME_FAILED, Flag, Settings, app, parse_languages, parse_seeds, split_names


@app.command(
    help_epilogue="Example: vitrail compare photos/ --mixers attention,fourier --budget 3m --seeds 3"
)
def compare(
    data: str,
    /,
    *,
    mixers: str | None = None,
    models: str | None = None,
    budget: str | None = None,
    seeds: str | None = None,
    languages: str | None = None,
    set_: Settings = (),
    output: Path = Path("runs"),
    name: str | None = None,
    seed: int | None = None,
    json: Flag = False,
) -> int:
    """Train token mixers or models with the same budget each, and test which differences are significant.

    Args:
        data: Any data that `vitrail train` takes: images, images with boxes or captions, sentence pairs.
        mixers: Comma-separated token mixers, or all, the default.
        models: Comma-separated models, instead of mixers.
        budget: Time limit of each training, such as 90s or 3m.
        seeds: Number of seeds, such as 3, or the seeds, such as 1,5,9.
        languages: Source and target language of sentence pairs, such as en,de.
        set_: One setting of all runs, such as model.name=vit_nano; may be given several times.
        output: Parent folder of the comparison's folder.
        name: Name of that folder; an existing comparison is resumed. Default: date and data.
        seed: The only seed, or the first one if --seeds is a number.
        json: Print all results as JSON, and nothing else.
    """
    from vitrail.core.config import parse_assignments
    from vitrail.core.duration import parse_duration

    budget_s = None if budget is None else parse_duration(budget)
    changes = parse_assignments(set_) | parse_languages(languages)
    listed = None if seeds is None else parse_seeds(seeds)

    from contextlib import nullcontext

    from vitrail.cli import show as terminal
    from vitrail.studies.comparing import compare as run_compare
    from vitrail.studies.comparing import ignore

    with nullcontext(ignore) if json else terminal.show_comparing() as listen:
        compared = run_compare(
            data,
            mixers=None if mixers is None else split_names(mixers),
            models=None if models is None else split_names(models),
            budget_s=budget_s,
            changes=changes,
            output=output,
            name=name,
            seed=seed,
            seeds=listed,
            on_event=listen,
        )
    if json:
        terminal.show_json({"folder": str(compared.folder), **compared.comparison.model_dump(mode="json")})
    else:
        terminal.show_comparison(compared)
    return EXIT_SOME_FAILED if any(run.error for run in compared.comparison.runs) else 0
