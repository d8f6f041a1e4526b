"""Durations as text: 90s, 10m, 1h30m."""

from __future__ import annotations

import math
import re

from vitrail.core.errors import ConfigError

_SECONDS = r"(?P<seconds>\d+(?:\.\d+)?)"
_CLOCK = re.compile(
    rf"(?:(?P<hours>\d+(?:\.\d+)?)h)?(?:(?P<minutes>\d+(?:\.\d+)?)m)?(?:{_SECONDS}s)?", re.IGNORECASE
)
_PLAIN = re.compile(_SECONDS)


def parse_duration(text: str) -> float:
    """Parse a duration such as ``1h30m``, or a plain number of seconds, into seconds.

    Raises:
        ConfigError: the text is no duration, or not longer than zero.

    Example:
        >>> parse_duration("1h30m"), parse_duration("90s"), parse_duration("45")
        (5400.0, 90.0, 45.0)
    """
    compact = "".join(text.split())
    match = _PLAIN.fullmatch(compact) or _CLOCK.fullmatch(compact)
    parts = {name: float(value) for name, value in match.groupdict().items() if value} if match else {}
    seconds = parts.get("hours", 0) * 3600 + parts.get("minutes", 0) * 60 + parts.get("seconds", 0)
    if not math.isfinite(seconds) or seconds <= 0:
        fault = "not longer than zero" if match and not seconds else "not a span of time that can be used"
        raise ConfigError(
            f"{text!r} is {fault}",
            expected="more than zero, such as 90s, 10m, 1h30m or a number of seconds",
            remedy="Write the number with its unit, as in 10m",
        )
    return seconds


def format_duration(seconds: float) -> str:
    """Format seconds as a duration of at most two units.

    Example:
        >>> format_duration(5400.0), format_duration(90.0), format_duration(7.26)
        ('1h 30m', '1m 30s', '7.3s')
    """
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
