"""What the common corruptions cost a finished classifier, on data that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import nn

from vitrail import __version__
from vitrail.core.errors import ConfigError
from vitrail.data.corruptions import CORRUPTIONS
from vitrail.data.corruptions.contract import GROUPS, SEVERITIES, corrupt, nearest_side
from vitrail.data.corruptions.source import CorruptedSource
from vitrail.data.corruptions.weather import frost_folder
from vitrail.data.findings import number_of
from vitrail.data.sampling import SampleSource
from vitrail.data.source import ImageSource
from vitrail.engines.loading import load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.studies.corruption_errors import ALEXNET, ReferenceErrors, Robustness, as_reference, summarise
from vitrail.studies.probing import OnProgress
from vitrail.studies.robustness_page import Example
from vitrail.tasks.classification.benchmarks import benchmark_of
from vitrail.tasks.classification.outputs import LogitsEvaluator
from vitrail.tasks.classification.published_scores import sign_incomplete
from vitrail.tasks.evaluating import open_scoring, trained_experiment
from vitrail.tasks.other_use import other_use
from vitrail.train.evaluate import run_evaluator
from vitrail.train.machine import Precision, count_cores, inspect_machine
from vitrail.train.objective import Objective

PUBLISHED_REFERENCE = "alexnet"
MEASURED_ON = "imagenet"  # the benchmark by its name
IMAGENET_CLASSES = 1000
EXAMPLE_SEVERITY = 3
MAX_WORKERS = 8


class Measured(NamedTuple):
    """A model's robustness, with pictures of what it was measured on."""

    robustness: Robustness
    """The errors."""
    examples: tuple[Example, ...]
    """One image, whole and under each corruption."""


class _Plan(NamedTuple):
    """What is measured of each model."""

    names: tuple[str, ...]
    severities: tuple[int, ...]
    split: str
    num_images: int | None
    seed: int
    batch_size: int | None


class _Scorer(NamedTuple):
    """A model with how it is run."""

    model: nn.Module
    objective: Objective
    num_classes: int
    batch_size: int
    precision: Precision
    num_workers: int

    def share_of_errors(self, samples: SampleSource) -> float:
        """Return the share of wrong answers."""
        evaluator = LogitsEvaluator(self.num_classes)
        run_evaluator(
            evaluator,
            self.objective,
            self.model,
            samples,
            batch_size=self.batch_size,
            precision=self.precision,
            num_workers=self.num_workers,
        )
        return 1 - float(evaluator.result()["accuracy"])


def measure_robustness(
    run: str | Path,
    source: str | Path,
    *,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    reference: str | Path | None = None,
    split: str = "test",
    num_images: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    on_progress: OnProgress | None = None,
) -> Measured:
    """Count the wrong answers on images with each corruption at each severity.

    Args:
        run: a run directory, the folder of a saved model or a published model.
        source: any images that ``vitrail.train`` takes, with the same classes.
        corruptions: their names; all 15 otherwise.
        severities: some of 1 to 5.
        reference: another model of the same classes, whose errors those of this one are divided by; or
            ``alexnet``, with its published errors on the benchmark ``imagenet``.
        split: ``train``, ``validation`` or ``test``.
        num_images: how many are drawn from it; all otherwise.
        seed: of the drawing.
        batch_size: images of one forward pass.
        on_progress: told how many of how many passes are done.

    Raises:
        CheckpointError: there is no usable model.
        DataError: the data cannot be used, or scipy is not installed.
        ConfigError: there is no such corruption, severity or split; the model does not classify images; or
            the reference does not fit what is measured.
    """
    in_order = sorted(CORRUPTIONS, key=lambda name: GROUPS.index(CORRUPTIONS[name].group))
    names = tuple(in_order if corruptions is None else corruptions)
    for name in names:
        CORRUPTIONS[name]
    if not names or not severities or not set(severities) <= set(SEVERITIES):
        raise ConfigError(
            f"{number_of(len(names), 'corruption')}, severities {', '.join(map(str, severities)) or 'none'}",
            expected="one corruption or more, and severities from 1 to 5",
            remedy="Leave both out for all of them",
        )
    plan = _Plan(names, tuple(sorted(set(severities))), split, num_images, seed, batch_size)
    loaded = _classifier(run)
    against: ReferenceErrors | None = None
    if reference is not None and str(reference).lower() == PUBLISHED_REFERENCE:
        against = _published(loaded, str(source), plan)
    elif reference is not None:
        other = _measure(reference, _classifier(reference), source, plan, None, on_progress)
        against = as_reference(Path(reference).name, other.robustness)
    return _measure(run, loaded, source, plan, against, on_progress)


