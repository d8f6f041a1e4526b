"""What every test shares: type and shape checks, one thread, fixed seeds, tiny data."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

import typechecker
from making.image_folders import write_image_folder

# Read by libraries when they are imported, which none of the above does.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# Collecting the tests makes objects that stay: a sixth of its time went into looking through them.
gc.disable()
typechecker.install()  # shapes and types of every call are checked in tests only

REPOSITORY = Path(__file__).resolve().parents[1]
LONG = (  # seconds a test: first, so that at the end no worker waits for the last one
    "faults/test_files.py",
    "train/test_processes.py",
    "train/test_checkpoints.py",
    "studies/test_comparing.py",
    "tasks/detection/test_extremes.py",
    "tasks/detection/test_objective.py",
    "tasks/detection/test_training.py",
    "tasks/test_training.py",
    "tasks/classification/test_published_scores.py",
    "models/describe/test_describe.py",
    "cli/test_cli.py",
    "test_lectures.py",
    "test_readme.py",
    "engines/export/test_exporting.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what the default suite has no time for."""
    parser.addoption("--all-variants", action="store_true", help="trace every variant, not one of a family")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, of which an undeclared one is an error, and compute in one thread from the start.

    What a module's fixtures train is made before the fixtures of its first test.
    """
    torch.set_num_threads(1)
    config.addinivalue_line("markers", "further: runs with --all-variants only")
    config.addinivalue_line("markers", "compiled: the test compiles a model; shape checks are off inside it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is asked for only, begin with long files, let torch's compiler use deprecated parts."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))
    if not config.getoption("--all-variants"):
        left_out = [item for item in items if item.get_closest_marker("further") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    ignored = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
    for item in items:
        if item.get_closest_marker("compiled") is not None:
            item.add_marker(ignored)


def pytest_collection_finish() -> None:
    """Free memory again from here on, of what the tests make."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Draw the same numbers in every order of the tests, in the fixtures of modules too."""
    _one_thread_and_seed()


def _one_thread_and_seed() -> None:
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats a stack for each kind of device
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True)
def _same_numbers_after_other_fixtures() -> None:
    _one_thread_and_seed()


@pytest.fixture(autouse=True)
def _no_checks_while_compiling(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the checkers out of compiled graphs."""
    if request.node.get_closest_marker("compiled") is None:
        yield
        return
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    torch.compiler.reset()


@pytest.fixture
def plain_pages() -> Iterator[None]:
    """Trainings without report pages."""
    from making.plain_pages import plain_pages

    with plain_pages():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of large data sets beside the checkout; the test is skipped where there is none."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder ../shared/data beside this checkout")
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """A folder of three class folders, five images of odd sizes in each; the colour tells the class."""
    return write_image_folder(tmp_path / "photos", per_class=5)


@pytest.fixture
def divided_folder(tmp_path: Path) -> Path:
    """A folder with ``train/`` and ``test/``, three class folders in each."""
    root = tmp_path / "divided"
    write_image_folder(root / "train", per_class=5)
    write_image_folder(root / "test", per_class=2, seed=1)
    return root
