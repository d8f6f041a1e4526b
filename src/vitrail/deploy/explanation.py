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

from vitrail.checkpoint import atomic_write
from vitrail.errors import ConfigError
from vitrail.interpret import AttentionMap, record_attention
from vitrail.interpret.draw import contact_sheet, enlarge_picture, overlay, to_picture
from vitrail.interpret.rollout import Reader, attention_rollout, fuse_heads, read_queries, to_grid
from vitrail.report.explain_page import ExplainedAttention, write_explain_page

OVERLAY_PX = 384  # shorter side that a small image is enlarged to before anything is laid over it
METHODS = ("rollout", "attention")
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
    """Attention of each layer, first to last, of a batch of one; on the processor."""
    reader: Reader
    """What the classifier reads: the class token, or the mean over the patches."""

    @property
    def label(self) -> str:
        """Name of the most probable class."""
        return self.scores[0][0]

    @property
    def probability(self) -> float:
        """Probability of the most probable class."""
        return self.scores[0][1]

    @cached_property
    def rollout(self) -> Float[Tensor, "tokens tokens"]:
        """Attention rollout through all layers, prefix tokens first."""
        return attention_rollout([layer.weights for layer in self.maps])[0]

    def relevance(
        self, method: str = "rollout", *, layer: int = -1, head: int | None = None, fusion: str = "mean"
    ) -> Float[Tensor, "rows columns"]:
        """Return how much the classifier draws from each patch.

        Args:
            method: ``rollout`` through all layers, or the ``attention`` of one layer.
            layer: index of the layer, for ``attention``.
            head: index of the head, for ``attention``; None joins all heads.
            fusion: how heads are joined: mean, max or min.

        Raises:
            ConfigError: the method, the layer or the head does not exist.
        """
        if method == "rollout":
            weights = (
                self.rollout
                if fusion == "mean"
                else attention_rollout([recorded.weights for recorded in self.maps], fusion)[0]
            )
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
        self, method: str = "rollout", *, layer: int = -1, head: int | None = None, fusion: str = "mean"
    ) -> Image.Image:
        """Draw ``relevance``, whose arguments these are, over the image; a small image is enlarged."""
        relevance = self.relevance(method, layer=layer, head=head, fusion=fusion)
        return overlay(enlarge_picture(self.picture, OVERLAY_PX), relevance)

    def sheet(self) -> Image.Image:
        """Draw what the classifier's row of every layer and head attends to, as tiles."""
        names = [recorded.layer for recorded in self.maps]
        return contact_sheet([self._read(recorded.weights[0], recorded) for recorded in self.maps], names)

    def save(self, path: str | Path, method: str = "rollout") -> None:
        """Write a picture with the overlay, or for a name that ends in .html the page with everything.

        Args:
            path: a file with the suffix of a picture format, or .html.
            method: what the picture shows; the page shows both methods.

        Raises:
            ConfigError: the suffix is of no known format, or the method is unknown.
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
        prefix = self.maps[-1].num_prefix
        weights = torch.stack([recorded.weights[0] for recorded in self.maps])  # layers heads tokens tokens
        return ExplainedAttention(
            name=self.name,
            picture=self.picture,
            overlay=self.overlay(),
            scores=self.scores,
            layer_names=[recorded.layer for recorded in self.maps],
            reader_name=READER_NAMES[self.reader],
            read=self._read(weights, self.maps[-1]),
            read_rollout=self.relevance(),
            patches=weights[..., prefix:, prefix:],
            patches_rollout=self.rollout[prefix:, prefix:],
        )

    def _layer(self, index: int) -> AttentionMap:
        if not -len(self.maps) <= index < len(self.maps):
            raise ConfigError(
                f"there is no layer {index}",
                expected=f"an index below {len(self.maps)}, the number of layers",
                remedy="Choose another layer, -1 for the last",
            )
        return self.maps[index]

    def _read(
        self, weights: Float[Tensor, "*leading tokens tokens"], recorded: AttentionMap
    ) -> Float[Tensor, "*leading rows columns"]:
        assert recorded.grid is not None
        rows = read_queries(weights, self.reader, recorded.num_prefix)
        return to_grid(rows, recorded.grid, recorded.num_prefix)


def explain_image(
    model: nn.Module,
    image: Float[Tensor, "1 3 height width"],
    pixels: UInt8[Tensor, "3 height width"],
    *,
    name: str,
    class_names: tuple[str, ...],
    top: int = 5,
) -> Explanation:
    """Classify one image and record the attention of every layer.

    Args:
        model: an image model in evaluation mode.
        image: normalised, on the model's device.
        pixels: the same image, to be shown.
        name: what the image is called.
        class_names: one for each logit.
        top: how many classes are named.

    Raises:
        ConfigError: the model does not attend from patches to patches.
    """
    with torch.inference_mode(), record_attention(model) as maps:
        probabilities = model(image).float().softmax(dim=-1)[0].cpu()
    kept = tuple(recorded._replace(weights=recorded.weights.cpu()) for recorded in maps)
    if not kept or any(recorded.grid is None or recorded.kind != "self" for recorded in kept):
        raise ConfigError(
            f"{type(model).__name__} has no attention from patches to patches in every layer",
            expected="a Vision Transformer",
            remedy="Use record_attention to see the maps that this model has",
        )
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
    # Every image model carries its settings; those without a choice of pooling average.
    return "class" if getattr(getattr(model, "config", None), "pool", "mean") == "class" else "mean"
