"""Explanations of detections: of one image, and of files as pictures or one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.data.inputs import list_files
from vitrail.interpret import AttentionMap, has_attention, record_attention
from vitrail.interpret.coarse import coarsen
from vitrail.interpret.draw import to_picture
from vitrail.interpret.levels import with_joined_levels
from vitrail.interpret.viewer.box_explain_page import write_box_explain_page
from vitrail.tasks.classification.explain import check_output, explain_readable, is_page, picture_files
from vitrail.tasks.detection.explanation import BoxExplanation
from vitrail.tasks.detection.outputs import SelectedBoxes, select_boxes
from vitrail.tasks.detection.predictor import Detector

LONGEST_DECODER_GRID = 64  # cells; a box has few rows, so that its maps may be finer than those of places
LONGEST_ENCODER_GRID = 32
MAX_BOXES = 60  # explained in one image; each adds a row to every layer and head
BACKBONE = "backbone"  # names of layers that make the map which encoder and decoder read


class WrittenBoxExplanations(NamedTuple):
    """What was written, and what could not be."""

    files: tuple[Path, ...]
    """The pictures, or the one page."""
    explained: tuple[BoxExplanation, ...]
    """The explanations, in the order of the images."""
    errors: tuple[tuple[str, str], ...]
    """Images that could not be read, each with the reason."""


def explain_boxes(
    detector: Detector,
    pixels: UInt8[Tensor, "3 height width"],
    size: tuple[int, int],
    *,
    name: str,
    threshold: float,
) -> BoxExplanation:
    """Find boxes in a prepared image and record what the model attends to.

    Args:
        detector: the model.
        pixels: of the size that the model takes, as ``Detector.read`` returns them.
        size: height and width of the upright image before that.
        name: what the image is called.
        threshold: the least score of a box that is explained; the best one is in any case, and no more than
            60 are.

    Raises:
        ConfigError: the model's decoder attends to no image.
    """
    if not has_attention(detector.model):
        raise _nothing_to_show(detector)
    images = detector.preprocessing.normalise(pixels[None]).to(detector.device)
    with torch.inference_mode(), record_attention(detector.model, keep=_keep) as maps:
        output = detector.model(images)
    selected = select_boxes(output, detector.config.scoring)[0]
    count = min(max(int((selected.scores >= threshold).sum()), 1), MAX_BOXES)
    selected = SelectedBoxes(*(part[:count] for part in selected))
    queries = selected.queries.cpu()
    crossing = [each for each in maps if each.kind == "cross"]
    if not crossing:
        raise _nothing_to_show(detector)
    of_boxes = [each._replace(weights=each.weights[:, :, queries]) for each in crossing]
    return BoxExplanation(
        picture=to_picture(pixels),
        detections=detector.in_pixels(selected, size, name),
        decoder=tuple(with_joined_levels(of_boxes)),
        encoder=tuple(with_joined_levels(_of_encoder(maps))),
    )


def explain_box_files(
    detector: Detector,
    names: Iterable[str | Path],
    *,
    output: str | Path = "explain.html",
    threshold: float | None = None,
) -> WrittenBoxExplanations:
    """Explain the boxes of images and write a page, a picture, or a folder of pictures.

    Args:
        detector: the model.
        names: files, folders and glob patterns.
        output: a page (.html) for all images, a picture (such as .png) for one image, or a folder, a name
            without a suffix, for one picture for each image.
        threshold: as for ``Detector.explain``.

    Raises:
        ConfigError: the model has nothing to show, the threshold is no score, or the output does not fit the
            number of images.
        DataError: no image was named, or none of them can be read.
        CheckpointError: the output cannot be written.
    """
    least = detector.least_score(threshold)
    output, paths = Path(output), list_files(names)
    check_output(output, len(paths))
    explained, errors = explain_readable(paths, lambda path: detector.explain(path, threshold=least))
    if is_page(output):
        title = f"Boxes in {len(explained)} images" if len(explained) > 1 else f"Boxes in {paths[0].name}"
        write_box_explain_page(output, [each.for_page() for each in explained], title=title)
        return WrittenBoxExplanations((output,), tuple(explained), errors)
    files = picture_files(output, [each.name for each in explained])
    for each, file in zip(explained, files, strict=True):
        each.save(file)
    return WrittenBoxExplanations(tuple(files), tuple(explained), errors)


def _keep(recorded: AttentionMap) -> AttentionMap | None:
    """Keep what reads an image, on the processor and no finer than it is shown."""
    if recorded.grid is None or recorded.kind not in ("self", "cross"):
        return None
    if recorded.kind == "cross":
        longest = LONGEST_DECODER_GRID
    elif recorded.query_grid is not None:
        longest = LONGEST_ENCODER_GRID
    else:
        return None
    coarse = coarsen(recorded, longest)
    weights = coarse.weights[..., coarse.num_prefix :].cpu()
    return coarse._replace(weights=weights, num_prefix=0)


def _of_encoder(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """Return the maps of places among themselves; those of the backbone only where there are no others."""
    places = []
    for each in maps:
        if each.kind == "self" and each.query_grid is not None:
            num_prefix = each.weights.shape[-2] - each.query_grid[0] * each.query_grid[1]
            places.append(each._replace(weights=each.weights[:, :, num_prefix:]))
    encoder = [each for each in places if BACKBONE not in each.layer.split(".")]
    return encoder or places


def _nothing_to_show(detector: Detector) -> ConfigError:
    return ConfigError(
        f"no decoder of this model, of the family {detector.config.family}, attends to an image",
        expected="a model that reads boxes from an image by attention, such as a DETR",
        remedy="vitrail predict tells its boxes; vitrail models lists the others",
    )
