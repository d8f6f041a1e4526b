"""Attention maps between queries and keys of any kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.interpret.draw import DrawnBox, Limits, shared_limits, strength, times_even
from vitrail.interpret.heads import LayerHeads
from vitrail.interpret.record import AttentionMap
from vitrail.interpret.rollout import Reader, read_queries

READER_NAMES: dict[Reader, str] = {"class": "class token", "mean": "mean over patches"}
OCCLUSION, LOST = "occlusion", "probability lost"
LEAST_LOST = 0.1  # is bright at least, so that noise stays dark
ROLLOUT_TITLE = "all layers combined (rollout)"
CONTAINERS = ("blocks", "layers", "model", "stages")
LAST_PARTS = {
    "mixer": "attention",
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "rollout": ROLLOUT_TITLE,
}


@dataclass(frozen=True)
class Grid:
    """Patches of the picture; every layer has its own rows and columns."""

    kind: ClassVar[str] = "grid"


@dataclass(frozen=True)
class Tokens:
    """A row of words or subwords."""

    texts: tuple[str, ...]
    kind: ClassVar[str] = "tokens"


@dataclass(frozen=True)
class Boxes:
    """Detections, best first."""

    texts: tuple[str, ...]
    """Class and score of each; a page can write any name, unlike a picture."""
    drawn: tuple[DrawnBox, ...]
    """With corners relative to the picture."""
    kind: ClassVar[str] = "boxes"


Side = Grid | Tokens | Boxes
Query = int | tuple[float, float]
"""Index of a token or box, or a point of the picture relative to its height and width."""


class Heat(NamedTuple):
    """A map over a picture, as it is drawn."""

    values: Float[Tensor, "rows columns"]
    """Multiples of what even attention or relevance would be, or the share of ``LOST`` without each patch."""
    title: str
    """Which layer and head, or which method and class."""
    noun: str = "attention"
    """What the values are of: attention, relevance or ``LOST``."""

    @classmethod
    def of(cls, values: Float[Tensor, "rows columns"], title: str, *, is_masked: bool = False) -> Heat:
        """Return attention as it is drawn; see ``times_even``."""
        return cls(times_even(values.flatten(), is_masked=is_masked).view_as(values), title)

    @property
    def largest(self) -> float:
        return float(self.values.max())

    @property
    def limits(self) -> Limits:
        """Of the colours of this map alone."""
        return (0.0, max(LEAST_LOST, self.largest)) if self.noun == LOST else shared_limits([self.values])

    @property
    def said(self) -> str:
        """The title, and how far from even it is, or how much is lost."""
        if self.noun != LOST:
            return f"{self.title}, {strength(self.largest, self.noun)}"
        most = f"up to {self.largest:.0%} of the {LOST}"
        if self.largest < LEAST_LOST:
            grid = " x ".join(map(str, self.values.shape))
            most = f"no one of {grid} patches matters alone (up to {self.largest:.1%} of the {LOST})"
        return f"{self.title}, {most}"


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Layers with the same kinds of queries and keys, first to last, batch size one, on the CPU."""

    name: str
    """Short name, such as ``attention``, ``decoder`` or ``cross``."""
    title: str
    """Title for the user."""
    layers: tuple[AttentionMap, ...]
    queries: Side
    keys: Side
    joined: tuple[AttentionMap, ...] = ()
    """Means over several layers; shown after the layers, without an index."""
    first: int = -1
    """Index, among layers and means, of the map shown first."""
    first_head: int | None = None
    """Index of its head shown first; None for the mean."""
    reader: Reader | None = None
    """Which of a grid of queries the model reads, if one stands for all."""
    note: str = ""
    """Remark beside the maps; plain text."""
    steps: tuple[int, ...] = ()
    """Step of generation that ends each query, if they were generated one after the other."""

    @property
    def shown(self) -> tuple[AttentionMap, ...]:
        """Layers, then the means over them."""
        return self.layers + self.joined

    def place(self, layer: int | None) -> int:
        """Return the index among ``shown`` of a layer, all its levels together; None is the first shown."""
        if layer is None:
            return self.first % len(self.shown)
        whole = [place for place, each in enumerate(self.layers) if ", " not in each.layer]
        return whole[checked_index("layer", layer, len(whole), first=1)]

    def pick(self, layer: int | None) -> AttentionMap:
        return self.shown[self.place(layer)]

    def head_index(self, layer: int | None, head: int | None) -> int | None:
        """Return the index of a layer's head; None is the mean over heads, the only one of several layers."""
        if head is None:
            return None
        recorded = self.pick(layer)
        if any(recorded is each for each in self.joined):
            raise ConfigError(
                f"head {head} of all layers together was asked for",
                expected="a head of one layer",
                remedy="Choose the layer as well, with --layer",
            )
        title = layer_titles(self.shown)[self.place(layer)]
        return checked_index("head", head, recorded.weights.shape[1], first=1, of=f" in {title}")

    def showing(self, layer: int | None, head: int | None) -> Maps:
        """Return the same maps with another layer or head first; errors as in ``attention``."""
        return replace(self, first=self.place(layer), first_head=self.head_index(layer, head))

    def reader_of(self, recorded: AttentionMap) -> Reader:
        """Return the readout of a layer; without a class token it is the mean over patches."""
        return "class" if self.reader == "class" and num_query_prefix(recorded) else "mean"

    def read(
        self, weights: Float[Tensor, "*leading queries keys"], recorded: AttentionMap
    ) -> Float[Tensor, "*leading patches"]:
        """Return the row that the model reads of a layer, without prefix tokens."""
        rows = read_queries(weights, self.reader_of(recorded), num_query_prefix(recorded))
        return rows[..., recorded.num_prefix :]

    def title_of(self, layer: int | None = None, head: int | None = None) -> str:
        """Name a layer and its head, or the mean over heads."""
        title, index = layer_titles(self.shown)[self.place(layer)], self.head_index(layer, head)
        of_head = "mean over heads" if index is None else f"head {index + 1}"
        return f"{title}, {of_head}" if self.pick(layer).weights.shape[1] > 1 else title

    def between_sides(self, recorded: AttentionMap) -> Float[Tensor, "heads queries keys"]:
        """Return a layer's weights without prefix tokens; of a token mixer, magnitudes scaled to 0..1."""
        weights = recorded.weights[0]
        if isinstance(self.keys, Grid):
            return weights[:, num_query_prefix(recorded) :, recorded.num_prefix :]
        if recorded.kind != "mixing":
            return weights
        sizes = weights.abs()
        return sizes / sizes.amax(dim=-1, keepdim=True).clamp(min=1e-12)

    def attention(
        self, query: Query | None = None, *, layer: int | None = None, head: int | None = None
    ) -> Tensor:
        """Return what a query attends to: ``rows columns`` over a picture, or one weight per token.

        Args:
            query: index of a token or box, or a point of the picture relative to its height and width. None
                is the row that the model reads of patches, and all rows of tokens.
            layer: counted from 1 as in the titles, negative from the end; None means the layer shown first.
            head: counted from 1, negative from the end; None is the mean.

        Raises:
            ConfigError: there is no such query, layer or head.
        """
        recorded = self.pick(layer)
        weights, index = recorded.weights, self.head_index(layer, head)
        row = None if query is None else self._row_of(query, recorded)
        if row is not None:
            weights = weights[:, :, row : row + 1]
        joined = weights[0].float().mean(dim=0) if index is None else weights[0, index]  # queries keys
        if row is not None:
            values = joined[0, recorded.num_prefix :]
        elif self.reader is not None:
            values = self.read(joined, recorded)
        else:
            return joined[:, recorded.num_prefix :]
        return values if recorded.grid is None else values.unflatten(-1, recorded.grid)

    def heat(self, query: Query | None = None, *, layer: int | None = None, head: int | None = None) -> Heat:
        """Return ``attention`` over a picture as it is drawn."""
        values, is_masked = self.attention(query, layer=layer, head=head), self.pick(layer).kind == "self"
        return Heat.of(values, self.title_of(layer, head), is_masked=is_masked)

    def _row_of(self, query: Query, recorded: AttentionMap) -> int:
        if not isinstance(query, tuple):
            noun = {"boxes": "box", "tokens": "word", "grid": "patch"}[self.queries.kind]
            prefix = num_query_prefix(recorded)
            return prefix + checked_index(noun, query, recorded.weights.shape[2] - prefix)
        if not all(0 <= share <= 1 for share in query) or recorded.query_grid is None:
            raise ConfigError(
                f"the point {query} lies outside of the image",
                expected="shares of the image's height and width, 0 to 1",
                remedy="Divide a position in pixels by the height and the width",
            )
        rows, columns = recorded.query_grid
        row, column = min(int(query[0] * rows), rows - 1), min(int(query[1] * columns), columns - 1)
        return num_query_prefix(recorded) + row * columns + column


