from __future__ import annotations

import pickle
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch

from vitrail.core.errors import CheckpointError
from vitrail.models.weights.files import hub_settings, read_state


class Harmful:
    """Would write a file when unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self):
        return open, (self.target, "w")


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {"a.weight": torch.randn(2, 3), "b": torch.arange(5)}


def assert_equal(read: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], state[name]) for name in state)


def test_every_format_gives_the_same_tensors(tmp_path, state):
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pth")
    np.savez(tmp_path / "a.npz", **{name: tensor.numpy() for name, tensor in state.items()})

    for suffix in ("safetensors", "pth", "npz"):
        assert_equal(read_state(tmp_path / f"a.{suffix}"), state)


@pytest.mark.parametrize("wrapper", ["model", "model_state", "state_dict", "model_ema"])
def test_weights_are_found_beside_what_a_training_stores(tmp_path, state, wrapper):
    torch.save({wrapper: state, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "a.pth")
    assert_equal(read_state(tmp_path / "a.pth"), state)


def test_the_prefix_of_data_parallel_training_goes(tmp_path, state):
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "a.pth")
    assert_equal(read_state(tmp_path / "a.pth"), state)


@pytest.mark.parametrize("save", ["torch", "pickle"])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, state, save):
    trap, path = tmp_path / "trap", tmp_path / "a.pth"
    if save == "torch":
        torch.save({"model": state, "args": Harmful(str(trap))}, path)
    else:
        path.write_bytes(pickle.dumps(Harmful(str(trap))))

    with pytest.raises(CheckpointError, match=r"safetensors"):
        read_state(path)
    assert not trap.exists()


@pytest.mark.parametrize("suffix", ["safetensors", "pth", "npz"])
@pytest.mark.parametrize("length", [0, 40])
def test_a_file_that_is_cut_off_is_refused(tmp_path, state, suffix, length):
    path = tmp_path / f"a.{suffix}"
    if suffix == "safetensors":
        safetensors.torch.save_file(state, path)
    elif suffix == "pth":
        torch.save(state, path)
    else:
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(CheckpointError, match=r"a\." + suffix):
        read_state(path)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"x")
    torch.save([1, 2], tmp_path / "list.pth")

    with pytest.raises(CheckpointError, match="suffix"):
        read_state(tmp_path / "a.h5")
    with pytest.raises(CheckpointError, match="there is no file"):
        read_state(tmp_path / "absent.pth")
    with pytest.raises(
        CheckpointError, match=r"list\.pth holds no weights, but a list\. Expected a state dict"
    ):
        read_state(tmp_path / "list.pth")


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (b"\x80\x02]q\x00(h\x05e.", "it refers to 5, which it does not hold"),
        (b"\x80\x02e.", "pop from empty list|cut off"),
        (b"\x80\x02X\xff\xff", "unpack requires a buffer"),
        (b"\x80\x02cnumpy\nscalar\n.", "it uses numpy.scalar"),
    ],
)
def test_a_pickle_that_breaks_its_reader_is_refused(tmp_path, pickled, reason):
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        for name, content in {"data.pkl": pickled, "version": b"3\n", "byteorder": b"little"}.items():
            archive.writestr(f"a/{name}", content)

    with pytest.raises(CheckpointError, match=reason):
        read_state(tmp_path / "a.pth")


@pytest.mark.parametrize("content", [b"", b"\xff", b"{", b"[" * 100_000, b"[]", b"1"])
def test_settings_are_one_json_object(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)

    with pytest.raises(CheckpointError, match=r"config\.json (cannot be read|holds a).*a JSON object"):
        hub_settings(str(tmp_path), "config.json")
