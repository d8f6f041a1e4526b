"""Recording of exact attention maps of any model while it runs.

Layers that attend carry a plain attribute ``tap``, None by default. Recording sets it for the time of a
``with`` block, and computes the weights beside the model's own computation, which stays as it is. Windows are
stitched together to the whole image.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import ConfigError, did_you_mean
from vitrail.core.switch import SharedSwitch
from vitrail.nn.attention import attention_weights
from vitrail.nn.tap import TokenGrids

_EAGER = SharedSwitch(lambda: torch.compiler.set_stance("force_eager"))  # of all threads


class AttentionMap(NamedTuple):
    """The attention weights of one layer in one forward pass."""

    layer: str
    """Dotted name of the layer in the model."""
    weights: Float[Tensor, "batch heads queries keys"]
    """Attention weights; float32, detached, on the model's device."""
    kind: str
    """``"self"``; ``"cross"`` if keys and queries are of different sequences; ``"mixing"`` if the weights are
    a mixer's own, whose rows need not sum to one.
    """
    grid: tuple[int, int] | None
    """Rows and columns of the keys after the prefix; None if they are not an image's."""
    num_prefix: int
    """Keys before the grid, such as class tokens; 0 without a grid."""
    query_grid: tuple[int, int] | None = None
    """Rows and columns of the queries after their prefix, finer than ``grid`` if a layer reduces its keys;
    both cover the same image.
    """

    def __repr__(self) -> str:
        shape = tuple(self.weights.shape)
        return f"AttentionMap({self.layer!r}, weights={shape}, kind={self.kind!r}, grid={self.grid})"


@contextmanager
def record_attention(
    model: nn.Module,
    layers: str | int | Sequence[str | int] | None = None,
    queries: Sequence[int] | None = None,
    *,
    keep: Callable[[AttentionMap], AttentionMap | None] | None = None,
) -> Iterator[list[AttentionMap]]:
    """Record the attention maps of every forward pass inside the ``with`` block.

    The outputs of the model are bit-identical. Code compiled by torch.compile runs eagerly inside the block,
    in every thread, and keeps its graphs.

    Args:
        model: any model of this library, bare, compiled or wrapped for distributed training.
        layers: parts of layer names, or indices among the attention layers (negative from the end); None
            records all.
        queries: indices of the query tokens to record; other rows are never computed. None records all.
        keep: transforms each map immediately, for example by pooling, as the maps of all layers may exceed
            memory; returning None drops a map. By default maps are kept as they are.

    Yields:
        : The list that forward passes append to, in order of execution.

    Raises:
        ConfigError: no layer matches, a layer is being recorded already, or has no such query.

    Example:
        >>> from vitrail.models import build
        >>> model = build("vit_nano")
        >>> with record_attention(model, layers=-1) as maps:
        ...     logits = model(torch.zeros(1, 3, 32, 32))
        >>> maps[0].weights.shape, maps[0].grid
        (torch.Size([1, 3, 64, 64]), (8, 8))
    """
    chosen = _choose(tapped_layers(model), layers)
    maps: list[AttentionMap] = []
    rows = None if queries is None else list(queries)
    with tapped(chosen, lambda name: _Recorder(maps, name, rows, keep)), uncompiled():
        yield maps


@contextmanager
def tapped(layers: Mapping[str, nn.Module], make_tap: Callable[[str], object]) -> Iterator[None]:
    """Watch layers by a tap each, inside the ``with`` block.

    Raises:
        ConfigError: a layer is being watched already.
    """
    for name, module in layers.items():
        if module.tap is not None:
            raise ConfigError(
                f"the attention of layer {name!r} is being recorded already",
                expected="one recording, or one request for relevance, at a time",
                remedy="Leave the outer record_attention block first",
            )
    try:
        for name, module in layers.items():
            module.tap = make_tap(name)  # type: ignore[assignment]
        yield
    finally:
        for module in layers.values():
            module.tap = None  # type: ignore[assignment]


def has_attention(model: nn.Module) -> bool:
    """Return whether a model has layers whose maps can be recorded."""
    return any(hasattr(module, "tap") for module in model.modules())


