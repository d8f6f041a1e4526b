"""Weights in files of other makers: safetensors, PyTorch's pickles without their code, NumPy archives."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.core.errors import CheckpointError

PICKLES = (".pth", ".pt", ".bin")
SUFFIXES = (".safetensors", *PICKLES, ".npz")
WRAPPERS = ("model_ema", "state_dict_ema", "model", "state_dict")  # where training codes keep their weights


def read_state(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a file, by name, onto the processor.

    A pickle is read by PyTorch's restricted unpickler, which builds tensors and plain containers only; one
    that asks for anything else is refused, and none of its code runs.

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
    try:
        if suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        if suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                return {name: torch.from_numpy(np.ascontiguousarray(archive[name])) for name in archive}
        if suffix in PICKLES:
            with warnings.catch_warnings():  # advice on pickle protocols
                warnings.simplefilter("ignore", UserWarning)
                loaded = torch.load(path, map_location="cpu", weights_only=True)
            return _unwrap(loaded, path)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is a pickle with more than tensors in it: {_first_sentence(error)}",
            expected="tensors and plain containers, whose reading runs no code",
            remedy="Get the weights as .safetensors, or save the state_dict alone with a PyTorch you trust",
        ) from None
    except (SafetensorError, OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{path} cannot be read: {_first_sentence(error)}",
            expected=f"a whole {suffix} file",
            remedy="Download it again; it may be cut off",
        ) from None
    raise CheckpointError(
        f"{path} has the suffix {suffix or 'none'}",
        expected=f"one of {', '.join(SUFFIXES)}",
        remedy="Rename the file to what it is",
    )


def _unwrap(loaded: Any, path: Path) -> dict[str, Tensor]:
    """Return the state dict that lies in a checkpoint, whatever else was stored beside it."""
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
    return {name.removeprefix("module."): value for name, value in tensors.items()}  # DataParallel's prefix


def _first_sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0].rstrip(".")
