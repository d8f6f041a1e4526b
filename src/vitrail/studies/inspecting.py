"""What a trained model has learned: its weights, and its attention heads on its own validation data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from vitrail.core.errors import ConfigError, DataError
from vitrail.engines.loading import load_any
from vitrail.interpret import has_attention
from vitrail.interpret.heads import HeadGroup, HeadMeter, LayerHeads
from vitrail.interpret.learned import (
    BiasTable,
    Filters,
    PositionTable,
    find_biases,
    find_filters,
    find_positions,
    saw_grey,
    why_no_positions,
)
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.contract import Scoring
from vitrail.tasks.evaluating import trained_experiment
from vitrail.tasks.registry import task_of_model
from vitrail.train.machine import inspect_machine

NUM_SAMPLES = 128  # Dosovitskiy et al. 2021, appendix D.7
HEAD_PANELS = ("Attention distance", "Head entropy", "Head similarity")


@dataclass(frozen=True, kw_only=True)
class HeadFindings:
    """Statistics of attention heads over samples."""

    layers: tuple[LayerHeads, ...]
    """In order of execution."""
    groups: tuple[HeadGroup, ...]
    """Similarities of heads in layers that attend over the same tokens."""
    num_samples: int
    """Number of measured samples."""
    origin: str
    """Description of the samples: "validation images of photos/"."""
    num_unreadable: int = 0
    not_measured: tuple[str, ...] = ()
    """Layers whose weights do not sum to one, and thus are not attention over one set of tokens."""
    image_size: tuple[int, int] | None = None
    """Image height and width; None if they vary, or there are no images."""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """All findings about a model."""

    model: str
    filters: Filters | None
    positions: tuple[PositionTable, ...]
    biases: tuple[BiasTable, ...]
    heads: HeadFindings | None
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What is not drawn, with the reason."""


def inspect_learned(
    run: str | Path,
    *,
    data: str | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    on_sample: Callable[[int], None] | None = None,
) -> Learned:
    """Collect what can be shown of a trained model without an image to explain.

    Filters and position embeddings come from the weights. Heads are measured on a sample of the validation
    split of the run's data, or on other data.

    Args:
        run: a run directory, the folder of a saved model, or a published model as for ``vitrail.load``.
        data: data instead of the run's own: for an image classifier image files, a folder or a pattern of
            them, or the name of a data set, whatever its classes; for other models any data that suits them.
        num_samples: sample size, at most the split (default: 128).
        on_sample: called with the number of samples done.

    Raises:
        CheckpointError: there is no usable model.
        ConfigError: the number is not positive, or there is nothing to show.
        DataError: the given data cannot be used.
    """
    count = NUM_SAMPLES if num_samples is None else num_samples
    if count < 1:
        raise ConfigError(f"{count} samples were to be drawn", expected="1 or more", remedy="Draw 128")
    loaded = load_any(run)
    model, left_out = loaded.model, {}
    channels = getattr(getattr(model, "config", None), "num_channels", 3)
    filters = find_filters(model, num_channels=channels)
    if filters is None:
        left_out["Filters"] = "no layer of this model reads pixels"
    elif saw_grey(loaded.preprocessing):
        # Equal channels share one learned sum; what they differ in is left of the initial weights.
        filters = filters._replace(weights=filters.weights.sum(dim=1, keepdim=True), are_summed=True)
    positions = tuple(find_positions(model))
    if not positions:
        left_out["Position embeddings"] = f"this model has no learned ones: {why_no_positions(model)}"
    samples = _find_samples(run, loaded, data)
    heads = samples if isinstance(samples, str) else _measure_heads(loaded, *samples, count, seed, on_sample)
    left_out |= _missing_panels(heads)
    found = Learned(
        model=str(loaded.model_settings.get("name", type(model).__name__)),
        filters=filters,
        positions=positions,
        biases=tuple(find_biases(model)),
        heads=heads if isinstance(heads, HeadFindings) else None,
        left_out=left_out,
    )
    if found.filters is None and not (found.positions or found.biases or found.heads):
        raise ConfigError(
            f"{run} holds a {found.model}: " + "; ".join(dict.fromkeys(left_out.values())),
            expected="a model with filters over pixels, learned positions or attention",
            remedy="Choose a ViT, Swin, PVT, MViT, CLIP, a Transformer or another model with one of these",
        )
    return found


def _missing_panels(heads: HeadFindings | str) -> dict[str, str]:
    """Return which head panels are missing, and why."""
    if isinstance(heads, str):
        return dict.fromkeys(HEAD_PANELS, heads)
    no_patches = "the tokens that attend or are attended to are not patches of an image"
    found = (
        (no_patches, any(each.distance_px is not None for each in heads.layers)),
        ("there is never more than one key", any(each.entropy_shares is not None for each in heads.layers)),
        ("no two heads attend over the same tokens", bool(heads.groups)),
    )
    return {
        panel: reason for panel, (reason, is_there) in zip(HEAD_PANELS, found, strict=True) if not is_there
    }


def _find_samples(run: str | Path, loaded: LoadedModel, data: str | None) -> tuple[Scoring, str] | str:
    """Return the data to measure heads on, or why there is none; given data must be usable."""
    if not has_attention(loaded.model):
        return "this model has no attention"
    task = task_of_model(loaded)
    if data is not None:
        return task.sample_data(loaded, data)
    trained = trained_experiment(run)
    if trained is None:
        return f"{run} does not say what it was trained on, and no data was named with --data"
    source = trained.data.source
    try:
        scoring = task.score(loaded, task.open(trained.data), "validation")
        reason = "" if len(scoring.source) else f"{source} has an empty validation split"
    except DataError as error:
        reason = error.given
    if reason:
        return f"the data of its training cannot be used, and none was named with --data: {reason}"
    return scoring, f"validation {task.samples} of {source}"


def _measure_heads(
    loaded: LoadedModel,
    scoring: Scoring,
    origin: str,
    count: int,
    seed: int,
    on_sample: Callable[[int], None] | None,
) -> HeadFindings | str:
    """Return what heads do on sampled readable data, or why that is unknown."""
    order = np.random.default_rng(seed).permutation(len(scoring.source)).tolist()
    device = inspect_machine().device
    model = loaded.model.to(device).eval()
    task = task_of_model(loaded)
    # Padding would count as words.
    meter = HeadMeter(over_images_only=task.has_several_texts)
    unreadable, sizes = 0, set()
    for index in order:
        try:
            sample = scoring.source.load(index, None)
        except DataError:
            unreadable += 1
            continue
        batch = scoring.objective.collate([sample], None).to(device)
        images = getattr(batch, "images", None)
        size = None if images is None else (images.shape[-2], images.shape[-1])
        with torch.no_grad(), meter.measure(model, size):
            task.run_once(scoring.objective, model, batch)
        sizes.add(size)
        if on_sample is not None:
            on_sample(meter.num_samples)
        if meter.num_samples == count:
            break
    if not meter.num_samples:
        return f"none of the {unreadable} {origin} can be read"
    layers = meter.layers()
    if not layers and meter.left_out:
        return "the layers of this model mix tokens by weights that do not sum to one"
    if not layers:
        return "only words attend in this model, which 'vitrail explain RUN IMAGE' draws for each word"
    has_patches = any(each.distance_px is not None for each in layers)
    return HeadFindings(
        layers=layers,
        groups=meter.groups(),
        num_samples=meter.num_samples,
        origin=origin,
        num_unreadable=unreadable,
        not_measured=tuple(meter.left_out),
        image_size=sizes.pop() if len(sizes) == 1 and has_patches else None,
    )
