"""Class-specific relevance: gradient-weighted attention, propagated through any grids to the patches.

A vector of relevance, one value for each token, is followed from what the head reads back to the first layer,
so that no map of all tokens is ever made: windows stay windows, and each layer has its own grids. In a CLIP,
a text takes the place of a class.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import ConfigError
from vitrail.interpret.grids import spread_patches
from vitrail.interpret.record import exact_weights, tapped, tapped_layers, uncompiled
from vitrail.nn.tap import Scored, TokenGrids


def class_relevance(
    model: nn.Module, images: Float[Tensor, "batch channels height width"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, "batch rows columns"]:
    """Return the relevance of each patch of the first layer's grid for a class.

    Each layer follows the paper, ``R = R + A' R`` with ``A' = mean over heads of max(0, gradient * A)``,
    restricted to the rows that the head reads. For a class token shared by all layers, the result is the
    paper's.

    Departs from the paper, which has one set of tokens and a class token:

    - Where the head reads the mean over N patches, all of them start alike, and what they start with is taken
      away in the end, as what a class token keeps for itself is. In layers without a token that the head
      reads, each patch is a reader of its own; the gradient of the mean reaches it with 1/N, and is
      multiplied by N. (Starting with the share that each patch adds to the score was better for one trained
      model and worse for three: a patch of the background may hold what attention brought there.)
    - Inside windows the rule is applied window by window; what completes a window has no relevance.
    - Where a layer's grid is coarser than that of the layer before it, because patches were merged, queries
      pooled or keys reduced, a patch's relevance is shared equally by the finer patches at its position.
    - A class token that joins in a later layer keeps nothing for the earlier ones.

    Paper: Chefer, Gur and Wolf 2021, Generic Attention-model Explainability, equations 5 and 6.

    Args:
        model: an image model in evaluation mode whose layers all attend.
        images: normalised, on the model's device.

    Returns:
        : Values from 0, float32, scaled per image.

    Raises:
        ConfigError: a layer mixes its tokens without attention, or attends to something else than the image.
    """
    with torch.inference_mode(False), torch.enable_grad():
        # A copy, as the images may be from inference mode; gradients of a frozen model start at them.
        given = images.detach().clone().requires_grad_()
        layers: list[_Attention] = []
        taps = tapped(tapped_layers(model), lambda name: _Tap(layers, name, model))
        with taps, _watch_last_tokens(model) as read, uncompiled():
            scores = model(given).gather(1, labels.clone()[:, None])
        ran = {layer.name for layer in layers}
        if silent := [name for name in tapped_layers(model) if name not in ran]:
            raise ConfigError(
                f"layer {silent[0]!r} of this model mixes its tokens without attention",
                expected="a model whose layers all attend, such as a ViT, Swin, PVT or MViT",
                remedy="Choose the method gradient_input or occlusion, which suit every model",
            )
        tokens = read[-1]
        gradients = torch.autograd.grad(scores.sum(), [tokens, *(layer.result for layer in layers)])
    last = layers[-1]
    relevance = start_relevance(_as_tokens(gradients[0]))
    # If only the class token is normalised, the other tokens, which the head does not read, start with zero.
    relevance = F.pad(relevance, (0, last.num_prefix + math.prod(last.query_grid) - relevance.shape[1]))
    reads_prefix = bool(relevance[:, : last.num_prefix].any())
    own = relevance  # of the head's input, before it draws from anything
    for index in reversed(range(len(layers))):
        layer = layers[index]
        edges = weigh_edges(layer.weights, layer.value, gradients[index + 1])
        is_read_by_one = reads_prefix and layer.num_prefix > 0
        pulled = _pull(edges, relevance, layer) * (1 if is_read_by_one else math.prod(layer.query_grid))
        before = layers[index - 1] if index else layer
        # On the previous layer's tokens: what stays with the queries, and what they draw from the keys.
        target = (before.query_grid, before.num_prefix)
        stays = _carry(relevance, layer.query_grid, *target)
        relevance = stays + _carry(pulled, layer.key_grid, *target)
        own = _carry(own, layer.query_grid, *target)
    grid = layers[0].query_grid
    return (relevance - own).clamp(min=0)[:, -math.prod(grid) :].unflatten(1, grid)


def weigh_edges(
    weights: Float[Tensor, "batch heads queries keys"],
    value: Float[Tensor, "batch heads keys dim"],
    gradient: Float[Tensor, "batch heads queries dim"],
) -> Float[Tensor, "batch queries keys"]:
    """Return gradient-weighted attention: the mean over heads of max(0, gradient * A).

    The gradient of a weight is the gradient of the query's output times the key's value, so that fused
    kernels are supported, too.

    Args:
        weights: A.
        value: the values that A averages.
        gradient: of the class score with respect to each output.

    Paper: Chefer, Gur and Wolf 2021, equation 5.
    """
    of_weights = gradient.float() @ value.detach().float().transpose(-2, -1)  # b h q k
    return (of_weights * weights).clamp(min=0).mean(dim=1)


def start_relevance(gradient: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens"]:
    """Return equal relevance of the last tokens that the head reads, where the gradient is not zero."""
    is_read = gradient.ne(0).any(dim=-1).float()
    return is_read / is_read.sum(dim=1, keepdim=True).clamp(min=1)


class _Attention(NamedTuple):
    """What one layer of attention between patches did in one forward pass."""

    name: str
    weights: Float[Tensor, "batch_windows heads queries keys"]
    value: Float[Tensor, "batch_windows heads keys dim"]
    result: Float[Tensor, "batch_windows heads queries dim"]
    query_grid: tuple[int, int]
    key_grid: tuple[int, int]
    windows: tuple[Tensor, Tensor] | None
    num_prefix: int
    """Tokens before the patches; windows have none."""


def _pull(edges: Tensor, relevance: Tensor, layer: _Attention) -> Float[Tensor, "batch keys"]:
    if layer.windows is None:
        return torch.einsum("bq,bqk->bk", relevance, edges)
    query_patches, key_patches = layer.windows
    num_keys = math.prod(layer.key_grid)
    asked = F.pad(relevance, (0, 1))[:, query_patches]  # -1, of padding, is the zero at the end
    pulled = torch.einsum("bwq,bwqk->bwk", asked, edges.unflatten(0, (len(relevance), -1)))
    targets = key_patches.where(key_patches >= 0, num_keys).flatten()
    found = relevance.new_zeros(len(relevance), num_keys + 1).index_add_(1, targets, pulled.flatten(1))
    return found[:, :num_keys]


def _carry(values: Tensor, grid: tuple[int, int], target: tuple[int, int], num_prefix: int) -> Tensor:
    """Bring token values to another grid; prefix tokens are kept as far as the target has them."""
    num_patches = math.prod(grid)
    patches = spread_patches(values[:, -num_patches:].unflatten(1, grid), target).flatten(1)
    own_prefix = values.shape[1] - num_patches
    prefix = values[:, :own_prefix] if own_prefix == num_prefix else values.new_zeros(len(values), num_prefix)
    return torch.cat((prefix, patches), dim=1)


class _Tap:
    """Records each forward pass's attention inputs and outputs of a layer."""

    def __init__(self, layers: list[_Attention], name: str, model: nn.Module) -> None:
        self.layers, self.name, self.model = layers, name, model
        self.weights: tuple[Tensor, str, TokenGrids | None] | None = None

    @torch.no_grad()
    def __call__(
        self, query: Tensor, key: Tensor, *, kind: str, grids: TokenGrids | None, **scores: Any
    ) -> None:
        self.weights = (exact_weights(query, key, **scores), kind, grids)

    def take_weights(
        self, weights: Tensor, *, kind: str, grids: TokenGrids | None, scored: Scored | None = None
    ) -> None:
        self.weights = (weights.detach().float(), kind, grids)

    def take_result(self, value: Tensor, result: Tensor) -> None:
        assert self.weights is not None, "weights come first"
        weights, kind, grids = self.weights
        if kind == "cross" or grids is None or grids.queries is None:
            raise _not_an_image_model(self.model)
        num_prefix = 0 if grids.windows is not None else result.shape[-2] - math.prod(grids.queries)
        layer = (self.name, weights, value, result, grids.queries, grids.keys, grids.windows, num_prefix)
        self.layers.append(_Attention(*layer))


