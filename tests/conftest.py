"""What every test shares: type and shape checks, one thread, fixed seeds, tiny data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image

# Read by libraries when they are imported, which none of the above does.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# Shapes and types of every call are checked in tests only; the package must not be imported before this.
jaxtyping.install_import_hook("vitrail", "typechecker.typechecked")

REPOSITORY = Path(__file__).resolve().parents[1]
CLASS_COLOURS = {"blue": (30, 60, 200), "green": (20, 160, 40), "red": (210, 40, 30)}


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers; an undeclared one is an error."""
    config.addinivalue_line("markers", "compiled: the test compiles a model; shape checks are off inside it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let torch's own compiler use what torch deprecates."""
    ignored = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
    for item in items:
        if item.get_closest_marker("compiled") is not None:
            item.add_marker(ignored)


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


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


def write_image_folder(root: Path, *, per_class: int, seed: int = 0) -> Path:
    """Write noisy images of one colour per class, PNG and JPEG in turn, no two alike."""
    generator = np.random.default_rng(seed)
    for name, colour in CLASS_COLOURS.items():
        (root / name).mkdir(parents=True)
        for index in range(per_class):
            height, width = 17 + 2 * index, 23 - 2 * index
            noise = generator.integers(-25, 26, size=(height, width, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            suffix = ".png" if index % 2 == 0 else ".jpg"
            Image.fromarray(pixels).save(root / name / f"{name}-{index}{suffix}")
    return root
