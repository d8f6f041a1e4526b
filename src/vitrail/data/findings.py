"""Findings of a data set check, and the verdict that holds them."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]

ORDER: tuple[Severity, ...] = ("error", "warning", "info")
LABELS = {"error": "error", "warning": "warning", "info": "note"}  # in a summary
OF_TRAINING = frozenset({"one-class", "class-not-in-train", "one-of-each-class"})  # errors without training
MAX_LISTED = 1000  # affected items named in JSON; the count is always exact
MAX_SHOWN = 3  # affected items named in a summary
MAX_JOINED = 4  # copies named in one item


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, which is in the plural unless it is one."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "x")) else "s"
    return f"{count:,} {noun}{ending}"


@dataclass(frozen=True)
class Finding:
    """One fault or fact about a data set."""

    severity: Severity
    """``error``: training makes no sense; ``warning``: the score may suffer or mislead; ``info``: handled."""
    check: str
    message: str
    remedy: str
    """What to do, or what the program does about it."""
    items: tuple[str, ...] = ()
    """Names of the affected images, pairs, classes or files."""
    count: int = -1
    """Number of affected items; by default as many as are named."""

    def __post_init__(self) -> None:
        if self.count < 0:
            object.__setattr__(self, "count", len(self.items))

    def to_json(self) -> dict[str, Any]:
        """Return plain values; at most ``MAX_LISTED`` items are named."""
        return {**asdict(self), "items": list(self.items[:MAX_LISTED])}


@dataclass(frozen=True)
class Verdict:
    """The doctor's verdict on a whole data set."""

    source: str
    findings: tuple[Finding, ...]
    """Errors first."""
    counts: Mapping[str, Any]
    """``images``, ``texts`` or ``pairs`` per split, and the numbers of boxes, captions or classes."""
    exclude: frozenset[str] = field(default_factory=frozenset)
    """Names of unusable images or pairs; ``without`` of a data set leaves them out."""

    @property
    def usable(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "usable": self.usable,
            "counts": dict(self.counts),
            "findings": [finding.to_json() for finding in self.findings],
            "exclude": sorted(self.exclude),
        }

    def summary(self, width: int = 80) -> list[str]:
        """Return a short verdict as lines of at most ``width`` columns."""
        unit = next(each for each in ("pair", "text", "image") if f"{each}s" in self.counts)
        numbers = self.counts[f"{unit}s"]
        parts = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
        if unit == "pair":
            content = "{} to {}".format(*self.counts["languages"])
        elif "captions" in self.counts:
            content = number_of(sum(self.counts["captions"].values()), "caption")
        else:
            content = number_of(self.counts["classes"], "class")
            if "boxes" in self.counts:
                boxes = number_of(sum(self.counts["boxes"].values()), "box")
                content = f"{boxes} of {content}"
        total = number_of(sum(numbers.values()), unit)
        wrap = partial(textwrap.wrap, width=width, break_on_hyphens=False)
        lines = wrap(f"{self.source}: {total}, {content} ({parts})")
        for finding in self.findings:
            lines += wrap(f"{LABELS[finding.severity]:<8} {finding.message}", subsequent_indent=" " * 9)
            if finding.severity != "info":
                named = some_of(finding.items, finding.count)
                for text in filter(None, (named, finding.remedy)):
                    lines += wrap(text, initial_indent=" " * 9, subsequent_indent=" " * 9)
        counts = [
            number_of(number, LABELS[severity]) for severity in ORDER if (number := len(self.of(severity)))
        ]
        word = "OK" if self.usable else "NOT usable"
        left_out = f", {number_of(len(self.exclude), unit)} left out" if self.exclude else ""
        return lines + wrap(f"{word}{left_out} ({', '.join(counts) or 'nothing found'})")


def about(
    items: Sequence[str], severity: Severity, check: str, message: str, remedy: str
) -> Iterator[Finding]:
    """Yield a finding about these items, if there are any."""
    if items:
        yield Finding(severity, check, message, remedy, tuple(items))


def counted(
    items: Iterable[str], severity: Severity, check: str, noun: str, message: str, remedy: str
) -> Iterator[Finding]:
    """Yield a finding like ``about`` whose message begins with the number of items and their noun."""
    names = tuple(items)
    yield from about(names, severity, check, f"{number_of(len(names), noun)} {message}", remedy)


class FindingTexts:
    """Severity, message and remedy of each check of a task: the table ``findings.toml`` beside a module.

    A message with a noun begins with the number of items and that noun.

    Args:
        module: the ``__file__`` of the module.
    """

    def __init__(self, module: str) -> None:
        content = Path(module).with_name("findings.toml").read_text(encoding="utf-8")
        self.texts: dict[str, dict[str, Any]] = tomllib.loads(content)

    def finding(
        self,
        check: str,
        items: Iterable[str] = (),
        *,
        count: int | None = None,
        severity: Severity | None = None,
        **values: Any,
    ) -> Finding:
        """Return a finding with the texts of its check.

        Args:
            items: names of what is affected.
            count: how many are affected, if not all are named.
            severity: if it is not that of the table.
            values: what the texts leave open.
        """
        names, texts = tuple(items), self.texts[check]
        number = len(names) if count is None else count
        lead = f"{number_of(number, texts['noun'])} " if "noun" in texts else ""
        message, remedy = (texts[part].format(count=number, **values) for part in ("message", "remedy"))
        return Finding(severity or texts["severity"], check, lead + message, remedy, names, number)

    def listed(self, check: str, items: Iterable[str], **values: Any) -> Iterator[Finding]:
        """Yield a finding about these items, if there are any; further arguments as for ``finding``."""
        if names := tuple(items):
            yield self.finding(check, names, **values)


def judge(
    dataset: Any,
    examined: Any,
    checks: Iterable[Callable[[Any], Iterable[Finding]]],
    *,
    exclude: Iterable[str],
) -> Verdict:
    """Run all checks of an examined data set, and add what its reader noticed.

    Args:
        examined: has the verdict's ``counts``.
        exclude: names of the unusable samples.
    """
    found = [*(finding for check in checks for finding in check(examined)), *dataset.findings]
    return Verdict(
        source=dataset.source,
        findings=tuple(sorted(found, key=lambda finding: ORDER.index(finding.severity))),
        counts=examined.counts,
        exclude=frozenset(exclude),
    )


def some_of(items: Sequence[str], count: int) -> str:
    """Name the first of so many items, or all where one alone would be left.

    >>> some_of(["cat", "dog", "owl", "pig"], 9)
    'cat; dog; owl and 6 more'
    >>> some_of([], 9)
    ''
    """
    shown = items if len(items) == count <= MAX_SHOWN + 1 else items[:MAX_SHOWN]
    more = f" and {count - len(shown)} more" if items and count > len(shown) else ""
    return "; ".join(shown) + more


def joined(names: Sequence[str]) -> str:
    """Name copies of one thing, the first of many.

    >>> joined(["a.png", "b.png"])
    'a.png = b.png'
    """
    more = f" and {len(names) - MAX_JOINED} more" if len(names) > MAX_JOINED else ""
    return " = ".join(names[:MAX_JOINED]) + more


def not_found(names: Sequence[str], total: int, what: str) -> list[str]:
    """Return a sentence about classes, such as those never predicted; nothing without any.

    >>> not_found(["cat"], 3, "never predicted")
    ['1 of 3 classes is never predicted: cat.']
    """
    verb = "is" if len(names) == 1 else "are"
    return [f"{len(names)} of {total} classes {verb} {what}: {some_of(names, len(names))}."] if names else []