def _measure(
    run: str | Path,
    loaded: LoadedModel,
    source: str | Path,
    plan: _Plan,
    reference: ReferenceErrors | None,
    on_progress: OnProgress | None,
) -> Measured:
    scoring = open_scoring(run, loaded, source, plan.split)
    whole = scoring.source
    assert isinstance(whole, ImageSource), "a classifier is scored on images"
    drawn = np.random.default_rng(plan.seed).permutation(len(whole))[: plan.num_images]
    # Decoded once, as every image is wanted many times.
    images = ImageSource(whole.split.take(np.sort(drawn)), whole.preprocessing, cache=True)
    machine, trained = inspect_machine(), trained_experiment(run)
    device = machine.device
    scorer = _Scorer(
        loaded.model.to(device),
        scoring.objective,
        len(loaded.class_names),
        plan.batch_size or scoring.batch_size,
        machine.precision if trained is None else trained.train.precision,
        0 if device.type == "cpu" else min(count_cores() - 1, MAX_WORKERS),
    )
    total = 1 + len(plan.names) * len(plan.severities)
    done = 0

    def error_on(samples: SampleSource) -> float:
        nonlocal done
        share = scorer.share_of_errors(samples)
        done += 1
        if on_progress is not None:
            on_progress(f"passes of {Path(run).name}", done, total)
        return share

    clean = error_on(images)
    errors = {
        name: {
            severity: error_on(CorruptedSource(images, CORRUPTIONS[name], severity))
            for severity in plan.severities
        }
        for name in plan.names
    }
    side = min(images.preprocessing.image_size)
    signature = scoring.signature | {
        "samples": str(len(images)) if len(images) == len(whole) else f"{len(images)} drawn by {plan.seed}",
        "corruptions": f"{len(plan.names)} at severities {','.join(map(str, plan.severities))}, "
        f"settings for {nearest_side(side)} px",
        "frost": "drawn" if frost_folder() is None else "published pictures",
        "reference": "none" if reference is None else reference.name,
        "precision": scorer.precision,
        "vitrail": __version__,
    }
    if plan.split == "test":
        signature |= sign_incomplete(str(source), len(images))
    groups = {name: CORRUPTIONS[name].group for name in plan.names}
    found = summarise(clean, errors, groups, reference=reference, signature=signature)
    return Measured(found, _examples(images, plan.names))


def _classifier(run: str | Path) -> LoadedModel:
    loaded = load_any(run)
    if loaded.preprocessing.get("task", "classification") != "classification":
        raise ConfigError(
            f"{run} does not classify images",
            expected="a run that was trained on images with a class each",
            remedy=other_use(loaded.preprocessing),
        )
    return loaded


def _published(loaded: LoadedModel, source: str, plan: _Plan) -> ReferenceErrors:
    """Return AlexNet's errors, where what is measured is what they were measured on."""
    benchmark = benchmark_of(source)
    is_measured = benchmark is not None and benchmark.name == MEASURED_ON and plan.split == "test"
    if not is_measured or len(loaded.class_names) != IMAGENET_CLASSES or plan.severities != SEVERITIES:
        raise ConfigError(
            f"AlexNet's published errors were asked for, with {len(loaded.class_names)} classes, the split "
            f"{plan.split} of {source} and the severities {', '.join(map(str, plan.severities))}",
            expected=f"the 1,000 classes and the test of {MEASURED_ON} or {MEASURED_ON}:FOLDER, and all five "
            "severities, which they were measured on",
            remedy="Name the benchmark, or give another run as the reference",
        )
    return ALEXNET


def _examples(images: ImageSource, names: Sequence[str]) -> tuple[Example, ...]:
    pixels = images.load(0, None).image
    damaged = [
        Example(name, corrupt(pixels, CORRUPTIONS[name], EXAMPLE_SEVERITY, seed=0).numpy()) for name in names
    ]
    return (Example("without", pixels.numpy()), *damaged)
