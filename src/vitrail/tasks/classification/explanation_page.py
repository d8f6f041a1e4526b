"""An explanation as the page of explanations shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.interpret import AttentionMap
from vitrail.interpret.rollout import Reader
from vitrail.interpret.viewer.explain_page import ExplainedAttention, ExplainedClass, ExplainedLayer
from vitrail.tasks.classification.attributions import CLASS_METHODS

if TYPE_CHECKING:
    from vitrail.tasks.classification.explanation import Explanation

READER_NAMES: dict[Reader, str] = {"class": "class token", "mean": "mean over patches"}


def lay_out(explanation: Explanation, first: str, class_name: str | None) -> ExplainedAttention:
    """Return everything that the page shows.

    Args:
        explanation: of one image.
        first: the method that is shown first.
        class_name: the class, where that is a method of one; None means the most probable.

    Raises:
        ConfigError: there is no such method or class, or the model does not suit it.
    """
    rollout = None
    if explanation.has_rollout:
        last = explanation.maps[-1]
        of_all = last._replace(layer="rollout", weights=explanation.rollout[None, None])
        rollout = _layer(explanation, of_all)
    of_class = class_name if first in CLASS_METHODS else None
    return ExplainedAttention(
        name=explanation.name,
        picture=explanation.picture,
        overlay=explanation.overlay(first, class_name=class_name),
        scores=explanation.scores,
        layers=[_layer(explanation, recorded) for recorded in explanation.maps],
        rollout=rollout,
        of_class=_of_class(explanation, first, of_class),
        first=first,
    )


def num_query_prefix(recorded: AttentionMap) -> int:
    """Return how many queries stand before those of an image's patches."""
    assert recorded.query_grid is not None, "maps of an explanation are of images"
    return recorded.weights.shape[-2] - recorded.query_grid[0] * recorded.query_grid[1]


def _of_class(explanation: Explanation, first: str, class_name: str | None) -> list[ExplainedClass]:
    """Return the methods of a class that take one pass back, and that which is shown first."""
    if explanation.attributions is None:
        return []
    methods = ["relevance"] if explanation.suits_relevance else []
    methods += ["gradient_input"] + ([first] if first in CLASS_METHODS else [])
    return [
        ExplainedClass(
            method=method,
            class_name=explanation.label if class_name is None else class_name,
            values=explanation.relevance(method, class_name=class_name).clamp(min=0),
        )
        for method in dict.fromkeys(methods)
    ]


def _layer(explanation: Explanation, recorded: AttentionMap) -> ExplainedLayer:
    assert recorded.query_grid is not None, "maps of an explanation are of images"
    weights = recorded.weights[0]  # heads queries keys
    return ExplainedLayer(
        name=recorded.layer,
        reader_name=READER_NAMES[explanation.reader_of(recorded)],
        read=explanation.read(weights, recorded),
        patches=weights[:, num_query_prefix(recorded) :, recorded.num_prefix :],
        query_grid=recorded.query_grid,
    )
