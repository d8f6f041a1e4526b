"""Weight files on this disk, on the Hugging Face hub and on PyTorch's server."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.core.errors import CheckpointError
from vitrail.core.hub import without_waiting

PICKLES = (".pth", ".pt", ".bin")
SUFFIXES = (".safetensors", *PICKLES, ".npz")
WRAPPERS = ("model_ema", "state_dict_ema", "model", "state_dict")  # keys of weights in training checkpoints
PYTORCH_SERVER = "https://download.pytorch.org/models/"
NOT_FOUND = 404
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
TORCHVISION_DEFAULT = "IMAGENET1K_V1"


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
    """Return the state dict of a checkpoint."""
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
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name_of_repository, _, revision = repository.partition("@")
    unreachable: Exception | None = None
    with without_waiting():
        for name in names:
            try:
                return Path(hf_hub_download(name_of_repository, name, revision=revision or None))
            except LocalEntryNotFoundError as error:
                unreachable = error
            except EntryNotFoundError:
                continue
            except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
                raise CheckpointError(
                    f"the Hugging Face hub has no repository {repository!r}: {_first_line(error)}",
                    expected="a public repository as owner/name, or a private one and a token",
                    remedy="Correct the name, or sign in with: hf auth login",
                ) from None
            except (HfHubHTTPError, OSError) as error:
                unreachable = error
    if unreachable is None:
        raise _no_file(repository, names)
    raise CheckpointError(
        f"{repository} is not in the local cache, and the Hugging Face hub cannot be reached: "
        f"{_first_line(unreachable)}",
        expected="a network connection, or files that were downloaded before",
        remedy="Connect, or unset HF_HUB_OFFLINE; or download the repository elsewhere with "
        f"'hf download {name_of_repository}' and name its folder",
    )


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
    except (HTTPError, URLError, OSError, RuntimeError) as error:
        is_missing = isinstance(error, HTTPError) and error.code == NOT_FOUND
        raise CheckpointError(
            f"{PYTORCH_SERVER}{name} cannot be downloaded: {_first_line(error)}",
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


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class PublishedFile(NamedTuple):
    """A weight file for ImageNet's 1,000 classes."""

    name: str
    """On the server; ends in the first digits of the SHA-256 digest."""
    resize_px: int
    """Shorter side after resizing, before the central crop."""
    crop_px: int
    interpolation: str


TORCHVISION_FILES = {  # from torchvision 0.28's list of weights
    "efficientnet_b0": PublishedFile("efficientnet_b0_rwightman-7f5810bc.pth", 256, 224, "bicubic"),
    "efficientnet_b1": PublishedFile("efficientnet_b1_rwightman-bac287d4.pth", 256, 240, "bicubic"),
    "efficientnet_b1.IMAGENET1K_V2": PublishedFile("efficientnet_b1-c27df63c.pth", 255, 240, "bilinear"),
    "efficientnet_b2": PublishedFile("efficientnet_b2_rwightman-c35c1473.pth", 288, 288, "bicubic"),
    "efficientnet_b3": PublishedFile("efficientnet_b3_rwightman-b3899882.pth", 320, 300, "bicubic"),
    "efficientnet_b4": PublishedFile("efficientnet_b4_rwightman-23ab8bcd.pth", 384, 380, "bicubic"),
    "efficientnet_b5": PublishedFile("efficientnet_b5_lukemelas-1a07897c.pth", 456, 456, "bicubic"),
    "efficientnet_b6": PublishedFile("efficientnet_b6_lukemelas-24a108a5.pth", 528, 528, "bicubic"),
    "efficientnet_b7": PublishedFile("efficientnet_b7_lukemelas-c5b4e57e.pth", 600, 600, "bicubic"),
    "resnet18": PublishedFile("resnet18-f37072fd.pth", 256, 224, "bilinear"),
    "resnet34": PublishedFile("resnet34-b627a593.pth", 256, 224, "bilinear"),
    "resnet50": PublishedFile("resnet50-0676ba61.pth", 256, 224, "bilinear"),
    "resnet50.IMAGENET1K_V2": PublishedFile("resnet50-11ad3fa6.pth", 232, 224, "bilinear"),
    "resnet101": PublishedFile("resnet101-63fe2227.pth", 256, 224, "bilinear"),
    "resnet101.IMAGENET1K_V2": PublishedFile("resnet101-cd907fc2.pth", 232, 224, "bilinear"),
    "resnet152": PublishedFile("resnet152-394f9c45.pth", 256, 224, "bilinear"),
    "resnet152.IMAGENET1K_V2": PublishedFile("resnet152-f82ba261.pth", 232, 224, "bilinear"),
    "swin_t": PublishedFile("swin_t-704ceda3.pth", 232, 224, "bicubic"),
    "swin_s": PublishedFile("swin_s-5e29d889.pth", 246, 224, "bicubic"),
    "swin_b": PublishedFile("swin_b-68c6b09e.pth", 238, 224, "bicubic"),
    "swin_v2_t": PublishedFile("swin_v2_t-b137f0e2.pth", 260, 256, "bicubic"),
    "swin_v2_s": PublishedFile("swin_v2_s-637d8ceb.pth", 260, 256, "bicubic"),
    "swin_v2_b": PublishedFile("swin_v2_b-781e5279.pth", 272, 256, "bicubic"),
    "vit_b_16": PublishedFile("vit_b_16-c867db91.pth", 256, 224, "bilinear"),
    "vit_b_16.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_b_16_swag-9ac1b537.pth", 384, 384, "bicubic"),
    "vit_b_16.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_b_16_lc_swag-4e70ced5.pth", 224, 224, "bicubic"),
    "vit_b_32": PublishedFile("vit_b_32-d86f8d99.pth", 256, 224, "bilinear"),
    "vit_l_16": PublishedFile("vit_l_16-852ce7e3.pth", 242, 224, "bilinear"),
    "vit_l_16.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_l_16_swag-4f3808c9.pth", 512, 512, "bicubic"),
    "vit_l_16.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_l_16_lc_swag-4d563306.pth", 224, 224, "bicubic"),
    "vit_l_32": PublishedFile("vit_l_32-c7638314.pth", 256, 224, "bilinear"),
    "vit_h_14.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_h_14_swag-80465313.pth", 518, 518, "bicubic"),
    "vit_h_14.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_h_14_lc_swag-c1eb923e.pth", 224, 224, "bicubic"),
}
