"""Why a model said what it said about one image: its attention, ready to be looked at."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from vitrail.durable import atomic_write
from vitrail.errors import ConfigError
from vitrail.interpret import AttentionMap, has_attention, record_attention
from vitrail.interpret.coarse import coarsen
from vitrail.interpret.draw import contact_sheet, enlarge_picture, overlay, to_picture
from vitrail.interpret.rollout import Reader, attention_rollout, fuse_heads, read_queries, to_grid
from vitrail.report.explain_page import ExplainedAttention, ExplainedLayer, write_explain_page

OVERLAY_PX = 384  # shorter side that a small image is enlarged to before anything is laid over it
METHODS = ("rollout", "attention")
LONGEST_GRID = 32  # cells; a finer map would take tens of megabytes for each head
READER_NAMES: dict[Reader, str] = {"class": "class token", "mean": "mean over patches"}


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
    queries and of keys; those of more than 32 rows or columns are joined to coarser ones."""
    reader: Reader
    """What the classifier reads: the class token, or the mean over the patches. Layers before the one that
    a class token joins are read as the mean, too."""

    @property
    def label(self) -> str:
        """Name of the most probable class."""
        return self.scores[0][0]

    @property
    def probability(self) -> float:
        """Probability of the most probable class."""
        return self.scores[0][1]

    @cached_property
    def has_rollout(self) -> bool:
        """Whether all layers attend over one and the same set of tokens, so that rollout is defined."""
        first = self.maps[0]
        tokens = (first.grid, first.grid, first.num_prefix)
        return all(
            each.kind == "self" and (each.query_grid, each.grid, each.num_prefix) == tokens
            for each in self.maps
        )

    @property
    def default_method(self) -> str:
        """``rollout`` where it is defined, otherwise ``attention``, that of the last layer."""
        return "rollout" if self.has_rollout else "attention"

    @cached_property
    def rollout(self) -> Float[Tensor, "tokens tokens"]:
        """Attention rollout through all layers, prefix tokens first.

        Raises:
            ConfigError: the layers do not attend over one set of tokens.
        """
        return self._roll_out("mean")

    def relevance(
        self, method: str | None = None, *, layer: int = -1, head: int | None = None, fusion: str = "mean"
    ) -> Float[Tensor, "rows columns"]:
        """Return how much the classifier draws from each patch.

        Args:
            method: ``rollout`` through all layers, or the ``attention`` of one layer; None means
                ``default_method``.
            layer: index of the layer, for ``attention``.
            head: index of the head, for ``attention``; None joins all heads.
            fusion: how heads are joined: mean, max or min.

        Raises:
            ConfigError: the method, the layer or the head does not exist, or there is no rollout.
        """
        method = self.default_method if method is None else method
        if method == "rollout":
            weights = self.rollout if fusion == "mean" else self._roll_out(fusion)
            return self._read(weights, self.maps[-1])
        if method != "attention":
            raise ConfigError(
                f"there is no method {method!r}", expected=" or ".join(METHODS), remedy="Choose one of these"
            )
        chosen = self._layer(layer)
        heads = chosen.weights.shape[1]
        if head is not None and not -heads <= head < heads:
            raise ConfigError(
                f"layer {chosen.layer} has no head {head}",
                expected=f"an index below {heads}",
                remedy="Choose another head, or none to join all",
            )
        weights = fuse_heads(chosen.weights, fusion)[0] if head is None else chosen.weights[0, head]
        return self._read(weights, chosen)

    def overlay(
        self, method: str | None = None, *, layer: int = -1, head: int | None = None, fusion: str = "mean"
    ) -> Image.Image:
        """Draw ``relevance``, whose arguments these are, over the image; a small image is enlarged."""
        relevance = self.relevance(method, layer=layer, head=head, fusion=fusion)
        return overlay(enlarge_picture(self.picture, OVERLAY_PX), relevance)

    def sheet(self) -> Image.Image:
        """Draw what the classifier's row of every layer and head attends to, as tiles."""
        names = [recorded.layer for recorded in self.maps]
        return contact_sheet([self._read(recorded.weights[0], recorded) for recorded in self.maps], names)

    def save(self, path: str | Path, method: str | None = None) -> None:
        """Write a picture with the overlay, or for a name that ends in .html the page with everything.

        Args:
            path: a file with the suffix of a picture format, or .html.
            method: what the picture shows, ``default_method`` by default; the page shows both methods.

        Raises:
            ConfigError: the suffix is of no known format, the method is unknown, or there is no rollout.
            CheckpointError: the disk is full or not writable; a former file is as it was.
        """
        path = Path(path)
        if path.suffix.lower() in (".html", ".htm"):
            title = f"{self.label} {self.probability:.1%}: {Path(self.name).name}"
            write_explain_page(path, [self.for_page()], title=title)
            return
        picture_format = Image.registered_extensions().get(path.suffix.lower())
        if picture_format not in Image.SAVE:
            raise ConfigError(
                f"{path} has no suffix of a known format",
                expected="a name that ends in .png, .jpg or .html",
                remedy="Choose .html for the page with every layer and head",
            )
        encoded = io.BytesIO()
        self.overlay(method).save(encoded, format=picture_format)
        atomic_write(path, encoded.getvalue())

    def for_page(self) -> ExplainedAttention:
        """Return everything that the page of explanations shows."""
        rollout = None
        if self.has_rollout:
            rollout = self._page_layer(
                self.maps[-1]._replace(layer="rollout", weights=self.rollout[None, None])
            )
        return ExplainedAttention(
            name=self.name,
            picture=self.picture,
            overlay=self.overlay(),
            scores=self.scores,
            layers=[self._page_layer(recorded) for recorded in self.maps],
            rollout=rollout,
        )

    def _page_layer(self, recorded: AttentionMap) -> ExplainedLayer:
        assert recorded.query_grid is not None
        weights = recorded.weights[0]  # heads queries keys
        return ExplainedLayer(
            name=recorded.layer,
            reader_name=READER_NAMES[self._reader_of(recorded)],
            read=self._read(weights, recorded),
            patches=weights[:, num_query_prefix(recorded) :, recorded.num_prefix :],
            query_grid=recorded.query_grid,
        )

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

    def _reader_of(self, recorded: AttentionMap) -> Reader:
        return self.reader if num_query_prefix(recorded) else "mean"

    def _read(
        self, weights: Float[Tensor, "*leading queries keys"], recorded: AttentionMap
    ) -> Float[Tensor, "*leading rows columns"]:
        assert recorded.grid is not None
        rows = read_queries(weights, self._reader_of(recorded), num_query_prefix(recorded))
        return to_grid(rows, recorded.grid, recorded.num_prefix)