def merge_words(
    recorded: AttentionMap, queries: Sequence[Sequence[int]], keys: Sequence[Sequence[int]] | None = None
) -> AttentionMap:
    """Merge a map of tokens to one of words: mean over the tokens that ask, sum over those that are read.

    The rows of words sum to one as those of tokens do.

    Args:
        queries: the rows of each word.
        keys: the columns of each word; None keeps the columns.
    """
    weights = recorded.weights
    if keys is not None:
        weights = torch.stack([weights[..., list(tokens)].sum(dim=-1) for tokens in keys], dim=-1)
    rows = [weights[:, :, list(tokens)].mean(dim=2) for tokens in queries]
    return recorded._replace(weights=torch.stack(rows, dim=2))


def num_query_prefix(recorded: AttentionMap) -> int:
    """Count the queries before those of patches."""
    if recorded.query_grid is None:
        return 0
    return recorded.weights.shape[-2] - recorded.query_grid[0] * recorded.query_grid[1]


def checked_index(what: str, number: int, count: int, *, first: int = 0, of: str = "") -> int:
    """Return the index of what is counted from ``first``, or back from -1; ConfigError if there is none."""
    index = number - first if number >= 0 else number + count
    if 0 <= index < count:
        return index
    raise ConfigError(
        f"there is no {what} {number}{of}",
        expected=f"{first}, the first, to {count - 1 + first}, or -1, the last",
        remedy="Choose another one",
    )


