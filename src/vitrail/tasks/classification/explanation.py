"""Explain a classifier: attention over patches, and the relevance of each patch for a class."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.interpret import record_any
from vitrail.interpret.attribution import LONGEST_GRID, Attributions
from vitrail.interpret.draw import to_picture
from vitrail.interpret.grids import coarsen
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import Grid, Maps


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
    """Classify one image and record the attention of all layers, or of one.

    Maps of more than 32 rows or columns are pooled.

    Args:
        image: normalised, on the model's device; ``pixels`` is the same image for display.
        layer: records this layer only; None records all.
    """
    with torch.inference_mode(), record_any(model, layer) as recorded:
        probabilities = model(image).float().softmax(dim=-1)[0].cpu()
    layers = tuple(
        coarsen(each._replace(weights=each.weights.cpu()), LONGEST_GRID)
        for each in recorded
        if each.grid is not None and each.query_grid is not None and each.kind != "cross"
    )
    # Models with selectable pooling have the setting; the others use their class token.
    usual = "class" if getattr(model, "num_prefix", 0) > 0 else "mean"
    is_class = getattr(getattr(model, "config", None), "pool", usual) == "class"
    best = probabilities.topk(min(top, len(class_names)))
    numbers, shares = best.indices.tolist(), best.values.tolist()
    maps = Maps(
        name="attention",
        title="attention of one layer",
        layers=layers,
        queries=Grid(),
        keys=Grid(),
        reader="class" if is_class else "mean",
    )
    return Explanation(
        name=name,
        title=f"{class_names[numbers[0]]} {shares[0]:.1%}" if len(class_names) > 1 else class_names[0],
        picture=to_picture(pixels),
        scores=tuple((class_names[label], share) for label, share in zip(numbers, shares, strict=True)),
        maps=(maps,) if layers else (),
        attributions=Attributions(model, image, class_names, numbers[0]),
    )