def num_query_prefix(recorded: AttentionMap) -> int:
    """Return how many queries stand before those of an image's patches."""
    assert recorded.query_grid is not None
    return recorded.weights.shape[-2] - recorded.query_grid[0] * recorded.query_grid[1]


def explain_image(
    model: nn.Module,
    image: Float[Tensor, "1 3 height width"],
    pixels: UInt8[Tensor, "3 height width"],
    *,
    name: str,
    class_names: tuple[str, ...],
    top: int = 5,
    layer: int | None = None,
) -> Explanation:
    """Classify one image and record the attention of every layer, or of one.

    Args:
        model: an image model in evaluation mode.
        image: normalised, on the model's device.
        pixels: the same image, to be shown.
        name: what the image is called.
        class_names: one for each logit.
        top: how many classes are named.
        layer: index of the only layer that is wanted; None records all.

    Raises:
        ConfigError: the model neither attends from patches to patches nor mixes them by a matrix.
    """
    if not has_attention(model):
        raise _nothing_to_show(model)
    with torch.inference_mode(), record_attention(model, layer) as maps:
        probabilities = model(image).float().softmax(dim=-1)[0].cpu()
    kept = tuple(
        coarsen(recorded._replace(weights=recorded.weights.cpu()), LONGEST_GRID)
        for recorded in maps
        if recorded.grid is not None and recorded.query_grid is not None and recorded.kind != "cross"
    )
    if not kept:
        raise _nothing_to_show(model)
    best = probabilities.topk(min(top, len(class_names)))
    scores = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Explanation(
        name=name,
        picture=to_picture(pixels),
        scores=tuple((class_names[label], probability) for label, probability in scores),
        maps=kept,
        reader=_reader(model),
    )


def _reader(model: nn.Module) -> Reader:
    # A model that has a choice of pooling says so in its settings; the others read the class token they have.
    has_token = getattr(model, "num_prefix", 0) > 0
    pool = getattr(getattr(model, "config", None), "pool", "class" if has_token else "mean")
    return "class" if pool == "class" else "mean"


def _nothing_to_show(model: nn.Module) -> ConfigError:
    name = getattr(getattr(model, "config", None), "family", type(model).__name__)
    return ConfigError(
        f"this model, of the family {name}, mixes the places of an image without attention",
        expected="a model with attention to show, such as a ViT, Swin or PVT",
        remedy="vitrail predict tells its classes; vitrail models lists the others",
    )
