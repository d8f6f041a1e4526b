"""Key tables: how names and shapes of a published checkpoint map to ours, in both directions.

A table is a list of entries for one model's settings that names every tensor of both sides exactly once.
Anything left over on either side is an error, and nothing is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.errors import CheckpointError, ConfigError, check_name

MAX_NAMED_KEYS = 8

State = dict[str, Tensor]
Change = Callable[[list[Tensor]], list[Tensor]]


class Entry(NamedTuple):
    """One correspondence of tensors."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_ours: Change
    """Converts published tensors to ours, in the order of ``ours``."""
    to_theirs: Change


Table = Callable[[Any], Iterable[Entry]]
"""Makes the key table of a model's settings."""


class Source(NamedTuple):
    """A library or code base whose checkpoints can be read."""

    name: str
    tables: Mapping[str, Table]
    """By family."""
    names: Mapping[str, str]
    """Published architecture name to the name of our variant."""
    ignored: Mapping[str, tuple[str, ...]] = {}
    """Ends of published names that hold nothing learned, by family."""
    other_tables: Mapping[str, Table] = {}
    """Key tables of another layout, by family."""

    def table(self, config: Any) -> list[Entry]:
        """Return the key table of a model's settings; ConfigError if the source has none of the family."""
        if config.family not in self.tables:
            raise ConfigError(
                f"{self.name} has no weights of the family {config.family!r} that can be read",
                expected=f"one of {', '.join(sorted(self.tables))}",
                remedy="vitrail models NAME says what weights a model can load",
            )
        return list(self.tables[config.family](config))

    def our_name(self, architecture: str) -> str:
        """Return the name of our variant of a published architecture."""
        check_name(f"{self.name} architecture", architecture, self.names)
        return self.names[architecture]


def same(ours: str, theirs: str) -> Entry:
    """Map a tensor to another name."""
    return Entry((ours,), (theirs,), list, list)


def changed(
    ours: str, theirs: str, to_ours: Callable[[Tensor], Tensor], to_theirs: Callable[[Tensor], Tensor]
) -> Entry:
    """Map a tensor to another name and shape."""
    return Entry(
        (ours,), (theirs,), lambda tensors: [to_ours(tensors[0])], lambda tensors: [to_theirs(tensors[0])]
    )


def batched(ours: str, theirs: str) -> Entry:
    """Map a tensor to one with a first axis of length 1."""
    return changed(ours, theirs, lambda tensor: tensor.squeeze(0), lambda tensor: tensor[None])


def permuted(ours: str, theirs: str, *axes: int) -> Entry:
    """Map a tensor to one with other axes; ``axes`` are theirs in our order."""
    back = [axes.index(axis) for axis in range(len(axes))]
    return changed(ours, theirs, lambda tensor: tensor.permute(axes), lambda tensor: tensor.permute(back))


def kernel(ours: str, theirs: str) -> Entry:
    """Map our channels-last kernel to a channels-first one."""
    return permuted(f"{ours}.weight", f"{theirs}.weight", 0, 2, 3, 1)


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


def layer(ours: str, theirs: str | Sequence[str], *, bias: bool = True) -> Iterator[Entry]:
    """Map the weight and, by default, the bias of a layer to one or several, which are joined."""
    parts = [theirs] if isinstance(theirs, str) else theirs
    for name in ("weight", "bias") if bias else ("weight",):
        yield joined(f"{ours}.{name}", [f"{part}.{name}" for part in parts])


def layers(ours: str, theirs: str, names: Mapping[str, str | Sequence[str]]) -> Iterator[Entry]:
    """Map the layers of a part: ``names`` are theirs by ours, as for ``layer``.

    Args:
        ours, theirs: the part's name on either side; empty for the whole model.
    """
    before, prefix = (f"{part}." if part else "" for part in (ours, theirs))
    for name, published in names.items():
        parts = [published] if isinstance(published, str) else published
        yield from layer(f"{before}{name}", [f"{prefix}{part}" for part in parts])


def torch_attention(ours: str, theirs: str) -> Iterator[Entry]:
    """Map the tensors of ``nn.MultiheadAttention``."""
    for name in ("weight", "bias"):
        yield same(f"{ours}.qkv.{name}", f"{theirs}.in_proj_{name}")
    yield from layer(f"{ours}.projection", f"{theirs}.out_proj")


def pointwise(ours: str, theirs: str) -> Iterator[Entry]:
    """Map a linear layer to the equivalent 1x1 convolution."""
    yield changed(
        f"{ours}.weight",
        f"{theirs}.weight",
        lambda tensor: tensor.flatten(1),
        lambda tensor: tensor[:, :, None, None],
    )
    yield same(f"{ours}.bias", f"{theirs}.bias")


def normed(ours: str, convolution: str, norm: str, *, counts: bool = True) -> Iterator[Entry]:
    """Map a convolution with batch norm, by default with the count of batches."""
    yield kernel(ours, convolution)
    for name in ("weight", "bias", "running_mean", "running_var", *["num_batches_tracked"] * counts):
        yield same(f"{ours}.norm.{name}", f"{norm}.{name}")


def blocks(depths: Sequence[int] | int, ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    """Yield the name of every block, ours and theirs; both are formats of stage and index, or of the index
    alone where there is one depth."""
    if isinstance(depths, int):
        yield from ((ours.format(index), theirs.format(index)) for index in range(depths))
        return
    for stage, depth in enumerate(depths):
        for index in range(depth):
            yield ours.format(stage, index), theirs.format(stage, index)


def to_ours(table: Iterable[Entry], state: Mapping[str, Tensor], *, ignored: Iterable[str] = ()) -> State:
    """Convert a published state dict to ours.

    Args:
        ignored: ends of published names that hold nothing learned, such as index tables; unless the table
            names them, they may be there or missing.

    Raises:
        CheckpointError: a tensor is missing, unknown, or does not fit the table's shape.
    """
    steps = [(entry.theirs, entry.ours, entry.to_ours) for entry in table]
    return _apply(steps, state, tuple(ignored))


def to_theirs(table: Iterable[Entry], state: Mapping[str, Tensor]) -> State:
    """Convert our state dict to the published one, without the names that hold nothing learned.

    Raises:
        CheckpointError: as ``to_ours``.
    """
    return _apply([(entry.ours, entry.theirs, entry.to_theirs) for entry in table], state, ())


def _apply(
    steps: list[tuple[tuple[str, ...], tuple[str, ...], Change]],
    state: Mapping[str, Tensor],
    ignored: tuple[str, ...],
) -> State:
    wanted = {name for sources, _, _ in steps for name in sources}
    missing = [name for sources, _, _ in steps for name in sources if name not in state]
    unexpected = sorted(name for name in state if name not in wanted and not name.endswith(ignored))
    if missing or unexpected:
        parts = [_list_names("missing", missing), _list_names("unexpected", unexpected)]
        raise CheckpointError(
            f"the weights do not fit, {'; '.join(part for part in parts if part)}",
            expected="every tensor of the architecture and no other",
            remedy="Name the model that these weights belong to",
        )
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


def _list_names(kind: str, names: list[str]) -> str:
    shown = ", ".join(names[:MAX_NAMED_KEYS])
    more = ", ..." if len(names) > MAX_NAMED_KEYS else ""
    return f"{len(names)} {kind}: {shown}{more}" if names else ""
