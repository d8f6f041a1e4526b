"""Classify one image and keep what its explanation needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.interpret import AttentionMap, has_attention, record_attention
from vitrail.interpret.coarse import coarsen
from vitrail.interpret.draw import to_picture
from vitrail.interpret.rollout import Reader
from vitrail.tasks.classification.attributions import LONGEST_GRID, Attributions
from vitrail.tasks.classification.explanation import Explanation


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
        ConfigError: there is no such layer.
    """
    recording: AbstractContextManager[list[AttentionMap]] = (
        record_attention(model, layer) if has_attention(model) else nullcontext([])
    )
    with torch.inference_mode(), recording as maps:
        probabilities = model(image).float().softmax(dim=-1)[0].cpu()
    kept = tuple(
        coarsen(recorded._replace(weights=recorded.weights.cpu()), LONGEST_GRID)
        for recorded in maps
        if recorded.grid is not None and recorded.query_grid is not None and recorded.kind != "cross"
    )
    best = probabilities.topk(min(top, len(class_names)))
    scores = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Explanation(
        name=name,
        picture=to_picture(pixels),
        scores=tuple((class_names[label], probability) for label, probability in scores),
        maps=kept,
        reader=_reader(model),
        attributions=Attributions(model, image, class_names=class_names, label=int(best.indices[0])),
    )


def _reader(model: nn.Module) -> Reader:
    # A model that has a choice of pooling says so in its settings; the others read the class token they have.
    has_token = getattr(model, "num_prefix", 0) > 0
    pool = getattr(getattr(model, "config", None), "pool", "class" if has_token else "mean")
    return "class" if pool == "class" else "mean"
