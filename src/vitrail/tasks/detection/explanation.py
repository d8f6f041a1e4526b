"""Explain a detector: what each box was read from (decoder), and what patches attend to (encoder)."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.data.findings import number_of
from vitrail.interpret import AttentionMap, record_any
from vitrail.interpret.draw import to_picture
from vitrail.interpret.grids import coarsen, with_joined_levels
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import Boxes, Grid, Maps, num_query_prefix
from vitrail.interpret.viewer.picture import on_picture
from vitrail.tasks.detection.detections import Detections, SelectedBoxes, select_boxes
from vitrail.tasks.detection.predictor import Detector

LONGEST_DECODER_GRID, LONGEST_ENCODER_GRID = 64, 32  # positions; maps of boxes are fewer, so may be finer
MAX_BOXES = 60  # explained in one image; each adds a row to every layer and head
BACKBONE = "backbone"  # names of layers that make the feature map which encoder and decoder read
LEVELS_NOTE = "Levels are feature maps, of which level 0 has the finest grid."


def explain_boxes(
    detector: Detector,
    pixels: UInt8[Tensor, "3 height width"],
    size: tuple[int, int],
    *,
    name: str,
    threshold: float,
) -> Explanation:
    """Find boxes in a prepared image and record what the model attends to.

    Args:
        pixels: at the model's size, as ``Detector.read`` returns them.
        size: original height and width of the upright image.
        threshold: confidence threshold of explained boxes; the best one always is, and at most 60 are.

    Returns:
        Maps ``decoder``, and ``encoder`` if it attends over the whole image. A layer that reads several
        levels has one map per level, followed by one of all together.

    Raises:
        ConfigError: the model's decoder has no cross-attention to the image.
    """
    images = detector.preprocessing.normalise(pixels[None]).to(detector.device)
    with torch.inference_mode(), record_any(detector.model, keep=_keep) as recorded:
        output = detector.model(images)
    crossing = [each for each in recorded if each.kind == "cross"]
    if not crossing:
        raise ConfigError(
            f"no decoder of this model, of the family {detector.config.family}, attends to an image",
            expected="a model that reads boxes from an image by attention, such as a DETR",
            remedy="vitrail predict tells its boxes; vitrail models lists the others",
        )
    selected = select_boxes(output, detector.config.scoring)[0]
    count = min(max(int((selected.scores >= threshold).sum()), 1), MAX_BOXES)
    selected = SelectedBoxes(*(part[:count] for part in selected))
    queries = selected.queries.cpu()
    over_image = [each for each in recorded if each.kind == "self"]
    # Those of the backbone only if there are no others.
    of_encoder = [each for each in over_image if BACKBONE not in each.layer.split(".")] or over_image
    of_boxes = [each._replace(weights=each.weights[:, :, queries]) for each in crossing]
    detections = detector.in_pixels(selected, size, name)
    decoder = Maps(
        name="decoder",
        title="what boxes were read from (decoder)",
        layers=tuple(with_joined_levels(of_boxes)),
        queries=_boxes(detections),
        keys=Grid(),
        note=LEVELS_NOTE if len({each.layer for each in of_boxes}) < len(of_boxes) else "",
    )
    encoder = Maps(
        name="encoder",
        title="where patches attend to (encoder)",
        layers=tuple(with_joined_levels(of_encoder)),
        queries=Grid(),
        keys=Grid(),
    )
    return Explanation(
        name=name,
        title=number_of(count, "box"),
        picture=to_picture(pixels),
        maps=(decoder, encoder) if encoder.layers else (decoder,),
        answer=detections,
    )


def _boxes(detections: Detections) -> Boxes:
    height, width = detections.size
    texts = (f"{detections.class_names[label]} {score:.2f}" for label, score, _ in detections.rows())
    drawn = detections.drawn_boxes()
    return Boxes(tuple(texts), tuple(on_picture(box, (1 / width, 1 / height)) for box in drawn))


def _keep(recorded: AttentionMap) -> AttentionMap | None:
    """Keep maps that read an image, on the CPU and no finer than displayed."""
    longest = {"cross": LONGEST_DECODER_GRID, "self": LONGEST_ENCODER_GRID}.get(recorded.kind)
    is_of_boxes = recorded.kind == "self" and recorded.query_grid is None
    if longest is None or recorded.grid is None or is_of_boxes:
        return None
    coarse = coarsen(recorded, longest)
    weights = coarse.weights[:, :, num_query_prefix(coarse) :, coarse.num_prefix :].cpu()
    return coarse._replace(weights=weights, num_prefix=0)
