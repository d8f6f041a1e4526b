"""The command env."""

from __future__ import annotations

from vitrail.cli import show
from vitrail.cli.app import Flag, app


@app.command(help_epilogue="Example: vitrail env > environment.md")
def env(*, json: Flag = False) -> int:
    """Describe this installation for an issue: versions, hardware, extras, caches, known problems.

    Names of users and hosts, home folders and tokens are left out.

    Args:
        json: Print JSON instead of Markdown.
    """
    from vitrail.train.installation import describe_installation

    found = describe_installation()
    if json:
        show.json(found)
        return 0
    for title, facts in found.items():
        lines = [f"{fact}: {_in_words(facts[fact])}" if title != "problems" else fact for fact in facts]
        show.lines([f"## {title}", "", *(f"- {line}" for line in lines or ["none"]), ""])
    return 0


def _in_words(fact: object) -> str:
    if isinstance(fact, float):
        return f"{fact:.2f}"
    if fact is None or fact == []:
        return "none"
    return ", ".join(fact) if isinstance(fact, list) else str(fact)
