"""Robustness of an image classifier under the common corruptions (ImageNet-C)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.data.corruptions import CORRUPTIONS, GROUPS, SEVERITIES, CorruptedSource, corrupt, nearest_side
from vitrail.data.corruptions.weather import frost_folder
from vitrail.data.findings import number_of
from vitrail.data.source import ImageSource
from vitrail.data.stream import SampleSource
from vitrail.models.checkpoint import LoadedModel
from vitrail.report.page import conclusions, picture_uri, section, table, tiles
from vitrail.report.plots import COLOURS
from vitrail.report.tiles import Inks
from vitrail.studies.panels import Panel, join_panels, write_panels
from vitrail.studies.probing import OnProgress, mean_of_all
from vitrail.tasks.classification.benchmarks import benchmark_of
from vitrail.tasks.classification.objective import LogitsEvaluator
from vitrail.tasks.classification.published_scores import sign_incomplete
from vitrail.tasks.classification.scores import wilson_interval
from vitrail.tasks.evaluating import load_classifier, open_scoring
from vitrail.train.evaluate import join_signature, run_evaluator
from vitrail.train.machine import count_cores, inspect_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ReferenceErrors(NamedTuple):
    """Error rates of the reference model that corruption errors are normalised by."""

    name: str
    clean: float
    """Error rate on clean images."""
    corrupted: Mapping[str, float]
    """Mean error rate over the severities, by corruption."""


ALEXNET = ReferenceErrors(
    # AlexNet of torchvision on ImageNet: the constants that papers share since Hendrycks and Dietterich.
    "AlexNet",
    0.4348,
    {
        "gaussian_noise": 0.886428,
        "shot_noise": 0.894468,
        "impulse_noise": 0.922640,
        "defocus_blur": 0.819880,
        "glass_blur": 0.826268,
        "motion_blur": 0.785948,
        "zoom_blur": 0.798360,
        "snow": 0.866816,
        "frost": 0.826572,
        "fog": 0.819324,
        "brightness": 0.564592,
        "contrast": 0.853204,
        "elastic_transform": 0.646056,
        "pixelate": 0.717840,
        "jpeg_compression": 0.606500,
    },
)


class CorruptionErrors(Config):
    """Errors of a model under one corruption."""

    name: str
    group: str
    """noise, blur, weather or digital."""
    errors: dict[int, float]
    """Error rate by severity."""
    mean: float
    """Over the severities."""
    relative: float
    """Mean minus the clean error."""
    corruption_error: float | None = None
    """CE: the mean divided by the reference's; None without a reference."""
    relative_corruption_error: float | None = None
    """Relative CE: added error divided by the error added to the reference; None without a reference, or
    where the corruption adds none to it."""


class Robustness(Config):
    """Errors of a model under all corruptions."""

    signature: dict[str, str]
    """Results compare only where these agree."""
    clean: float
    """Error rate on clean images."""
    clean_interval: tuple[float, float]
    """Its 95 % interval."""
    num_images: int
    corruptions: tuple[CorruptionErrors, ...]
    mean_error: float
    """Mean over corruptions and severities, not normalised."""
    reference: str | None = None
    """Name of the reference model."""
    mean_corruption_error: float | None = None
    """mCE: mean of the CEs; 1 is as robust as the reference, lower is better."""
    relative_mean_corruption_error: float | None = None
    """Relative mCE: mean of the relative CEs."""


def summarise(
    clean: float,
    errors: Mapping[str, Mapping[int, float]],
    *,
    num_images: int,
    reference: ReferenceErrors | None,
    signature: dict[str, str],
) -> Robustness:
    """Compute corruption errors from error rates.

    ``CE_c = sum_s E_sc / sum_s R_sc`` and ``relative CE_c = sum_s (E_sc - E) / sum_s (R_sc - R)``, with the
    errors E of the model and R of the reference at each severity s, and without corruption.

    Paper: Hendrycks and Dietterich 2019, section 4.2.

    Args:
        clean: clean error rate.
        errors: error rates by corruption and severity.
        reference: its errors are means over the same severities.
    """
    rows = []
    for name, by_severity in errors.items():
        mean = sum(by_severity.values()) / len(by_severity)
        divisor = increase = 0.0
        if reference is not None:
            divisor, increase = reference.corrupted[name], reference.corrupted[name] - reference.clean
        rows.append(
            CorruptionErrors(
                name=name,
                group=CORRUPTIONS[name].group,
                errors=dict(by_severity),
                mean=mean,
                relative=mean - clean,
                corruption_error=mean / divisor if divisor > 0 else None,
                relative_corruption_error=(mean - clean) / increase if increase > 0 else None,
            )
        )
    return Robustness(
        signature=signature,
        clean=clean,
        clean_interval=wilson_interval(round(clean * num_images), num_images),
        num_images=num_images,
        corruptions=tuple(rows),
        mean_error=sum(row.mean for row in rows) / len(rows),
        reference=None if reference is None else reference.name,
        mean_corruption_error=mean_of_all([row.corruption_error for row in rows]),
        relative_mean_corruption_error=mean_of_all([row.relative_corruption_error for row in rows]),
    )


