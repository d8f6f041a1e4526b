"""Spans of time are read and written as a person does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.core.duration import format_duration, parse_duration
from vitrail.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m 5s", 5405),
        ("45", 45),
        ("0.5h", 1800),
        ("2M", 120),
    ],
)
def test_hours_minutes_and_seconds_add_up(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["0", "0s", "0h0m", "-5m", "", " ", "ten", "10x", "m", "30s10m", "nan", "inf", "1e3", "9" * 400]
)
def test_what_is_not_a_positive_span_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 90s, 10m, 1h30m"):
        parse_duration(text)


@given(st.integers(min_value=1, max_value=10**6))
def test_a_written_span_reads_back_to_within_its_shown_units(seconds: int) -> None:
    shown = 60 if seconds >= 3600 else 1
    assert abs(parse_duration(format_duration(seconds)) - seconds) < shown


def test_rounding_carries_into_the_next_unit() -> None:
    assert format_duration(59.7) == "1m 00s"
    assert format_duration(3599.6) == "1h 00m"
