"""Recording of exact attention maps of any model while it runs.

Layers that attend carry a plain attribute ``tap``, None by default. Recording sets it for the time of a
``with`` block, and computes the weights beside the model's own computation, which stays as it is. Windows are
stitched together to the whole image.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import ConfigError, did_you_mean
from vitrail.core.switch import SharedSwitch
from vitrail.nn.attention import attention_weights
from vitrail.nn.tap import Scored, TokenGrids
from vitrail.nn.tokens import Bias, Mask

_KEEP_QKV: ContextVar[bool] = ContextVar("keep_qkv", default=False)
_EAGER = SharedSwitch(lambda: torch.compiler.set_stance("force_eager"))  # of all threads


class AttentionSteps(NamedTuple):
    """What one layer computed: ``Z = softmax(scale S + bias) V`` with ``S = Q K^T``, for each head.

    Float32 copies, detached. Windows are joined to the image. Where only some queries are recorded, Q, S,
    bias, mask and Z have their rows.
    """

    x: Float[Tensor, "batch tokens dim"] | None
    """X, the layer's input, without positions that the layer adds to it; None if another module calls the
    layer's parts."""
    context: Float[Tensor, "batch context_tokens context_dim"] | None
    """What keys and values are projected from, where it is not X; None if that was before the recording."""
    query: Float[Tensor, "batch heads queries dim"] | None = None
    """Q, with positions; None, as K and S, in a layer that does not compare queries with keys."""
    key: Float[Tensor, "batch heads keys dim"] | None = None
    """K, likewise."""
    value: Float[Tensor, "batch heads keys value_dim"] | None = None
    """V; None, as Z, in a layer that does not average values by head."""
    scores: Float[Tensor, "batch heads queries keys"] | None = None
    """S: ``Q K^T``, or the additive scores."""
    scale: float = 1.0
    """Factor of the scores."""
    bias: Bias | None = None
    """Added to the scaled scores, such as relative positions; None without."""
    may_attend: Mask | None = None
    """Mask: False where a query may not attend to a key; None without. Outside of a window it is False."""
    result: Float[Tensor, "batch heads queries value_dim"] | None = None
    """Z, the average of the values, before the projection that joins the heads."""

    @property
    def scaled_scores(self) -> Tensor | None:
        """``scale S``."""
        return None if self.scores is None else self.scores * self.scale

    @property
    def masked_scores(self) -> Tensor | None:
        """``scale S + bias``, -inf where a query may not attend: what the softmax is taken of."""
        scores = self.scaled_scores
        if scores is not None and self.bias is not None:
            scores = scores + self.bias
        if scores is not None and self.may_attend is not None:
            scores = scores.masked_fill(~self.may_attend, -math.inf)
        return scores


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
    steps: AttentionSteps | None = None
    """What the weights were computed from and used for; None unless recorded with ``keep_qkv``."""

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
    keep_qkv: bool = False,
) -> Iterator[list[AttentionMap]]:
    """Record the attention maps of every forward pass inside the ``with`` block.

    The outputs of the model are bit-identical. Code compiled by torch.compile runs eagerly inside the block,
    in every thread, and keeps its graphs.

    Args:
        model: any model of this library, bare, compiled or wrapped for distributed training.
        layers: parts of layer names, or indices among the attention layers (negative from the end); None
            records all.
        queries: indices of the query tokens to record, without a full map. None records all.
        keep: transforms each map immediately, for example by pooling, as the maps of all layers may exceed
            memory; returning None drops a map. By default maps are kept as they are.
        keep_qkv: whether each map has ``steps``: the layer's input, queries, keys, values, scores, mask and
            result. They take several times the memory of the map.

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
    keeps_steps = keep_qkv or _KEEP_QKV.get()
    recorders = {name: _Recorder(maps, name, rows, keep, keep_qkv=keeps_steps) for name in chosen}
    with tapped(chosen, recorders.__getitem__), _inputs_shown(chosen, recorders), uncompiled():
        yield maps


@contextmanager
def keeping_qkv() -> Iterator[None]:
    """Record every map with its ``steps`` inside the ``with`` block, whoever records."""
    former = _KEEP_QKV.set(True)
    try:
        yield
    finally:
        _KEEP_QKV.reset(former)


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


def record_any(
    model: nn.Module,
    layer: int | None = None,
    *,
    keep: Callable[[AttentionMap], AttentionMap | None] | None = None,
) -> AbstractContextManager[list[AttentionMap]]:
    """Record like ``record_attention``; of a model without attention, nothing."""
    return record_attention(model, layer, keep=keep) if has_attention(model) else nullcontext([])


def has_attention(model: nn.Module) -> bool:
    """Return whether a model has layers whose maps can be recorded."""
    return any(hasattr(module, "tap") for module in model.modules())


def tapped_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that can be recorded, by name in the bare model; ``ConfigError`` if there is none."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel)
    layers = {}
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if hasattr(module, "tap"):
            parts = [part for part in name.split(".") if part != "_orig_mod"]  # torch.compile's wrapper
            layers[".".join(parts[1:] if wrapped else parts)] = module
    if not layers:
        raise ConfigError(
            f"attention of a {type(model).__name__} was to be recorded",
            expected="a model of this library with attention layers",
            remedy="Choose another model; this one mixes its tokens or pixels without attention"
            if isinstance(model, nn.Module)
            else "Give a model, as from vitrail.load or vitrail.build",
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
        *,
        keep_qkv: bool,
    ) -> None:
        self.maps, self.layer, self.rows, self.keep, self.keep_qkv = maps, layer, rows, keep, keep_qkv
        self.x: Tensor | None = None
        self.context: Tensor | None = None
        # Of the newest map: its index, where it was kept, its steps, and its windows.
        self.index: int | None = None
        self.steps: AttentionSteps | None = None
        self.patches: PatchIndices | None = None

    def see_input(self, layer: nn.Module, given: tuple[Any, ...], options: Mapping[str, object]) -> None:
        self.x, context = given[0].flatten(1, -2), options.get("context")
        if isinstance(context, Tensor):
            self.context = context

    def see_context(self, projection: nn.Module, given: tuple[Tensor, ...]) -> None:
        self.context = given[0]

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
        if self.keep_qkv:
            scored = _joined_inputs(query, key, bias, may_attend, grids)
            self._begin(scored, query.shape[-1] ** -0.5 if scale is None else scale, grids)
        if grids is not None and grids.windows is not None:
            weights = exact_weights(query, key, bias=bias, may_attend=may_attend, scale=scale)
            weights = _stitch_windows(weights, grids, self._known_rows(_num_patches(grids)))
        else:
            rows = self._known_rows(query.shape[-2])
            if rows is not None:
                query, bias, may_attend = query[..., rows, :], _at(rows, bias), _at(rows, may_attend)
            weights = exact_weights(query, key, bias=bias, may_attend=may_attend, scale=scale)
        self._add(weights, kind, grids)

    @torch.no_grad()
    def take_weights(
        self, weights: Tensor, *, kind: str, grids: TokenGrids | None, scored: Scored | None = None
    ) -> None:
        if self.keep_qkv:
            self._begin(scored, 1.0, grids)
        rows = self._known_rows(weights.shape[-2])
        self._add(weights.float() if rows is None else weights[..., rows, :].float(), kind, grids)

    @torch.no_grad()
    def take_result(self, value: Tensor, result: Tensor) -> None:
        if self.index is None or (newest := self.maps[self.index]).steps is None:
            return
        value, result = (_joined(each, self.patches) for each in (value, result))
        rows = self._known_rows(result.shape[-2])
        steps = newest.steps._replace(value=_copied(value), result=_copied(_at(rows, result)))
        self.maps[self.index] = newest._replace(steps=steps)

    def _begin(self, scored: Scored | None, scale: float, grids: TokenGrids | None) -> None:
        """Start the steps of the next map, as far as they are known before the result."""
        self.patches = None if grids is None or grids.windows is None else grids.windows[0]
        x = self.x
        if x is not None and self.patches is not None:
            of_windows = x.unflatten(1, (len(self.patches), -1)).flatten(0, 1)[:, None]  # windows 1 tokens d
            x = _joined(of_windows, self.patches)[:, 0]
        self.steps = AttentionSteps(_copied(x), _copied(self.context))
        if scored is not None:
            rows = self._known_rows(scored.query.shape[-2])
            self.steps = self.steps._replace(
                query=_copied(_at(rows, scored.query)),
                key=_copied(scored.key),
                scores=_copied(_at(rows, scored.scores)),
                scale=scale,
                bias=_copied(_at(rows, scored.bias)),
                may_attend=_at(rows, scored.may_attend),
            )

    def _add(self, weights: Tensor, kind: str, grids: TokenGrids | None) -> None:
        grid = None if grids is None else grids.keys
        num_prefix = 0 if grid is None else weights.shape[-1] - grid[0] * grid[1]
        query_grid = None if grids is None else grids.queries
        recorded = AttentionMap(self.layer, weights.detach(), kind, grid, num_prefix, query_grid, self.steps)
        kept = recorded if self.keep is None else self.keep(recorded)
        self.index = None if kept is None else len(self.maps)
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


@contextmanager
def _inputs_shown(layers: Mapping[str, nn.Module], recorders: Mapping[str, _Recorder]) -> Iterator[None]:
    """Show the inputs of layers, and those of their projections to keys and values, to recorders of steps."""
    with ExitStack() as hooks:
        for name, layer in layers.items():
            recorder, projection = recorders[name], getattr(layer, "key_value", None)
            if recorder.keep_qkv:
                hooks.enter_context(layer.register_forward_pre_hook(recorder.see_input, with_kwargs=True))
                if isinstance(projection, nn.Module):
                    hooks.enter_context(projection.register_forward_pre_hook(recorder.see_context))
        yield


def _joined_inputs(
    query: Tensor, key: Tensor, bias: Tensor | None, may_attend: Tensor | None, grids: TokenGrids | None
) -> Scored:
    """Return what scores are computed from, and the scores, of the whole image where windows are given."""
    if grids is not None and grids.windows is not None:
        seen = (
            query.new_ones(1, 1, query.shape[-2], key.shape[-2]) if may_attend is None else may_attend.float()
        )
        may_attend = _stitch_windows(seen, grids) > 0
        bias = None if bias is None else _stitch_windows(bias, grids)
        query, key = (_joined(each, of) for each, of in zip((query, key), grids.windows, strict=True))
    with torch.autocast(query.device.type, enabled=False):
        scores = query.float() @ key.float().transpose(-2, -1)
    return Scored(query, key, scores, bias, may_attend)


def _joined(tokens: Tensor, patches: PatchIndices | None) -> Float[Tensor, "batch heads patches dim"]:
    """Put the tokens of windows (windows heads tokens dim) into the order of the image."""
    if patches is None:
        return tokens
    images = tokens.unflatten(0, (-1, len(patches))).transpose(1, 2).flatten(2, 3)  # b h windows*tokens d
    return images[:, :, _positions_in_windows(patches)]


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().to(torch.float32, copy=True)


def _num_patches(grids: TokenGrids) -> int:
    assert grids.queries is not None
    return grids.queries[0] * grids.queries[1]


def _at(rows: list[int] | None, tensor: Tensor | None) -> Tensor | None:
    """Select rows of a bias or mask, unless one row is broadcast."""
    return tensor if rows is None or tensor is None or tensor.shape[-2] == 1 else tensor[..., rows, :]


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


def _stitch_windows(
    weights: Float[Tensor, "_ heads _ keys"], grids: TokenGrids, rows: list[int] | None = None
) -> Float[Tensor, "batch heads _ patches"]:
    """Return each patch's weights over all patches of the image, zero outside its window.

    Args:
        weights: of all windows of all images, or one for all windows.
        rows: the wanted patches; None for all of them.
    """
    assert grids.windows is not None
    query_patches, key_patches = grids.windows
    at, num_patches = _positions_in_windows(query_patches), _num_patches(grids)
    at = at if rows is None else at[rows]
    of_window, of_query = at // query_patches.shape[1], at % query_patches.shape[1]
    if len(weights) == 1:
        weights = weights.expand(len(query_patches), -1, -1, -1)
    images = weights.unflatten(0, (-1, len(query_patches)))  # b w h q k
    picked = images[:, of_window, :, of_query]  # rows b h k: separated advanced indices come first
    # An extra patch takes the zero weights of padding keys. A whole map is large, so it is made once.
    keys = key_patches[of_window]
    positions = keys.where(keys >= 0, num_patches)[:, None, None, :]
    stitched = weights.new_zeros(*picked.shape[:-1], num_patches + 1)
    stitched.scatter_add_(-1, positions.expand_as(picked), picked)
    return stitched[..., :num_patches].permute(1, 2, 0, 3)  # b h rows patches


def _positions_in_windows(patches: PatchIndices) -> Int[Tensor, " patches"]:
    """Return where each patch of the image stands among the tokens of all windows."""
    flat = torch.full((int(patches.max()) + 1,), -1, device=patches.device)
    position = torch.arange(patches.numel(), device=patches.device)
    real = patches.flatten() >= 0
    assert int(real.sum()) == len(flat), "each patch is in one window"
    flat[patches.flatten()[real]] = position[real]
    return flat
