"""Files of the Hugging Face hub and of PyTorch's server, from the local cache or the network."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError, URLError

from vitrail.core.errors import CheckpointError
from vitrail.core.hub import without_waiting

PYTORCH_SERVER = "https://download.pytorch.org/models/"
NOT_FOUND = 404
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def hub_file(repository: str, names: tuple[str, ...]) -> Path:
    """Return the local path of the first of some files that a repository of the hub holds.

    Args:
        repository: ``owner/name``, with ``@revision`` where it is not the newest; or a local folder laid
            out like one.
        names: wanted file names, the best first.

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
    """Return the local path of a file of PyTorch's server, whose name ends in a part of its digest.

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
