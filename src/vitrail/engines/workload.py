"""Benchmark inputs: batches of a model's own size, and the cost of one image."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch

from vitrail.engines.contract import Inputs
from vitrail.engines.export.exporting import NUM_CALIBRATED, canvas_of
from vitrail.engines.export.package import PortSpec
from vitrail.engines.export.samples import Samples, batches_of, spread
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.cost import count_forward


def image_size(loaded: LoadedModel) -> tuple[int, int]:
    """Return the image height and width of benchmarks."""
    height, width = loaded.preprocessing["image_size"]
    return height, width


def is_detector(loaded: LoadedModel) -> bool:
    """Tell whether a model finds boxes."""
    return loaded.preprocessing.get("task") == "detection"


def make_batch(loaded: LoadedModel, batch: int) -> Inputs:
    """Return random images of a model's size as engine inputs."""
    height, width = image_size(loaded)
    images = torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(batch))
    return (images, torch.tensor([[height, width]] * batch)) if is_detector(loaded) else (images,)


def ports_of(loaded: LoadedModel) -> tuple[PortSpec, ...]:
    """Return the input ports of a model's engine, of a size that holds every image."""
    images = PortSpec(name="images", dtype="float32", axes=("batch", 3, *canvas_of(loaded)))
    sizes = PortSpec(name="sizes", dtype="int64", axes=("batch", 2))
    return (images, sizes) if is_detector(loaded) else (images,)


def calibration_batches(loaded: LoadedModel, samples: Samples) -> Iterator[Inputs]:
    """Yield batches for int8 calibration."""
    source = samples.source if samples.calibration is None else samples.calibration
    indices = spread(len(source), NUM_CALIBRATED)
    for _, inputs in batches_of(samples, source, indices, ports_of(loaded)):
        yield inputs


def count_gmacs(loaded: LoadedModel) -> float:
    """Return 10^9 multiply-accumulates per image."""
    model = copy.deepcopy(loaded.model).to("meta").eval()
    height, width = image_size(loaded)
    cost = count_forward(model, torch.zeros(1, 3, height, width, device="meta"), {})
    return sum(part.macs for part in cost.parts.values()) / 1e9