def layer_titles(maps: Sequence[AttentionMap | LayerHeads]) -> list[str]:
    """Return layer titles; layers of one kind are numbered from 1, as ``--layer`` and ``layer=`` count them.

    >>> def recorded(*names):
    ...     return [AttentionMap(name, None, "self", None, 0) for name in names]
    >>> layer_titles(recorded("blocks.0.mixer", "rollout"))
    ['layer 1, attention', 'all layers combined (rollout)']
    >>> layer_titles(recorded("stages.0.blocks.0.mixer", "stages.1.blocks.0.mixer"))
    ['layer 1 (stage 1), attention', 'layer 2 (stage 2), attention']
    >>> layer_titles(recorded("decoder.0.cross_attention, level 0", "decoder.0.cross_attention"))
    ['decoder layer 1, cross-attention, level 0', 'decoder layer 1, cross-attention, all levels']
    """
    levelled = {each.layer.partition(", ")[0] for each in maps if ", " in each.layer}
    numbers: dict[str, dict[str, int]] = {}
    titles = []
    for each in maps:
        name, _, level = each.layer.partition(", ")
        *parts, last = name.split(".")
        words = [part for part in parts if not part.isdigit() and part not in CONTAINERS]
        if any(map(str.isdigit, parts)):
            of_kind = numbers.setdefault(re.sub(r"\d+", "", name), {})
            number = f"layer {of_kind.setdefault(name, len(of_kind) + 1)}"
            stage = f" (stage {int(parts[1]) + 1})" if parts[0] == "stages" else ""
            words = [" ".join([*words, number]) + stage]
        is_mixing = each.kind == "mixing" and last in LAST_PARTS
        words.append("mixing" if is_mixing else LAST_PARTS.get(last, last.replace("_", " ")))
        read = level or ("all levels" if name in levelled else "")
        titles.append(", ".join([*words, read] if read else words))
    return titles
