"""Settings of a server."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError, reading

TOKEN_VARIABLE = "VITRAIL_TOKEN"
LEAST_TOKEN = 8  # characters; fewer are easily guessed
# Generous limits that clocks and addresses can represent.
MOST_WAIT_MS, MOST_TIMEOUT_S, MOST_UPLOAD_MB = 60_000.0, 86_400.0, 1_000_000.0
AUTHORITY = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[\w.-]+)(:\d*)?")  # of a URL


def host_name(authority: str) -> str:
    """Return the host of ``host:port`` in small letters; nothing where it is malformed."""
    found = AUTHORITY.fullmatch(authority.lower())
    return found["host"].strip("[]").rstrip(".") if found else ""


def is_loopback(host: str) -> bool:
    """Tell whether a name or an address can only be this machine's, whatever DNS says."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _check_host(given: str) -> str:
    if given.lower() == "null" or given.lower() != host_name(f"[{given}]" if given.count(":") > 1 else given):
        raise ValueError("a host is a name or an address without scheme and port, such as models.example.org")
    return given.lower()


class ServeSettings(Config):
    """Address, batching and limits of a server."""

    host: str = "127.0.0.1"
    """Address to listen on; by default this machine only."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    allow_hosts: tuple[Annotated[str, AfterValidator(_check_host)], ...] = ()
    """Hosts in URLs under which the server is reached, such as a proxy's; where given, others are refused."""
    token: SecretStr | None = None
    """Required as ``Authorization: Bearer TOKEN``; None disables authentication."""
    engine: str | None = None
    """Engine of image models, as for ``Predictor``: torch, compiled, onnxruntime, openvino or auto."""
    precision: str | None = None
    """Of the matrix products: float32, bfloat16 or int8."""
    trust: bool = False
    """Whether models exported for torch may be loaded, which can run their author's code."""
    max_batch: int = Field(8, ge=1)
    """Maximum batch size."""
    max_wait_ms: float = Field(2.0, ge=0, le=MOST_WAIT_MS, allow_inf_nan=False)
    """How long an idle model waits for others to join the first input of a batch."""
    queue: int = Field(64, ge=1)
    """Maximum waiting inputs per model, including those being decoded."""
    timeout_s: float = Field(30.0, gt=0, le=MOST_TIMEOUT_S, allow_inf_nan=False)
    """Time-out of uploads and of responses."""
    max_upload_mb: float = Field(20.0, gt=0, le=MOST_UPLOAD_MB, allow_inf_nan=False)
    """Maximum request size in megabytes, 10^6 bytes."""
    max_pixels: int = Field(50_000_000, ge=1)
    """Maximum pixels of an image; each takes three bytes when decoded."""

    @property
    def max_upload_bytes(self) -> int:
        return int(self.max_upload_mb * 1e6)


def find_token(file: Path | None = None) -> SecretStr | None:
    """Return the token in a file, or in the environment's VITRAIL_TOKEN, if any.

    Raises:
        ConfigError: the file cannot be read, or the token is not a word of at least 8 ASCII characters.
    """
    if file is None:
        given, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
        if given is None:
            return None
    else:
        where, expected = str(file), "a text file with the token, in UTF-8"
        remedy = f"Correct the path, or set {TOKEN_VARIABLE}"
        with reading(f"the token file {file}", expected=expected, remedy=remedy, error=ConfigError):
            given = file.read_text(encoding="utf-8")
    token = given.strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or any(not each.isprintable() for each in token):
        raise ConfigError(
            f"the token of {where} has {len(token)} characters"
            + ("" if len(token) < LEAST_TOKEN else ", some of them not printable ASCII"),
            expected=f"at least {LEAST_TOKEN} printable ASCII characters",
            remedy="Make one, such as with: openssl rand -hex 24",
        )
    return SecretStr(token)