@contextmanager
def _watch_last_tokens(model: nn.Module) -> Iterator[list[Tensor]]:
    """Record the output of the last norm, of which the head reads some or all."""
    bare = getattr(model, "_orig_mod", model)
    last = getattr(bare, "final", getattr(bare, "norm", None))  # of a pyramid, of other models
    if not isinstance(last, nn.Module):
        raise _not_an_image_model(model)
    read: list[Tensor] = []
    with last.register_forward_hook(lambda module, inputs, output: read.append(output)):
        yield read


def _as_tokens(x: Tensor) -> Float[Tensor, "batch tokens dim"]:
    if x.ndim == 4:
        return x.flatten(2).transpose(1, 2)
    return x[:, None] if x.ndim == 2 else x


def _not_an_image_model(model: nn.Module) -> ConfigError:
    return ConfigError(
        f"relevance was asked of a {type(model).__name__}",
        expected="an image classifier of this library whose tokens attend to each other",
        remedy="Choose a ViT, Swin, PVT or MViT; gradient_input and occlusion suit every classifier",
    )


class _Cosines(nn.Module):
    """A head followed by the scaled cosine with each text."""

    def __init__(self, head: nn.Module, texts: Tensor, scale: float) -> None:
        super().__init__()
        self.head, self.texts, self.scale = head, texts, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (F.normalize(self.head(x).float(), dim=-1) @ self.texts.T)


def text_classifier(model: nn.Module, texts: Float[Tensor, "texts dim"], scale: float = 1.0) -> nn.Module:
    """Return the image tower with texts as classes, sharing its weights, such as for ``class_relevance``.

    Paper: Chefer, Gur and Wolf 2021, section 3, of the image tower alone.

    Args:
        texts: normalised embeddings, on the model's device.
        scale: of the cosines.

    Raises:
        ConfigError: the model has no image tower with a head.
    """
    tower = getattr(model, "image", None)
    head = getattr(tower, "head", None)
    if not isinstance(tower, nn.Module) or not isinstance(head, nn.Module):
        raise ConfigError(
            f"the relevance of a text was asked of a {type(model).__name__}",
            expected="a CLIP of this library",
            remedy="Use vitrail explain for models of images alone",
        )
    classifier = copy.copy(tower)  # the same weights under another head
    classifier._modules = {**tower._modules, "head": _Cosines(head, texts, scale)}
    return classifier
