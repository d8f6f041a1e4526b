"""What ``vitrail env`` tells: what is there, what is missing for what, problems; and nobody's name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

import pytest

from vitrail.cli import main
from vitrail.train.installation import EXTRAS, describe_installation, find_problems, measure_caches

FINE = {
    "cpu": "a CPU",
    "cores": 4,
    "container_cores": None,
    "threads": 4,
    "precision": "float32",
    "load": 0.5,
    "free_memory_gib": 7.0,
    "free_disk_gib": 11.0,
    "gpus": [],
    "gpu_driver": None,
    "torch_cuda": None,
    "torch_warning": None,
    "compiler": "g++",
}
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
NEW_DRIVER = "update the driver, or install the CPU build"
OF_DEVELOPERS = {"test", "lint", "mutants", "benchmark"}
installation = import_module("vitrail.train.installation")


@pytest.fixture
def alice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user whose caches hold something, on a host with a name."""
    home = tmp_path / "home" / "alice"
    for folder in (".cache/vitrail", ".cache/huggingface/hub"):
        (home / folder).mkdir(parents=True)
        (home / folder / "features").write_bytes(bytes(3 * 2**20))
    (home / ".cache" / "huggingface" / "hub" / "link").symlink_to("features")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "alice")
    for name in ("XDG_CACHE_HOME", "VITRAIL_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "of_alice"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / ".cache/huggingface/hub"))
    monkeypatch.setattr("platform.node", lambda: "wonderland")
    monkeypatch.setattr(installation, "inspect_hardware", lambda: FINE)
    return home


def test_a_good_machine_has_no_problems() -> None:
    assert not [*find_problems(FINE)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"threads": 8}, "8 threads on 4 cores wait for each other: set OMP_NUM_THREADS=4"),
        ({"container_cores": 1.5}, "4 threads on 1.5 cores wait for each other: set OMP_NUM_THREADS=1"),
        ({"load": 6.1}, "other programs load the machine (6.1): timings and budgets suffer"),
        (
            {"torch_cuda": "12.8"},
            f"PyTorch for CUDA 12.8 finds no GPU (there is no driver): {NEW_DRIVER}",
        ),
        (
            {"torch_cuda": "12.8", "torch_warning": "The driver is old", "gpu_driver": "440.1"},
            f"PyTorch for CUDA 12.8 finds no GPU (The driver is old): {NEW_DRIVER}",
        ),
        (
            {"torch_cuda": "12.8", "gpus": ["K40"], "torch_warning": "K40 is too old"},
            "PyTorch warns of the GPU: K40 is too old",
        ),
        (
            {"gpu_driver": "550.1"},
            "PyTorch's CPU build uses no GPU (driver 550.1): install the build for CUDA",
        ),
        ({"compiler": None}, "--engine compiled needs a C++ compiler: install g++"),
        ({"free_memory_gib": 0.51}, "0.5 GiB of memory are free: choose a smaller batch or model"),
        ({"free_disk_gib": 0.26}, "0.3 GiB of this disk are free: checkpoints may not fit"),
    ],
)
def test_each_problem_is_told_with_its_remedy(change: dict[str, object], problem: str) -> None:
    assert [*find_problems(FINE | change)] == [problem]


def test_every_extra_for_users_says_what_it_is_for() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]

    assert set(dict(EXTRAS)) == set(extras) - OF_DEVELOPERS


def test_what_an_extra_lacks_is_named_with_what_it_is_for(
    alice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required = (
        "torch>=2.9",
        "numpy>=9",
        "mlxtend>=0.23; extra == 'demo'",
        "no-such>=3; extra == 'serve'",
        "pillow>=99; extra == 'serve'",
    )
    monkeypatch.setattr(metadata, "requires", lambda _: [*required])

    found = describe_installation()

    pillow, numpy = metadata.version("pillow"), metadata.version("numpy")
    assert found["extras"] == {
        "demo": "installed",
        "serve": f"needs no-such>=3 (missing), pillow>=99 ({pillow}), for vitrail serve",
    }
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["problems"] == [f"vitrail needs numpy>=9 ({numpy}): pip install --upgrade vitrail"]


@pytest.mark.parametrize(
    ("line", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22", "550.54.14"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("", None),
    ],
)
def test_the_driver_and_a_containers_share_are_read(
    line: str, driver: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/proc/driver/nvidia/version": line, "/sys/fs/cgroup/cpu.max": "150000 100000\n"}
    monkeypatch.setattr(installation, "_read", files.__getitem__)

    hardware = installation.inspect_hardware()

    assert hardware.keys() == FINE.keys()
    assert (hardware["gpu_driver"], hardware["container_cores"]) == (driver, 1.5)


def test_a_folder_that_pip_did_not_install_is_described_too(
    alice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_metadata(_: str) -> None:
        raise metadata.PackageNotFoundError("vitrail")

    monkeypatch.setattr(metadata, "requires", no_metadata)

    assert describe_installation()["extras"] == {}


def test_a_pytorch_that_cannot_be_imported_is_a_problem(alice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError(f"{alice}/lib/libtorch.so: undefined symbol")

    monkeypatch.setattr(installation, "inspect_hardware", broken)

    found = describe_installation()

    assert found["problems"][-1] == "PyTorch cannot be used: ~/lib/libtorch.so: undefined symbol"
    assert found["hardware"] == {}


def test_caches_are_measured_without_following_links(alice: Path) -> None:
    sizes = measure_caches()

    assert {folder: round(1024 * size) for folder, size in sizes.items()} == {
        "~/.cache/vitrail": 3,
        "~/.cache/huggingface/hub": 3,
    }


def named_variables(home: Path) -> Iterator[tuple[str, str, str]]:
    """Yield variables, their values, and what may be shown of them."""
    yield "OMP_NUM_THREADS", "3", "3"
    yield "HF_TOKEN", "hf_secret", "set"
    yield "VITRAIL_TOKEN", "secret", "set"
    yield "HF_ENDPOINT", "https://secret@wonderland", "set"
    yield "VITRAIL_DATA", f"{home}/data", "~/data"
    yield "HF_HOME", "/scratch/alice/hf-alice", "/scratch/USER/hf-USER"
    yield "PYTHONPATH", "/net/wonderland/malice", "/net/HOST/malice"


def test_no_name_of_a_user_or_host_and_no_secret_is_told(
    alice: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    for name, value, expected in named_variables(alice):
        monkeypatch.setenv(name, value)
        shown[name] = expected

    assert main(["env", "--json"]) == 0
    text = capsys.readouterr().out
    assert main(["env"]) == 0
    page = capsys.readouterr().out

    assert json.loads(text)["variables"].items() >= shown.items()
    for told in (text, page):
        assert not re.search(r"\balice|secret|wonderland", told)


def test_the_page_is_markdown(
    alice: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which hides all GPUs
    assert main(["env"]) == 0

    page = capsys.readouterr().out
    titles = ["versions", "hardware", "extras", "caches_gib", "variables", "problems"]
    assert re.findall("^## (.*)", page, re.MULTILINE) == titles
    assert not [line for line in page.splitlines() if not re.match("## |- [^-]|$", line)]
    for line in (
        "- CUDA_VISIBLE_DEVICES: ",
        "- cores: 4",
        "- load: 0.50",
        "- gpus: none",
        "- torch_cuda: none",
    ):
        assert f"\n{line}\n" in page
    assert page.endswith("## problems\n\n- none\n\n")


def test_doctor_is_answered_with_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 2

    told = " ".join(capsys.readouterr().err.split())
    assert "no command doctor. vitrail env describes this installation, vitrail check DATA the data" in told
