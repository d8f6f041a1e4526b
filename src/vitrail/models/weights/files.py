"""Weight files on this disk, on the Hugging Face hub and on PyTorch's server."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from vitrail.core.errors import CheckpointError, first_line, one_line, reading
from vitrail.core.hub import without_waiting

PICKLES = (".pth", ".pyth", ".pt", ".bin")
SUFFIXES = (".safetensors", *PICKLES, ".npz")
# Keys of weights in training checkpoints.
WRAPPERS = ("model_ema", "state_dict_ema", "model", "model_state", "state_dict")
PYTORCH_SERVER = "https://download.pytorch.org/models/"
NOT_FOUND = 404
MOST_EXPANSION, FREE_BYTES = 64, 2**20  # bytes of tensors for one of the file, beside some for all
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def read_state(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a file, by name, onto the CPU.

    A pickle is read by PyTorch's restricted unpickler, which builds tensors and plain containers only; any
    other is refused, and none of its code runs.

    Raises:
        CheckpointError: the file is missing, damaged, of an unknown format, holds no tensors, or would
            execute code.
    """
    if not path.is_file():
        raise CheckpointError(
            f"there is no file {path}",
            expected=f"a file that ends in {', '.join(SUFFIXES)}",
            remedy="Correct the path",
        )
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise CheckpointError(
            f"{path} has the suffix {suffix or 'none'}",
            expected=f"one of {', '.join(SUFFIXES)}",
            remedy="Rename the file to what it is",
        )
    with reading(path, expected=f"a whole {suffix} file", remedy="Download it again; it may be cut off"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _check_size(path, sum(member.file_size for member in archive.infolist()))
        if suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        if suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                return {name: torch.from_numpy(np.ascontiguousarray(archive[name])) for name in archive}
        loaded = _unpickle(path)
    return _unwrap(loaded, path)


def _unpickle(path: Path) -> Any:
    try:
        with warnings.catch_warnings():  # advice on pickle protocols
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is damaged, or a pickle with more than tensors in it: {_why_refused(error)}",
            expected="tensors and plain containers, whose reading runs no code",
            remedy="Get the weights as .safetensors, or save the state_dict alone with a PyTorch you trust",
        ) from None


def _why_refused(error: Exception) -> str:
    """Return PyTorch's reason, without its advice to read the file nevertheless."""
    if used := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it uses {used[1]}"
    before, _, after = str(error).partition("WeightsUnpickler error: ")
    return one_line((after or before).strip().partition("\n")[0]).split(". ")[0].rstrip(".")


def _unwrap(loaded: Any, path: Path) -> dict[str, Tensor]:
    for name in WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping):
            loaded = loaded[name]
            break
    if not isinstance(loaded, Mapping) or not any(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(
            f"{path} holds no weights, but a {type(loaded).__name__}",
            expected=f"a state dict, by itself or under one of {', '.join(WRAPPERS)}",
            remedy="Save the model's state_dict",
        )
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}
    for name, tensor in tensors.items():
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not is_plain or tensor.is_complex():
            raise CheckpointError(
                f"{path} holds {name}, a tensor that is sparse, quantised, complex or without values",
                expected="dense tensors of real numbers",
                remedy="Save the state_dict of the model in float32",
            )
    _check_size(path, sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
    return {name.removeprefix("module."): value for name, value in tensors.items()}  # DataParallel's prefix


def _check_size(path: Path, num_bytes: int) -> None:
    """Refuse a file whose tensors would take far more memory than its own bytes."""
    if num_bytes > MOST_EXPANSION * path.stat().st_size + FREE_BYTES:
        raise CheckpointError(
            f"{path} has {path.stat().st_size:,} bytes, and its tensors would take {num_bytes:,}",
            expected=f"at most {MOST_EXPANSION} times its bytes, which compressed weights never reach",
            remedy="Get the file from another place",
        )


def hub_file(repository: str, names: tuple[str, ...]) -> Path:
    """Return the local path of the first of some files that a repository of the hub holds.

    Args:
        repository: ``owner/name``, with ``@revision`` for a specific one; or a local folder of that layout.
        names: file names in order of preference.

    Raises:
        CheckpointError: there is no such repository or file, or it is not in the cache and the network
            cannot be reached.
    """
    if Path(repository).is_dir():
        for name in names:
            if (Path(repository) / name).is_file():
                return Path(repository) / name
        raise _no_file(repository, names)
    from huggingface_hub import errors, hf_hub_download

    unknown = errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError
    name_of_repository, _, revision = repository.partition("@")
    unreachable: Exception | None = None
    with without_waiting():
        for name in names:
            try:
                return Path(hf_hub_download(name_of_repository, name, revision=revision or None))
            except errors.LocalEntryNotFoundError as error:
                unreachable = error
            except errors.EntryNotFoundError:
                continue
            except unknown as error:
                raise CheckpointError(
                    f"the Hugging Face hub has no repository {repository!r}: {first_line(error)}",
                    expected="a public repository as owner/name, or a private one and a token",
                    remedy="Correct the name, or sign in with: hf auth login",
                ) from None
            except (errors.HfHubHTTPError, OSError) as error:
                unreachable = error
    if unreachable is None:
        raise _no_file(repository, names)
    raise CheckpointError(
        f"{repository} is not in the local cache, and the Hugging Face hub cannot be reached: "
        f"{first_line(unreachable)}",
        expected="a network connection, or files that were downloaded before",
        remedy="Connect, or unset HF_HUB_OFFLINE; or download the repository elsewhere with "
        f"'hf download {name_of_repository}' and name its folder",
    )


def hub_settings(repository: str, *names: str) -> dict[str, Any]:
    """Return the content of the first of some JSON files that a repository holds; as ``hub_file``."""
    return read_settings(hub_file(repository, names))


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: it is something else.
    """
    expected, remedy = "a JSON object", "Download the file again"
    with reading(path, expected=expected, remedy=remedy):
        settings = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} holds a {type(settings).__name__}", expected=expected, remedy=remedy)
    return settings


def pytorch_file(name: str) -> Path:
    """Return the local path of a file on PyTorch's server, whose name ends in a prefix of its digest.

    Raises:
        CheckpointError: it is not in the cache of torch.hub and the network cannot be reached.
    """
    import torch.hub

    target = Path(torch.hub.get_dir()) / "checkpoints" / name
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = name.rpartition("-")[2].partition(".")[0]
    try:
        torch.hub.download_url_to_file(PYTORCH_SERVER + name, str(target), hash_prefix=digest)
    except (OSError, RuntimeError) as error:
        is_missing = isinstance(error, HTTPError) and error.code == NOT_FOUND
        raise CheckpointError(
            f"{PYTORCH_SERVER}{name} cannot be downloaded: {first_line(error)}",
            expected="a file of PyTorch's server" if is_missing else "a network connection",
            remedy=f"Connect, or put the file {name} into {target.parent}",
        ) from None
    return target


def _no_file(repository: str, names: tuple[str, ...]) -> CheckpointError:
    return CheckpointError(
        f"{repository} holds none of {', '.join(names)}",
        expected="a repository laid out as transformers or timm save their models",
        remedy="Name another one, or use file: with the weights alone",
    )
