"""An explanation in any task: the prediction, attention maps, relevance."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError, check_name
from vitrail.interpret.attribution import CLASS_METHODS, Attributions
from vitrail.interpret.draw import WHOLE, Limits, draw_boxes, enlarge_picture, overlay
from vitrail.interpret.record import AttentionMap
from vitrail.interpret.rollout import attention_rollout
from vitrail.interpret.viewer import page, picture
from vitrail.interpret.viewer.maps import LOST, ROLLOUT_TITLE, Boxes, Heat, Maps, Query
from vitrail.report.plots import pixel_figure, to_picture

MAP_METHODS = ("rollout", "attention")  # the same for every class
METHODS = MAP_METHODS + CLASS_METHODS
NO_ROLLOUT = (
    "The layers of this model do not attend over one set of tokens, each has its own grid, so there is no "
    "rollout. Shown first is the last layer, averaged over its heads and, without a class token, its patches."
)
PAGE_HEIGHT_PX = 760  # in a notebook
OVERLAY_PX = 384  # shorter side that a small picture is enlarged to before drawing
VECTORS = (".svg", ".pdf")


class Pick(TypedDict, total=False):
    """Which map is drawn, where there are several; see ``Explanation.relevance``."""

    layer: int | None
    head: int | None
    class_name: str | None


class BeamEntry(NamedTuple):
    """A hypothesis of beam search after one step."""

    text: str
    log_probability: float
    is_finished: bool
    is_chosen: bool
    """Whether the answer begins with it, or is it."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A model's prediction for one input, with the attention of each layer and head.

    Example:
        >>> explanation = Predictor("runs/flowers").explain("rose.jpg")  # doctest: +SKIP
        >>> explanation.save("rose.html")  # doctest: +SKIP
    """

    name: str
    """Path or other name of the input; of a translator the sentence itself."""
    title: str
    """The prediction in words: class and probability, number of boxes, caption or translation."""
    picture: Image.Image | None = None
    """The photograph, or the image as the model saw it."""
    crop: tuple[float, float, float, float] = WHOLE
    """Left, top, right and bottom of what the model saw, as shares of the picture."""
    scores: tuple[tuple[str, float], ...] = ()
    """Classes with probabilities, most probable first."""
    maps: tuple[Maps, ...] = ()
    """Attention maps, most informative first; empty for models without attention."""
    attributions: Attributions | None = None
    """Class-specific maps, computed on request, if the task has them."""
    classes: tuple[str, ...] = ()
    """The classes whose maps a page shows, and first of all is shown; by default the most probable one."""
    first: str = ""
    """The method shown first; by default ``default_method``."""
    beams: tuple[tuple[BeamEntry, ...], ...] = ()
    """The beam after each step of generation, best first; see ``Maps.steps``."""
    answer: Any = None
    """The predictor's own output, such as ``Detections``."""

    @property
    def label(self) -> str:
        return self.scores[0][0]

    @property
    def probability(self) -> float:
        """Probability of the most probable class."""
        return self.scores[0][1]

    @property
    def layers(self) -> tuple[AttentionMap, ...]:
        return self.maps[0].layers if self.maps else ()

    def part(self, name: str | None = None) -> Maps:
        """Return maps by name, the first by default."""
        parts = {each.name: each for each in self.maps}
        if not parts:
            raise ConfigError(
                "the model has no attention to show",
                expected="a model with attention, such as a ViT or a Transformer",
                remedy="Choose another model",
            )
        name = name or self.maps[0].name
        check_name("part", name, parts)
        return parts[name]

    def attention(
        self,
        query: Query | None = None,
        *,
        of: str | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> Tensor:
        """Return ``Maps.attention`` of the maps named ``of``, by default the first."""
        return self.part(of).attention(query, layer=layer, head=head)

    @property
    def reads_patches(self) -> bool:
        """Whether the maps are of patch self-attention, with a prediction for the whole image."""
        return not self.maps or self.maps[0].reader is not None

    @property
    def suits_relevance(self) -> bool:
        """Whether all layers attend, so that ``relevance`` is defined."""
        return bool(self.layers) and all(recorded.kind == "self" for recorded in self.layers)

    @cached_property
    def has_rollout(self) -> bool:
        """Whether all layers attend over the same tokens, so that rollout is defined."""
        if not self.layers or not self.reads_patches:
            return False
        first = self.layers[0]
        tokens = (first.grid, first.grid, first.num_prefix)
        return all(
            each.kind == "self" and (each.query_grid, each.grid, each.num_prefix) == tokens
            for each in self.layers
        )

    @property
    def default_method(self) -> str:
        """``rollout`` if defined, else ``attention``; ``occlusion`` for models without attention."""
        if not self.maps:
            return "occlusion"
        return "rollout" if self.has_rollout else "attention"

    def method_for(self, method: str | None = None, **pick: Unpack[Pick]) -> str:
        """Return the given method; for a class alone a class-specific one, for a layer alone attention."""
        if method is not None:
            return method
        if pick.get("class_name") is not None:
            return "relevance" if self.suits_relevance else "gradient_input"
        return "attention" if has_place(pick) else self.first or self.default_method

    @property
    def enlarged(self) -> Image.Image:
        """The picture, larger if it is small, to draw on."""
        if self.picture is None:
            raise ConfigError(
                "heat over a picture was asked of a text",
                expected="an explanation of an image",
                remedy="Use still() or save(), which draw the alignment",
            )
        return enlarge_picture(self.picture, OVERLAY_PX)

    @cached_property
    def rollout(self) -> Float[Tensor, "tokens tokens"]:
        """Attention rollout through all layers, prefix tokens first."""
        if not self.has_rollout:
            raise ConfigError(
                "the layers of this model do not attend over one set of tokens, so there is no rollout",
                expected="the method attention, which shows one layer on its own grid",
                remedy="Choose the method attention, or write an .html page with every layer",
            )
        return attention_rollout([recorded.weights for recorded in self.layers])[0]

    def relevance(self, method: str | None = None, **pick: Unpack[Pick]) -> Float[Tensor, "rows columns"]:
        """Return the relevance of each patch for the classifier, or for one class.

        Args:
            method: ``rollout`` through all layers, the ``attention`` of one layer, or class-specific:
                ``relevance`` (gradients times attention, all layers), ``gradient_input``, ``occlusion`` or
                ``integrated_gradients``, which suit every model; None means ``method_for`` of the class.
            layer, head: for ``attention``, counted from 1 as in the titles, negative from the end; by default
                the last layer, and the mean over heads. With either, ``attention`` is the default method.
            class_name: for class-specific methods; by default the most probable.

        Raises:
            ConfigError: the method, the layer, the head or the class does not exist, the model does not
                support the method, or a layer, head or class was given for a method without.
        """
        method, class_name = self.method_for(method, **pick), pick.get("class_name")
        check_name("method", method, METHODS)
        if method != "attention" and has_place(pick):
            raise ConfigError(
                f"a layer or a head was named for the method {method}",
                expected="the method attention, which shows one layer",
                remedy="Leave out --method and --class, or --layer and --head",
            )
        if method in CLASS_METHODS:
            if self.attributions is None:
                raise ConfigError(
                    f"{method} was asked of an explanation that was kept without its model",
                    expected=" or ".join(MAP_METHODS),
                    remedy="Explain the image again with a Predictor",
                )
            return self.attributions.get(method, class_name or next(iter(self.classes), None))
        if class_name is not None:
            raise ConfigError(
                f"{method} was asked for the class {class_name!r}, and is the same for every class",
                expected=" or ".join(CLASS_METHODS),
                remedy="Choose one of these methods, or name no class",
            )
        if not self.maps:
            raise _nothing_to_show(method)
        if method == "attention":
            return self.maps[0].attention(layer=pick.get("layer"), head=pick.get("head"))
        last = self.layers[-1]
        assert last.grid is not None
        return self.maps[0].read(self.rollout, last).unflatten(-1, last.grid)

    def showing(self, method: str | None = None, **pick: Unpack[Pick]) -> Explanation:
        """Return the same explanation with another method, class, layer or head first, computed immediately.

        Arguments and errors are those of ``relevance``.
        """
        first, class_name = self.method_for(method, **pick), pick.get("class_name")
        chosen = replace(self, first=first, classes=self.classes if class_name is None else (class_name,))
        if self.reads_patches:
            self.relevance(first, **pick)
        if has_place(pick):
            of_layer = self.part().showing(pick.get("layer"), pick.get("head"))
            chosen = replace(chosen, maps=(of_layer, *self.maps[1:]))
        for each, name in chosen.class_maps:
            self.relevance(each, class_name=name)
        return chosen

    @property
    def class_maps(self) -> list[tuple[str, str]]:
        """Methods and classes of the class-specific maps on a page."""
        if self.attributions is None:
            return []
        methods = ["relevance"] if self.suits_relevance else []
        first = self.first or self.default_method
        methods += ["gradient_input"] + ([first] if first in CLASS_METHODS else [])
        return [(each, name) for name in self.classes or (self.label,) for each in dict.fromkeys(methods)]

    @property
    def parts_on_page(self) -> list[Maps]:
        """Attention shown on a page: rollout as a one-head layer, and all maps."""
        if not self.maps or not self.reads_patches:
            return list(self.maps)
        first, *others = self.maps
        if not self.has_rollout:
            return [replace(first, note=NO_ROLLOUT), *others]
        of_all = self.layers[-1]._replace(layer="rollout", weights=self.rollout[None, None])
        return [replace(first, name="rollout", title=ROLLOUT_TITLE, layers=(of_all,), first=0), *self.maps]

    def heat(self, query: Query | str | None = None, **pick: Unpack[Pick]) -> Heat:
        """Return a map as it is drawn; arguments as in ``overlay``."""
        if not self.reads_patches or isinstance(query, int | tuple):
            row = query if isinstance(query, int | tuple) else 0
            return self.part().heat(row, layer=pick.get("layer"), head=pick.get("head"))
        method = self.method_for(query, **pick)
        values = self.relevance(method, **pick)
        if method == "attention":
            return self.part().heat(layer=pick.get("layer"), head=pick.get("head"))
        if method == "rollout":
            return Heat.of(values, ROLLOUT_TITLE, is_masked=True)
        shown = pick.get("class_name") or [*self.classes, *dict(self.scores), self.title][0]
        title = f"{method.replace('_input', ' times input').replace('_', ' ')}: evidence for {shown}"
        if method == "occlusion":
            return Heat(1 - values.clamp(min=0).neg().exp(), title, LOST)
        return Heat.of(values.clamp(min=0), title)._replace(noun="relevance")

    def overlay(
        self, query: Query | str | None = None, *, limits: Limits | None = None, **pick: Unpack[Pick]
    ) -> Image.Image:
        """Draw a map over the picture; a small picture is enlarged.

        Attention and relevance are drawn in multiples of even ones, occlusion by the probability lost.

        Args:
            query: index of a word or box, or a method of ``relevance``, by default the default one.
            layer, head, class_name: as in ``attention`` or ``relevance``.
            limits: of the colours; by default those of the map.
        """
        enlarged, heat = self.enlarged, self.heat(query, **pick)
        drawn = overlay(enlarged, heat.values, limits=limits or heat.limits, crop=self.crop)
        boxes = self.maps[0].queries if self.maps else None
        if not isinstance(boxes, Boxes) or isinstance(query, tuple):
            return drawn
        box = boxes.drawn[query if isinstance(query, int) else 0]
        return draw_boxes(drawn, [picture.on_picture(box, drawn.size)])

    def sheet(self) -> Image.Image:
        """Draw what every layer and head reads, of boxes and words the first, as tiles on one scale.

        Raises:
            ConfigError: the model has no attention, or reads a text.
        """
        if not self.maps:
            raise _nothing_to_show("a sheet of layers and heads")
        return picture.sheet(self)

    def still(self, method: str | None = None, **pick: Unpack[Pick]) -> Image.Image:
        """Draw the explanation as one picture, with its prediction, layer and scale in words.

        A classifier's is the image with one map, a detector's all boxes and the attention of the best, a
        captioner's one tile per word, a translator's the alignment of every layer.

        Args:
            method: for classifiers, as in ``relevance``.
            layer, head: the only one shown, counted from 1.
        """
        if not self.reads_patches:
            return picture.still(self, pick)
        heat, drawn = self.heat(method, **pick), self.overlay(method, **pick)
        return picture.captioned(drawn, (self.title, heat.said), heat.limits)

    def said(self, method: str | None = None, **pick: Unpack[Pick]) -> str:
        """Return the words on ``still``: the prediction; layer, head and strength, or method and class."""
        shown = self.heat(method, **pick).said if self.reads_patches else picture.said_of(self, pick)
        return f"{self.title}; {shown}"

    def save(self, path: str | Path, method: str | None = None, **pick: Unpack[Pick]) -> None:
        """Write ``still`` as a picture, or for .html the page with everything.

        Args:
            path: with the suffix of a picture format, or .html.
            layer, head: the only one in a picture, and the first on a page, counted from 1.

        Raises:
            ConfigError: the suffix is of an unknown format, or as ``relevance``.
            CheckpointError: the disk is full or not writable; a former file is as it was.
        """
        path = Path(path)
        if page.is_page(path):
            atomic_write(path, page.explanations_html([self.showing(method, **pick)]))
            return
        suffix = path.suffix.lower()
        if suffix in VECTORS and self.picture is None:
            atomic_write(path, picture.alignments(self, pick, suffix))
            return
        picture_format = Image.registered_extensions().get(suffix)
        if suffix not in VECTORS and picture_format not in Image.SAVE:
            raise ConfigError(
                f"{path} has no suffix of a known format",
                expected="a name that ends in .png, .svg, .pdf, .jpg or .html",
                remedy="Choose .html for the page with every layer and head",
            )
        drawn = self.still(method, **pick)
        if suffix in VECTORS:
            atomic_write(path, to_picture(pixel_figure(drawn), suffix))
            return
        encoded = io.BytesIO()
        drawn.save(encoded, format=picture_format)
        atomic_write(path, encoded.getvalue())

    def _repr_html_(self) -> str:
        content = escape(page.explanations_html([self]), quote=True)
        return f'<iframe srcdoc="{content}" width="100%" height="{PAGE_HEIGHT_PX}" frameborder="0"></iframe>'


def has_place(pick: Pick) -> bool:
    """Return whether a layer or a head was picked."""
    return (pick.get("layer"), pick.get("head")) != (None, None)


def _nothing_to_show(asked: str) -> ConfigError:
    return ConfigError(
        f"{asked} was asked of a model that mixes the patches of an image without attention",
        expected="the method gradient_input, occlusion or integrated_gradients",
        remedy="Choose one of these, or a model with attention such as a ViT, Swin or PVT",
    )