def tapped_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that can be recorded, by name in the bare model.

    Raises:
        ConfigError: there is none.
    """
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel)
    layers = {}
    for name, module in model.named_modules():
        if hasattr(module, "tap"):
            parts = [part for part in name.split(".") if part != "_orig_mod"]  # torch.compile's wrapper
            layers[".".join(parts[1:] if wrapped else parts)] = module
    if not layers:
        raise ConfigError(
            f"attention of a {type(model).__name__} was to be recorded",
            expected="a model of this library with attention layers",
            remedy="Choose another model; this one mixes its tokens or pixels without attention",
        )
    return layers


def uncompiled() -> AbstractContextManager[object]:
    """Run compiled code eagerly; a graph could not append to a list."""
    # Without a loaded compiler nothing is compiled; loading it takes seconds.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return _EAGER.on()


def exact_weights(
    query: Tensor, key: Tensor, *, bias: Tensor | None, may_attend: Tensor | None, scale: float | None
) -> Tensor:
    """Return the attention weights in float32 despite autocast, like the fused kernel's accumulation."""
    with torch.autocast(query.device.type, enabled=False):
        bias = None if bias is None else bias.float()
        return attention_weights(query.float(), key.float(), bias=bias, may_attend=may_attend, scale=scale)


class _Recorder:
    """The tap of one layer: append its map, or what is kept of it, to a list."""

    def __init__(
        self,
        maps: list[AttentionMap],
        layer: str,
        rows: list[int] | None,
        keep: Callable[[AttentionMap], AttentionMap | None] | None,
    ) -> None:
        self.maps, self.layer, self.rows, self.keep = maps, layer, rows, keep

    @torch.no_grad()
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        bias: Tensor | None,
        may_attend: Tensor | None,
        scale: float | None,
        kind: str,
        grids: TokenGrids | None,
    ) -> None:
        windows = None if grids is None else grids.windows
        rows = self._known_rows(query.shape[-2] if windows is None else _num_patches(grids))
        if windows is not None and rows is not None:
            query, key, bias, may_attend = rows_of_windows(rows, windows, query, key, bias, may_attend)
        elif rows is not None:
            query, bias, may_attend = query[..., rows, :], _at(rows, bias), _at(rows, may_attend)
        weights = exact_weights(query, key, bias=bias, may_attend=may_attend, scale=scale)
        if windows is not None:
            weights = stitch_windows(weights, windows, _num_patches(grids), rows)
        self._add(weights, kind, grids)

    @torch.no_grad()
    def take_weights(self, weights: Tensor, *, kind: str, grids: TokenGrids | None) -> None:
        rows = self._known_rows(weights.shape[-2])
        self._add(weights.float() if rows is None else weights[..., rows, :].float(), kind, grids)

    def take_result(self, value: Tensor, result: Tensor) -> None:
        """No-op: maps are of the weights alone."""

    def _add(self, weights: Tensor, kind: str, grids: TokenGrids | None) -> None:
        grid = None if grids is None else grids.keys
        num_prefix = 0 if grid is None else weights.shape[-1] - grid[0] * grid[1]
        query_grid = None if grids is None else grids.queries
        recorded = AttentionMap(self.layer, weights.detach(), kind, grid, num_prefix, query_grid)
        kept = recorded if self.keep is None else self.keep(recorded)
        if kept is not None:
            self.maps.append(kept)

    def _known_rows(self, num_queries: int) -> list[int] | None:
        """Return the recorded queries, counted from the first, None for all of them."""
        if self.rows is None:
            return None
        beyond = [row for row in self.rows if not -num_queries <= row < num_queries]
        if beyond:
            raise ConfigError(
                f"queries {beyond} were to be recorded in layer {self.layer!r}",
                expected=f"indices below {num_queries}, the number of its query tokens",
                remedy="Give the index of a token; the class token, where there is one, is 0",
            )
        return [row % num_queries for row in self.rows]


def _num_patches(grids: TokenGrids | None) -> int:
    assert grids is not None
    assert grids.queries is not None
    return grids.queries[0] * grids.queries[1]


def _at(rows: list[int], tensor: Tensor | None) -> Tensor | None:
    """Select rows of a bias or mask, unless one row is broadcast."""
    return tensor if tensor is None or tensor.shape[-2] == 1 else tensor[..., rows, :]


def _choose(
    known: dict[str, nn.Module], layers: str | int | Sequence[str | int] | None
) -> dict[str, nn.Module]:
    if layers is None:
        return known
    names = list(known)
    chosen: set[str] = set()
    for choice in [layers] if isinstance(layers, str | int) else layers:
        if isinstance(choice, int):
            matching = [names[choice]] if -len(names) <= choice < len(names) else []
        else:
            matching = [name for name in names if choice in name]
        if not matching:
            raise ConfigError(
                f"no attention layer matches {choice!r}",
                expected=f"a part of a layer's name, or an index below {len(names)}",
                remedy=did_you_mean(str(choice), names),
            )
        chosen.update(matching)
    return {name: module for name, module in known.items() if name in chosen}


