"""Statistics of attention heads (distance, entropy, similarity), and their ablation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import ConfigError, did_you_mean
from vitrail.interpret.record import AttentionMap, record_attention
from vitrail.nn.attention import Attention

SIMILAR_QUERIES = 16  # per map, evenly spaced, for comparing heads: comparing all pairs is expensive
ROW_TOLERANCE = 1e-3  # of the sum of an attention row, which is one


class LayerHeads(NamedTuple):
    """Statistics of one layer's heads, averaged over samples and queries."""

    layer: str
    kind: str
    """``"self"``, ``"cross"`` or ``"mixing"``, as of its maps."""
    distance_px: tuple[float, ...] | None
    """Mean attention distance of each head in pixels; None unless queries and keys are patches."""
    entropy: tuple[float, ...]
    """Entropy of each head's attention, in nats."""
    most_entropy: float
    """Entropy of uniform attention: the logarithm of the number of keys with any weight."""

    @property
    def entropy_shares(self) -> tuple[float, ...] | None:
        """Entropy relative to its maximum, 0..1; None if there is never more than one key."""
        if self.most_entropy <= 0:
            return None
        return tuple(value / self.most_entropy for value in self.entropy)


class HeadGroup(NamedTuple):
    """Layers that attend over the same tokens, so that their heads are comparable."""

    layers: tuple[str, ...]
    """In order of execution."""
    num_heads: tuple[int, ...]
    """Heads per layer."""
    similarity: Float[Tensor, "heads heads"]
    """``head_overlap`` of each two heads, layer by layer."""


def head_overlap(
    first: Float[Tensor, "queries heads keys"], second: Float[Tensor, "queries others keys"]
) -> Float[Tensor, "heads others"]:
    """Return the attention that two heads give to the same keys, averaged over queries.

    ``1 - |p - q|_1 / 2`` of two attention rows p and q: one minus their total variation distance. It is 1 for
    equal rows, and 0 for disjoint ones.

    Paper: Bhojanapalli et al. 2021 (Leveraging redundancy in attention with Reuse Transformers), which
    compares the heads of different layers by the total variation distance.

    Args:
        first: rows that sum to one.
        second: rows of the same queries.

    Example:
        >>> row = torch.tensor([[[0.5, 0.5, 0.0]]])
        >>> head_overlap(row, torch.tensor([[[0.0, 0.5, 0.5], [0.5, 0.5, 0.0]]])).tolist()
        [[0.5, 1.0]]
    """
    return 1 - torch.cdist(first.float(), second.float(), p=1.0).mean(dim=0) / 2


def attention_distance(
    weights: Float[Tensor, "batch heads queries keys"],
    grid: tuple[int, int],
    num_prefix: int,
    patch_size: tuple[float, float] = (1, 1),
    *,
    query_grid: tuple[int, int] | None = None,
) -> Float[Tensor, "batch heads"]:
    """Return the mean attention distance of each head, from query patch to key patch.

    Paper: Dosovitskiy et al. 2021, appendix D.7 and figure 11.

    Args:
        weights: attention of one layer, all queries recorded.
        grid: rows and columns of patches.
        num_prefix: keys before the patches; left out, and the rest renormalised.
        patch_size: height and width of a key's patch, in the unit of the result.
        query_grid: rows and columns of the queries after their prefix, if different from the keys'.
    """
    query_grid = grid if query_grid is None else query_grid
    num_query_prefix = weights.shape[-2] - query_grid[0] * query_grid[1]
    patches = weights[..., num_query_prefix:, num_prefix:].float()
    patches = patches / patches.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(patches.dtype).tiny)
    extent = (grid[0] * patch_size[0], grid[1] * patch_size[1])
    queries, keys = (_centres(each, extent, weights.device) for each in (query_grid, grid))
    distances = (queries[:, None] - keys[None]).square().sum(dim=-1).sqrt()  # queries keys
    return (patches * distances).sum(dim=-1).mean(dim=-1)


def head_entropy(weights: Float[Tensor, "batch heads queries keys"]) -> Float[Tensor, "batch heads"]:
    """Return the mean entropy of each head in nats: 0 for one key, log(keys) for uniform attention."""
    weights = weights.float()
    return torch.special.entr(weights).sum(dim=-1).mean(dim=-1)


def _centres(
    grid: tuple[int, int], extent: tuple[float, float], device: torch.device
) -> Float[Tensor, "patches 2"]:
    sides = [
        (torch.arange(count, device=device) + 0.5) * (length / count)
        for count, length in zip(grid, extent, strict=True)
    ]
    return torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1).flatten(0, 1)