STYLE = (
    ".strip{display:flex;flex-wrap:wrap;gap:14px}"
    ".strip figure{margin:0;width:120px}.strip img{width:120px;height:auto;image-rendering:auto}"
)


def robustness_table(found: Robustness) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: errors in percent, by group, then the means."""
    severities = list(map(str, found.corruptions[0].errors))
    columns = ["CE", "rel. CE"] if found.reference else []
    rows = [
        [
            row.name.replace("_", " "),
            *map(_percent, (*row.errors.values(), row.mean)),
            *map(_percent, (row.corruption_error, row.relative_corruption_error)[: len(columns)]),
        ]
        for row in found.corruptions
    ]
    ratios = (found.mean_corruption_error, found.relative_mean_corruption_error)[: len(columns)]
    rows.append(["mean", *[""] * len(severities), *map(_percent, (found.mean_error, *ratios))])
    return ["corruption", *severities, "mean", *columns], rows


def write_robustness(
    path: Path, found: Robustness, examples: Mapping[str, np.ndarray], *, title: str
) -> None:
    """Write a page with curves, table and examples, or the curves alone as .png, .svg or .pdf.

    Args:
        examples: uint8 ``3 height width``: one image as the model sees it, by corruption.

    Raises: as ``write_panels``.
    """
    by_group = {name: [row for row in found.corruptions if row.group == name] for name in GROUPS}
    panels = [
        Panel(f"errors under {name}", name, ("severity", "errors, %"), partial(_draw, found.clean, rows))
        for name, rows in by_group.items()
        if rows
    ]
    interval = f"95 % interval {' to '.join(map(_percent, found.clean_interval))} %"
    images = number_of(found.num_images, "image")
    headlines = [
        (f"{_percent(found.clean)} %", "error without corruption", f"{interval}, {images}"),
        (
            f"{_percent(found.mean_error)} %",
            "mean error with",
            f"over corruptions and severities, {images} each",
        ),
    ]
    note = "Without a reference model there is no corruption error (CE)."
    if found.mean_corruption_error is not None:
        mce = f"{_percent(found.mean_corruption_error)} %"
        headlines.append((mce, "mCE", f"relative to {found.reference}, lower is better"))
    if found.reference is not None:
        note = (
            f"CE is the mean error divided by that of {found.reference}; the relative CE divides what the "
            "corruption adds to the errors without it."
        )
    header, cells = robustness_table(found)
    strip = "".join(
        f'<figure><img alt="" src="{picture_uri(Image.fromarray(pixels.transpose(1, 2, 0)), longest=240)}">'
        f'<figcaption class="soft small">{escape(name.replace("_", " "))}</figcaption></figure>'
        for name, pixels in examples.items()
    )
    worst = max(found.corruptions, key=lambda row: row.mean)
    says = (
        f"The error is {_percent(found.mean_error)} % on average under corruptions, and "
        f"{_percent(found.clean)} % without ({interval}, {images}).",
        f"Worst is {worst.name.replace('_', ' ')}, with {_percent(worst.mean)} %.",
    )
    body = (
        conclusions(says)
        + tiles(headlines)
        + section("Errors", join_panels(panels), "Error rate by severity; severity 0 is the clean image.")
        + section("All figures in percent", table(header, cells, frozenset(range(1, len(header)))), note)
        + section(f"One image at severity {EXAMPLE_SEVERITY}", f'<div class="strip">{strip}</div>')
    )
    write_panels(path, panels, title=title, subtitle=join_signature(found.signature), body=body, style=STYLE)


def _draw(clean: float, rows: Sequence[CorruptionErrors], axes: Axes, inks: Inks) -> None:
    for colour, row in zip(COLOURS, rows, strict=False):
        errors = [100 * error for error in (clean, *row.errors.values())]
        style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.6}
        axes.plot([0, *row.errors], errors, label=row.name.replace("_", " "), **style)
    axes.set_xticks(range(6))
    axes.set_ylim(0, 102)
    axes.legend(frameon=False, labelcolor=inks.ink, fontsize=7.5)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


PUBLISHED_REFERENCE = "alexnet"
MEASURED_ON = "imagenet"  # the benchmark by its name
IMAGENET_CLASSES = 1000
EXAMPLE_SEVERITY = 3
MAX_WORKERS = 8


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
    on_progress: OnProgress = lambda *_: None,
) -> tuple[Robustness, dict[str, np.ndarray]]:
    """Measure error rates under each corruption at each severity; return one image of each as well.

    Args:
        run: a run directory, the folder of a saved model or a published model.
        source: any images that ``vitrail.train`` takes, with the same classes.
        corruptions: names (default: all 15).
        severities: some of 1 to 5.
        reference: a model with the same classes that errors are normalised by; or ``alexnet``, with its
            published errors on the benchmark ``imagenet``.
        num_images: size of a random subset of the split (default: all).
        on_progress: called with the forward passes done and their total.

    Raises: as ``load_classifier`` and ``open_scoring``; ConfigError also if there is no such corruption or
        severity, or the reference does not fit what is measured.
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
    severities = tuple(sorted(set(severities)))
    loaded = load_classifier(run)
    against: ReferenceErrors | None = None
    if reference is not None and str(reference).lower() == PUBLISHED_REFERENCE:
        against = _published(loaded, str(source), split, severities)
    elif reference is not None:
        other = measure_robustness(
            reference,
            source,
            corruptions=names,
            severities=severities,
            split=split,
            num_images=num_images,
            seed=seed,
            on_progress=on_progress,
        )[0]
        means = {row.name: row.mean for row in other.corruptions}
        against = ReferenceErrors(Path(reference).name, other.clean, means)
    (scoring,) = open_scoring(run, loaded, source, split)
    whole = scoring.source
    assert isinstance(whole, ImageSource), "a classifier is scored on images"
    drawn = np.random.default_rng(seed).permutation(len(whole))[:num_images]
    # Decoded once: each image is used many times.
    images = ImageSource(whole.split.take(np.sort(drawn)), whole.preprocessing, cache=True)
    device = inspect_machine().device
    model = loaded.model.to(device)
    done = 0

    def error_on(samples: SampleSource) -> float:
        nonlocal done
        evaluator = LogitsEvaluator(len(loaded.class_names))
        run_evaluator(
            evaluator,
            scoring.objective,
            model,
            samples,
            batch_size=scoring.batch_size,
            num_workers=0 if device.type == "cpu" else min(count_cores() - 1, MAX_WORKERS),
        )
        done += 1
        on_progress(f"passes of {Path(run).name}", done, 1 + len(names) * len(severities))
        return 1 - float(evaluator.result()["accuracy"])

    clean = error_on(images)
    errors = {
        name: {
            severity: error_on(CorruptedSource(images, CORRUPTIONS[name], severity))
            for severity in severities
        }
        for name in names
    }
    side = min(images.preprocessing.image_size)
    signature = scoring.signature | {
        "samples": str(len(images)) if len(images) == len(whole) else f"{len(images)} with seed {seed}",
        "corruptions": f"{len(names)} at severities {','.join(map(str, severities))}, "
        f"as published for {nearest_side(side)} px",
        "frost": "drawn" if frost_folder() is None else "published pictures",
        "reference": "none" if against is None else against.name,
        "precision": "float32",
        "vitrail": __version__,
    }
    if split == "test":
        signature |= sign_incomplete(str(source), len(images))
    pixels = images.load(0, None).image
    corrupted = {name: corrupt(pixels, CORRUPTIONS[name], EXAMPLE_SEVERITY, seed=0) for name in names}
    examples = {name: each.numpy() for name, each in {"without": pixels, **corrupted}.items()}
    found = summarise(clean, errors, num_images=len(images), reference=against, signature=signature)
    return found, examples


def _published(loaded: LoadedModel, source: str, split: str, severities: tuple[int, ...]) -> ReferenceErrors:
    """Return AlexNet's published errors, if the benchmark is the one they were measured on."""
    benchmark = benchmark_of(source)
    is_measured = benchmark is not None and benchmark.name == MEASURED_ON and split == "test"
    if not is_measured or len(loaded.class_names) != IMAGENET_CLASSES or severities != SEVERITIES:
        raise ConfigError(
            f"AlexNet's published errors were asked for, with {len(loaded.class_names)} classes, the split "
            f"{split} of {source} and the severities {', '.join(map(str, severities))}",
            expected=f"the 1,000 classes and the test of {MEASURED_ON} or {MEASURED_ON}:FOLDER, and all five "
            "severities, which they were measured on",
            remedy="Name the benchmark, or give another run as the reference",
        )
    return ALEXNET
