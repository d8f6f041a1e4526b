"""Key tables: how names and shapes of a published checkpoint map to ours, in both directions.

A table is a list of entries for one model's settings that names every tensor of both sides exactly once.
Anything left over on either side is an error, and nothing is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.core.errors import CheckpointError

MAX_NAMED_KEYS = 8

State = dict[str, Tensor]
Change = Callable[[list[Tensor]], list[Tensor]]
Step = tuple[tuple[str, ...], tuple[str, ...], Change]  # from, to, how


class Entry(NamedTuple):
    """One correspondence of tensors."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_ours: Change
    """Converts published tensors to ours, in the order of ``ours``."""
    to_theirs: Change


def same(ours: str, theirs: str) -> Entry:
    """Map a tensor to another name."""
    return Entry((ours,), (theirs,), list, list)


def layer(ours: str, theirs: str, *, bias: bool = True) -> Iterator[Entry]:
    """Map the weight and, by default, the bias of a layer."""
    for name in ("weight", "bias") if bias else ("weight",):
        yield same(f"{ours}.{name}", f"{theirs}.{name}")


def batch_norm(ours: str, theirs: str, *, counts: bool = True) -> Iterator[Entry]:
    """Map parameters and statistics of a batch norm, by default with its batch count."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        yield same(f"{ours}.{name}", f"{theirs}.{name}")
    if counts:
        yield same(f"{ours}.num_batches_tracked", f"{theirs}.num_batches_tracked")


def kernel(ours: str, theirs: str) -> Entry:
    """Map our channels-last kernel to a channels-first one."""
    return Entry(
        (f"{ours}.weight",),
        (f"{theirs}.weight",),
        lambda tensors: [tensors[0].permute(0, 2, 3, 1)],
        lambda tensors: [tensors[0].permute(0, 3, 1, 2)],
    )


def pointwise(ours: str, theirs: str) -> Iterator[Entry]:
    """Map a linear layer to the equivalent 1x1 convolution."""
    yield Entry(
        (f"{ours}.weight",),
        (f"{theirs}.weight",),
        lambda tensors: [tensors[0].flatten(1)],
        lambda tensors: [tensors[0][:, :, None, None]],
    )
    yield same(f"{ours}.bias", f"{theirs}.bias")


def reshaped(ours: str, theirs: str, *, to_ours: Sequence[int], to_theirs: Sequence[int]) -> Entry:
    """Map a tensor to another shape; one length of each shape may be -1."""
    return Entry(
        (ours,),
        (theirs,),
        lambda tensors: [tensors[0].reshape(*to_ours)],
        lambda tensors: [tensors[0].reshape(*to_theirs)],
    )


def joined(ours: str, theirs: Sequence[str]) -> Entry:
    """Map a tensor to its equal parts along the first axis."""
    return Entry(
        (ours,),
        tuple(theirs),
        lambda tensors: [torch.cat(tensors)],
        lambda tensors: list(tensors[0].chunk(len(theirs))),
    )


def rows(ours: str, theirs: Sequence[str], *, to_theirs: Sequence[int]) -> Entry:
    """Map the rows of a matrix to tensors of one row each, such as prefix tokens."""
    return Entry(
        (ours,),
        tuple(theirs),
        lambda tensors: [torch.cat([tensor.reshape(1, -1) for tensor in tensors])],
        lambda tensors: [row.reshape(*to_theirs) for row in tensors[0]],
    )


def joined_layers(ours: str, theirs: Sequence[str], *, bias: bool = True) -> Iterator[Entry]:
    """Map a linear layer to layers with concatenated outputs, such as query, key, value."""
    for name in ("weight", "bias") if bias else ("weight",):
        yield joined(f"{ours}.{name}", [f"{part}.{name}" for part in theirs])


def to_ours(table: Iterable[Entry], state: Mapping[str, Tensor], *, ignored: Iterable[str] = ()) -> State:
    """Convert a published state dict to ours.

    Args:
        ignored: published names that hold nothing learned, such as index tables; they may be missing.

    Raises:
        CheckpointError: a tensor is missing, unknown, or does not fit the table's shape.
    """
    entries = list(table)
    wanted = [name for entry in entries for name in entry.theirs]
    _check_names(wanted, state, ignored)
    return _apply([(entry.theirs, entry.ours, entry.to_ours) for entry in entries], state)


def to_theirs(table: Iterable[Entry], state: Mapping[str, Tensor]) -> State:
    """Convert our state dict to the published one, without the names that hold nothing learned.

    Raises:
        CheckpointError: as ``to_ours``.
    """
    entries = list(table)
    _check_names([name for entry in entries for name in entry.ours], state, ())
    return _apply([(entry.ours, entry.theirs, entry.to_theirs) for entry in entries], state)


def _apply(
    steps: list[tuple[tuple[str, ...], tuple[str, ...], Change]], state: Mapping[str, Tensor]
) -> State:
    result: State = {}
    for sources, targets, change in steps:
        try:
            made = change([state[name] for name in sources])
        except RuntimeError as error:
            shapes = ", ".join(f"{name} {tuple(state[name].shape)}" for name in sources)
            raise CheckpointError(
                f"the weights hold {shapes}, which cannot become {', '.join(targets)}: {error}",
                expected="weights of the same architecture",
                remedy="Name the model that these weights belong to",
            ) from None
        for target, tensor in zip(targets, made, strict=True):
            assert target not in result, f"the table names {target} twice"
            result[target] = tensor.contiguous()
    return result


def _check_names(wanted: list[str], state: Mapping[str, Tensor], ignored: Iterable[str]) -> None:
    missing = [name for name in wanted if name not in state]
    unexpected = sorted(set(state) - set(wanted) - set(ignored))
    if missing or unexpected:
        parts = [_list_names("missing", missing), _list_names("unexpected", unexpected)]
        raise CheckpointError(
            f"the weights do not fit, {'; '.join(part for part in parts if part)}",
            expected="every tensor of the architecture and no other",
            remedy="Name the model that these weights belong to",
        )


def _list_names(kind: str, names: list[str]) -> str:
    shown = ", ".join(names[:MAX_NAMED_KEYS])
    more = ", ..." if len(names) > MAX_NAMED_KEYS else ""
    return f"{len(names)} {kind}: {shown}{more}" if names else ""