PatchIndices = Int[Tensor, "windows tokens"]


def stitch_windows(
    weights: Float[Tensor, "_ heads _ keys"],
    windows: tuple[PatchIndices, PatchIndices],
    num_patches: int,
    rows: list[int] | None = None,
) -> Float[Tensor, "batch heads _ patches"]:
    """Return each patch's weights over all patches of the image, zero outside its window.

    Args:
        weights: of all windows of all images, or, with ``rows``, as from ``rows_of_windows``: one window with
            one query per wanted row and image.
        windows: the patch of each window's queries and keys, -1 for padding.
        num_patches: patches of the image.
        rows: the patches of these weights; None for all of them.
    """
    query_patches, key_patches = windows
    num_windows, heads = len(query_patches), weights.shape[1]
    if rows is None:
        batch = len(weights) // num_windows
        weights = weights.reshape(batch, num_windows, *weights.shape[1:])  # b w h q k
        of_window, of_query = torch.nonzero(query_patches >= 0, as_tuple=True)
        picked = weights[:, of_window, :, of_query]  # separated advanced indices come first
        targets = query_patches[of_window, of_query]
    else:
        of_window = _window_of_rows(rows, query_patches)[0]
        batch = len(weights) // len(rows)
        picked = weights.reshape(batch, len(rows), heads, -1).movedim(1, 0)  # rows b h k
        targets = torch.arange(len(rows), device=weights.device)
    keys = key_patches[of_window]  # rows k
    # An extra patch takes the zero weights of padding keys. A whole map is large, so it is made once.
    assert rows is not None or len(targets) == num_patches, "each patch asks in one window"
    order = targets.argsort()
    positions = keys.where(keys >= 0, num_patches)[order][:, None, None, :]
    stitched = weights.new_zeros(len(order), batch, heads, num_patches + 1)
    stitched.scatter_add_(-1, positions.expand_as(picked), picked[order])
    return stitched[..., :num_patches].permute(1, 2, 0, 3)  # b h rows patches


def rows_of_windows(
    rows: list[int],
    windows: tuple[PatchIndices, PatchIndices],
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    may_attend: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Select one query and its window's keys for each wanted patch.

    Windows are in the batch dimension, image by image, and so are the selected rows.

    Args:
        rows: wanted patches of the grid.
        windows: the patch of each window's queries and keys, -1 for padding.
        query: queries of all windows of all images.
        key: their keys.
        bias: added to the scores; its first axis is 1, the windows of one image, or those of all.
        may_attend: attention mask; its first axis likewise.
    """
    of_window, of_query = _window_of_rows(rows, windows[0])
    num_windows = len(windows[0])
    batch = len(query) // num_windows

    def pick(tensor: Tensor, *, with_query: bool) -> Tensor:
        if len(tensor) == 1:
            chosen = tensor.expand(batch * len(rows), *tensor.shape[1:])
        else:
            images = tensor.reshape(-1, num_windows, *tensor.shape[1:])[:, of_window]  # b or 1, rows, ...
            chosen = images.expand(batch, *images.shape[1:]).flatten(0, 1)
        if not with_query or chosen.shape[-2] == 1:
            return chosen
        index = of_query.repeat(batch)[:, None, None, None].expand(-1, chosen.shape[1], 1, chosen.shape[-1])
        return chosen.gather(-2, index)  # b*rows h 1 k

    return (
        pick(query, with_query=True),
        pick(key, with_query=False),
        None if bias is None else pick(bias, with_query=True),
        None if may_attend is None else pick(may_attend, with_query=True),
    )


def _window_of_rows(rows: list[int], query_patches: PatchIndices) -> tuple[Tensor, Tensor]:
    """Return the window of each wanted patch, and its index inside the window."""
    flat = torch.full((int(query_patches.max()) + 1,), -1, device=query_patches.device)
    position = torch.arange(query_patches.numel(), device=query_patches.device)
    real = query_patches.flatten() >= 0
    flat[query_patches.flatten()[real]] = position[real]
    at = flat[torch.tensor(rows, device=flat.device)]
    return at // query_patches.shape[1], at % query_patches.shape[1]
