"""The command that trains several models and compares them."""

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
    """Train token mixers or models with the same budget each, and say which differences are more than chance.

    Args:
        data: Any data that `vitrail train` takes: images, images with boxes or captions, pairs of sentences.
        mixers: Names of token mixers with commas between them, or all, which is the default.
        models: Names of models with commas between them, instead of mixers.
        budget: Time that each training may take, such as 90s or 3m.
        seeds: How many seeds each is trained with, such as 3, or which ones, such as 1,5,9.
        languages: Source and target language of sentence pairs, such as en,de.
        set_: One setting for all of them, such as model.name=vit_nano; may be given again.
        output: Folder that the comparison's folder is made in.
        name: Name of that folder; the date and the data otherwise. A comparison of that name goes on.
        seed: The only seed, or the first one where their number is given.
        json: Print everything that was found as JSON, and nothing else.
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
