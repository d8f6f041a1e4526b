"""What a server can be told, and what the command says to values that it cannot use."""

from __future__ import annotations

import pytest

from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.serve.server import build_server
from vitrail.serve.settings import MOST_TIMEOUT_S, MOST_UPLOAD_MB, MOST_WAIT_MS, ServeSettings


@pytest.mark.parametrize("name", ["max_wait_ms", "timeout_s", "max_upload_mb"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300])
def test_amounts_without_an_end_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        ServeSettings.from_tree({name: value})


def test_the_largest_amounts_can_be_used() -> None:
    settings = ServeSettings(timeout_s=MOST_TIMEOUT_S, max_upload_mb=MOST_UPLOAD_MB, max_wait_ms=MOST_WAIT_MS)

    assert settings.max_upload_bytes == 10**12
    assert build_server({}, settings).server.config.timeout_graceful_shutdown == 2 * 86_400 + 5


@pytest.mark.parametrize("option", ["--timeout", "--max-upload-mb", "--max-wait-ms"])
def test_the_command_says_which_amount_is_not_finite(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["serve", "nowhere", option, "inf"])

    error = capsys.readouterr().err
    assert code == 2
    assert option[2:].replace("-", "_") in error
    assert "finite number" in error