class HeadMeter:
    """Accumulates head statistics sample by sample, without keeping maps.

    Args:
        over_images_only: skip attention of tokens that are not patches, such as padded captions.
    """

    def __init__(self, *, over_images_only: bool = False) -> None:
        self._over_images_only = over_images_only
        self._sums: dict[str, _Sums] = {}
        self._overlaps: dict[tuple[str, str], tuple[Tensor, int]] = {}
        self._rows: dict[str, tuple[object, Tensor]] = {}
        self._image_size: tuple[int, int] | None = None
        self.num_samples = 0
        """Number of measured samples."""
        self.left_out: dict[str, None] = {}
        """Names of layers whose rows do not sum to one, and thus are not attention."""

    @contextmanager
    def measure(self, model: nn.Module, image_size: tuple[int, int] | None) -> Iterator[None]:
        """Measure the attention of one sample's forward pass inside the ``with`` block.

        Args:
            image_size: height and width in pixels; None without an image.
        """
        self._image_size = image_size
        self._rows.clear()
        with record_attention(model, keep=self._take):
            yield
        self.num_samples += 1
        pairs = combinations_with_replacement(self._rows.items(), 2)
        for (layer, (tokens, rows)), (other, (other_tokens, other_rows)) in pairs:
            if tokens == other_tokens:
                overlap = head_overlap(rows, other_rows).double().cpu()
                for pair, each in {(layer, other): overlap, (other, layer): overlap.T}.items():
                    former, count = self._overlaps.get(pair, (torch.zeros(()), 0))
                    self._overlaps[pair] = (former + each, count + 1)

    def layers(self) -> tuple[LayerHeads, ...]:
        """Return the means of each layer, in order of execution."""
        return tuple(sums.mean(layer) for layer, sums in self._sums.items())

    def groups(self) -> tuple[HeadGroup, ...]:
        """Return the similarities of heads, grouped by layers that attended alike in every sample."""
        groups: list[list[str]] = []
        for layer in self._sums:
            for group in groups:
                if self._overlaps.get((group[0], layer), (None, 0))[1] == self.num_samples:
                    group.append(layer)
                    break
            else:
                if (layer, layer) in self._overlaps:
                    groups.append([layer])
        made = (self._join(group) for group in groups)
        return tuple(group for group in made if len(group.similarity) > 1)

    def _take(self, recorded: AttentionMap) -> None:
        if self._over_images_only and recorded.query_grid is None:
            return
        weights = recorded.weights
        total = weights.sum(dim=-1)
        if weights.min() < 0 or (total - 1).abs().max() > ROW_TOLERANCE:
            self.left_out[recorded.layer] = None
            return
        sums = self._sums.setdefault(recorded.layer, _Sums(recorded.kind))
        sums.count += len(weights)
        sums.entropy = sums.entropy + head_entropy(weights).sum(dim=0).double().cpu()
        seen_keys = (weights > 0).sum(dim=-1).double()
        sums.most_entropy += float(seen_keys.log().mean(dim=(1, 2)).sum())
        if recorded.grid is not None and recorded.query_grid is not None and self._image_size is not None:
            (height, width), (rows, columns) = self._image_size, recorded.grid
            patch_size = (height / rows, width / columns)
            distance = attention_distance(
                weights, recorded.grid, recorded.num_prefix, patch_size, query_grid=recorded.query_grid
            )
            of_heads = distance.sum(dim=0).double().cpu()
            sums.distance = of_heads if sums.distance is None else sums.distance + of_heads
        tokens = (recorded.kind, recorded.grid, recorded.query_grid, tuple(weights.shape[-2:]))
        num_queries = weights.shape[-2]
        chosen = torch.linspace(0, num_queries - 1, min(SIMILAR_QUERIES, num_queries)).round().long()
        spread = weights[0][:, chosen.to(weights.device)].transpose(0, 1).clone()  # queries heads keys
        self._rows.setdefault(recorded.layer, (tokens, spread))

    def _join(self, group: list[str]) -> HeadGroup:
        means = {pair: total / count for pair, (total, count) in self._overlaps.items()}
        blocks = [torch.cat([means[layer, other] for other in group], dim=1) for layer in group]
        return HeadGroup(tuple(group), tuple(map(len, blocks)), torch.cat(blocks).float())


@dataclass
class _Sums:
    kind: str
    count: int = 0
    entropy: Tensor = field(default_factory=lambda: torch.zeros(()))
    most_entropy: float = 0.0
    distance: Tensor | None = None

    def mean(self, layer: str) -> LayerHeads:
        return LayerHeads(
            layer,
            self.kind,
            None if self.distance is None else tuple((self.distance / self.count).tolist()),
            tuple((self.entropy / self.count).tolist()),
            self.most_entropy / self.count,
        )


CLASS_TOKEN = 0


@contextmanager
def silence_heads(
    model: nn.Module, heads: Mapping[str, Sequence[int]], *, queries: Sequence[int] = (CLASS_TOKEN,)
) -> Iterator[None]:
    """Zero the outputs of heads for some tokens, inside the ``with`` block; weights are unchanged.

    Args:
        heads: per layer, by its dotted name.
        queries: the tokens; by default the first, the class token.

    Raises:
        ConfigError: there is no such layer, or it has no such head.

    Paper: Hufe et al. 2025 (Dyslexify), circuit ablation.

    Example:
        >>> import torch
        >>> from vitrail.models import build
        >>> model, images = build("vit_nano").eval(), torch.ones(1, 3, 32, 32)
        >>> with silence_heads(model, {"blocks.1.mixer": [0, 2]}, queries=[5]):
        ...     changed = model(images)
        >>> torch.equal(changed, model(images))
        False
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Attention)}
    with ExitStack() as stack:
        for name, chosen in heads.items():
            if name not in layers:
                raise ConfigError(
                    f"heads of {name!r} were to be silenced",
                    expected="the name of a layer of attention",
                    remedy=did_you_mean(name, layers),
                )
            layer = layers[name]
            if any(not 0 <= head < layer.num_heads for head in chosen):
                raise ConfigError(
                    f"the heads {list(chosen)} of {name!r} were to be silenced",
                    expected=f"numbers from 0 to {layer.num_heads - 1}",
                    remedy="Count the heads of a layer from 0",
                )
            silencer = _silencer(layer, chosen, queries)
            stack.enter_context(layer.projection.register_forward_pre_hook(silencer))
        yield


def _silencer(
    layer: Attention, heads: Sequence[int], queries: Sequence[int]
) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """Return a pre-hook of the output projection, whose input has the heads side by side."""

    def silence(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        parted = inputs[0].unflatten(-1, (layer.num_heads, layer.value_dim)).clone()  # b n h d
        for query in queries:
            parted[:, query, list(heads)] = 0
        return (parted.flatten(-2),)

    return silence
