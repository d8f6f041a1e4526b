"""Why a model said what it said about one image: its attention, and what its classes draw from each place."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError, did_you_mean
from vitrail.interpret import AttentionMap
from vitrail.interpret.draw import contact_sheet, enlarge_picture, overlay
from vitrail.interpret.rollout import Reader, attention_rollout, fuse_heads, read_queries, to_grid
from vitrail.interpret.viewer.explain_page import ExplainedAttention, write_explain_page
from vitrail.tasks.classification.attributions import CLASS_METHODS, Attributions
from vitrail.tasks.classification.explanation_page import lay_out, num_query_prefix

OVERLAY_PX = 384  # shorter side that a small image is enlarged to before anything is laid over it
MAP_METHODS = ("rollout", "attention")  # the same for every class
METHODS = MAP_METHODS + CLASS_METHODS


@dataclass(frozen=True)
class Explanation:
    """What a model says about an image, and what each of its layers and heads attends to."""

    name: str
    """Path or other name of the image."""
    picture: Image.Image
    """The image as the model saw it."""
    scores: tuple[tuple[str, float], ...]
    """The most probable classes with their probabilities, the most probable first."""
    maps: tuple[AttentionMap, ...]
    """Attention of each layer, first to last, of a batch of one; on the processor. Each has its own grids of
    queries and of keys; those of more than 32 rows or columns are joined to coarser ones. Empty where the
    model mixes the places of an image without attention."""
    reader: Reader
    """What the classifier reads: the class token, or the mean over the patches. Layers before the one that
    a class token joins are read as the mean, too."""
    attributions: Attributions | None = None
    """Makes maps for a class; None where the explanation was kept without its model."""

    @property
    def label(self) -> str:
        """Name of the most probable class."""
        return self.scores[0][0]

    @property
    def probability(self) -> float:
        """Probability of the most probable class."""
        return self.scores[0][1]

    @property
    def suits_relevance(self) -> bool:
        """Whether all layers attend, so that ``relevance`` is defined."""
        return bool(self.maps) and all(recorded.kind == "self" for recorded in self.maps)

    @cached_property
    def has_rollout(self) -> bool:
        """Whether all layers attend over one and the same set of tokens, so that rollout is defined."""
        if not self.maps:
            return False
        first = self.maps[0]
        tokens = (first.grid, first.grid, first.num_prefix)
        return all(
            each.kind == "self" and (each.query_grid, each.grid, each.num_prefix) == tokens
            for each in self.maps
        )

    @property
    def default_method(self) -> str:
        """``rollout`` where it is defined, else the last layer's ``attention``; ``occlusion`` without any."""
        if not self.maps:
            return "occlusion"
        return "rollout" if self.has_rollout else "attention"

    def method_for(self, method: str | None, class_name: str | None) -> str:
        """Return the method that was asked for; where a class alone was, one of a class, else the default."""
        if method is not None:
            return method
        if class_name is None:
            return self.default_method
        return "relevance" if self.suits_relevance else "gradient_input"

    @cached_property
    def rollout(self) -> Float[Tensor, "tokens tokens"]:
        """Attention rollout through all layers, prefix tokens first.

        Raises:
            ConfigError: the layers do not attend over one set of tokens.
        """
        return self._roll_out("mean")

    def relevance(
        self,
        method: str | None = None,
        *,
        layer: int = -1,
        head: int | None = None,
        fusion: str = "mean",
        class_name: str | None = None,
    ) -> Float[Tensor, "rows columns"]:
        """Return how much the classifier, or one class, draws from each patch.

        Args:
            method: ``rollout`` through all layers, the ``attention`` of one layer, or of one class:
                ``relevance`` (gradients times attention, all layers), ``gradient_input``, ``occlusion`` or
                ``integrated_gradients``, which suit every model; None means ``method_for`` of the class.
            layer: index of the layer, for ``attention``.
            head: index of the head, for ``attention``; None joins all heads.
            fusion: how heads are joined: mean, max or min.
            class_name: the class, for the methods of one; None means the most probable.

        Raises:
            ConfigError: the method, the layer, the head or the class does not exist, the model does not suit
                the method, or a class was named for a method that knows none.
        """
        method = self.method_for(method, class_name)
        if method in CLASS_METHODS:
            if self.attributions is None:
                raise ConfigError(
                    f"{method} was asked of an explanation that was kept without its model",
                    expected=" or ".join(MAP_METHODS),
                    remedy="Explain the image again with a Predictor",
                )
            return self.attributions.get(method, class_name)
        if class_name is not None:
            raise ConfigError(
                f"{method} was asked for the class {class_name!r}, and is the same for every class",
                expected=" or ".join(CLASS_METHODS),
                remedy="Choose one of these methods, or name no class",
            )
        if method not in MAP_METHODS:
            raise ConfigError(
                f"there is no method {method!r}",
                expected=" or ".join(METHODS),
                remedy=did_you_mean(method, METHODS),
            )
        if not self.maps:
            raise _nothing_to_show(method)
        if method == "rollout":
            weights = self.rollout if fusion == "mean" else self._roll_out(fusion)
            return self.read(weights, self.maps[-1])
        chosen = self._layer(layer)
        heads = chosen.weights.shape[1]
        if head is not None and not -heads <= head < heads:
            raise ConfigError(
                f"layer {chosen.layer} has no head {head}",
                expected=f"an index below {heads}",
                remedy="Choose another head, or none to join all",
            )
        weights = fuse_heads(chosen.weights, fusion)[0] if head is None else chosen.weights[0, head]
        return self.read(weights, chosen)

    def overlay(
        self,
        method: str | None = None,
        *,
        layer: int = -1,
        head: int | None = None,
        fusion: str = "mean",
        class_name: str | None = None,
    ) -> Image.Image:
        """Draw ``relevance``, whose arguments these are, over the image; a small image is enlarged.

        What speaks against a class is dark, as what it does not draw from.
        """
        relevance = self.relevance(method, layer=layer, head=head, fusion=fusion, class_name=class_name)
        if relevance.min() < 0:
            relevance = relevance.clamp(min=0)
        return overlay(enlarge_picture(self.picture, OVERLAY_PX), relevance)

    def sheet(self) -> Image.Image:
        """Draw what the classifier's row of every layer and head attends to, as tiles.

        Raises:
            ConfigError: the model has no attention.
        """
        if not self.maps:
            raise _nothing_to_show("a sheet of layers and heads")
        names = [recorded.layer for recorded in self.maps]
        return contact_sheet([self.read(recorded.weights[0], recorded) for recorded in self.maps], names)

    def save(
        self,
        path: str | Path,
        method: str | None = None,
        *,
        layer: int = -1,
        head: int | None = None,
        class_name: str | None = None,
    ) -> None:
        """Write a picture with the overlay, or for a name that ends in .html the page with everything.

        Args:
            path: a file with the suffix of a picture format, or .html.
            method: what the picture shows, ``default_method`` by default; the page shows attention and
                rollout, too.
            layer: index of the layer that a picture of ``attention`` shows; a page shows all.
            head: index of the head that it shows; None joins all heads.
            class_name: the class, for the methods of one; None means the most probable.

        Raises:
            ConfigError: the suffix is of no known format, the method is unknown, or there is no rollout.
            CheckpointError: the disk is full or not writable; a former file is as it was.
        """
        path = Path(path)
        if path.suffix.lower() in (".html", ".htm"):
            title = f"{self.label} {self.probability:.1%}: {Path(self.name).name}"
            write_explain_page(path, [self.for_page(method, class_name=class_name)], title=title)
            return
        picture_format = Image.registered_extensions().get(path.suffix.lower())
        if picture_format not in Image.SAVE:
            raise ConfigError(
                f"{path} has no suffix of a known format",
                expected="a name that ends in .png, .jpg or .html",
                remedy="Choose .html for the page with every layer and head",
            )
        encoded = io.BytesIO()
        picture = self.overlay(method, layer=layer, head=head, class_name=class_name)
        picture.save(encoded, format=picture_format)
        atomic_write(path, encoded.getvalue())

    def for_page(self, method: str | None = None, *, class_name: str | None = None) -> ExplainedAttention:
        """Return everything that the page of explanations shows.

        Args:
            method: what it shows first; None means ``default_method``.
            class_name: the class, where that is a method of one; None means the most probable.

        Raises:
            ConfigError: as ``relevance``.
        """
        return lay_out(self, self.method_for(method, class_name), class_name)

    def read(
        self, weights: Float[Tensor, "*leading queries keys"], recorded: AttentionMap
    ) -> Float[Tensor, "*leading rows columns"]:
        """Return what the row that the classifier reads attends to, on the grid of the map's keys."""
        assert recorded.grid is not None, "maps of an explanation are over images"
        rows = read_queries(weights, self.reader_of(recorded), num_query_prefix(recorded))
        return to_grid(rows, recorded.grid, recorded.num_prefix)

    def reader_of(self, recorded: AttentionMap) -> Reader:
        """Return whose row of a map stands for the layer; without a class token the mean over patches."""
        return self.reader if num_query_prefix(recorded) else "mean"

    def _layer(self, index: int) -> AttentionMap:
        if not -len(self.maps) <= index < len(self.maps):
            raise ConfigError(
                f"there is no layer {index}",
                expected=f"an index below {len(self.maps)}, the number of layers",
                remedy="Choose another layer, -1 for the last",
            )
        return self.maps[index]

    def _roll_out(self, fusion: str) -> Float[Tensor, "tokens tokens"]:
        if not self.has_rollout:
            raise ConfigError(
                "the layers of this model do not attend over one set of tokens, so there is no rollout",
                expected="the method attention, which shows one layer on its own grid",
                remedy="Choose the method attention, or write an .html page with every layer",
            )
        return attention_rollout([recorded.weights for recorded in self.maps], fusion)[0]


def _nothing_to_show(asked: str) -> ConfigError:
    return ConfigError(
        f"{asked} was asked of a model that mixes the places of an image without attention",
        expected="the method gradient_input, occlusion or integrated_gradients",
        remedy="Choose one of these, or a model with attention such as a ViT, Swin or PVT",
    )
