"""A server over small models, asked without a network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from making.served_models import small_models
from vitrail.serve.app import create_app
from vitrail.serve.hosting import Hosting
from vitrail.serve.settings import ServeSettings

SETTINGS = ServeSettings(max_upload_mb=0.2, max_pixels=100_000, timeout_s=60, queue=5)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def hosting() -> Iterator[Hosting]:
    """One model of each kind, loaded."""
    made = Hosting(small_models(), SETTINGS)
    made.start()
    made.wait()
    yield made
    made.close()


@pytest.fixture(scope="session")
def client(hosting: Hosting) -> Iterator[TestClient]:
    """A client of a server over them."""
    with TestClient(create_app(hosting, SETTINGS), raise_server_exceptions=False) as made:
        yield made
