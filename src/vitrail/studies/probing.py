"""Evaluation of frozen features: weighted k-nearest neighbours and linear probes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from vitrail import __version__
from vitrail.core.errors import ConfigError
from vitrail.data.dataset import ImageDataset, ImageSplit
from vitrail.data.feature_cache import FeatureCache, cache_folder, digest_of
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSource
from vitrail.engines.loading import load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.captioning.samples import digest_of_weights
from vitrail.tasks.classification.benchmarks import benchmark_of
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.classification.published_scores import as_prepared, as_published, check_published
from vitrail.tasks.classification.scores import classification_tables, headline_scores
from vitrail.tasks.classification.task import TASK as CLASSIFICATION
from vitrail.tasks.evaluating import count_copies, trained_experiment
from vitrail.tasks.preparing import open_checked
from vitrail.tasks.registry import other_use, task_of_model
from vitrail.train.evaluate import Report
from vitrail.train.machine import Machine, autocast, inspect_machine
from vitrail.train.processes import single_process

NUM_NEIGHBOURS = 20  # Caron et al. 2021, section 4.1: works best for all of their models
TEMPERATURE = 0.07  # Wu et al. 2018, section 3.4, whom they follow
ROWS_AT_ONCE = 1024  # of the similarity matrix, to bound memory


def weighted_votes(
    bank: Float[Tensor, "known dim"],
    bank_labels: Int[Tensor, " known"],
    queries: Float[Tensor, "n dim"],
    *,
    num_classes: int,
    num_neighbours: int = NUM_NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> Float[Tensor, "n classes"]:
    """Classify by weighted k-nearest neighbours; the votes sum to one.

    A neighbour of cosine similarity s votes with ``exp(s / temperature)``.

    Paper: Wu et al. 2018, "Unsupervised feature learning via non-parametric instance discrimination",
    section 3.4; Caron et al. 2021, "Emerging properties in self-supervised vision transformers", section 4.1.

    Args:
        bank: features of images whose class is known.
        num_neighbours: at most the size of the bank.
        temperature: smaller values weight the nearest neighbours more.

    >>> bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> votes = weighted_votes(bank, torch.tensor([0, 1, 1]), torch.tensor([[0.0, 2.0]]), num_classes=2)
    >>> votes.argmax().item()
    1
    """
    known = F.normalize(bank.float(), dim=-1)
    num_neighbours = min(num_neighbours, len(known))
    votes = torch.zeros(len(queries), num_classes, device=known.device)
    for start in range(0, len(queries), ROWS_AT_ONCE):
        part = F.normalize(queries[start : start + ROWS_AT_ONCE].float(), dim=-1)
        similarity, places = (part @ known.T).topk(num_neighbours, dim=-1)
        # Subtracting the maximum changes no share of the votes.
        weights = ((similarity - similarity[:, :1]) / temperature).exp()
        votes[start : start + len(part)].scatter_add_(1, bank_labels[places], weights)
    return votes / votes.sum(dim=-1, keepdim=True)


MAX_ITERATIONS = 1000  # Radford et al. 2021, appendix A.3
GRADIENT_TOLERANCE = 1e-6  # of the mean loss; scikit-learn's default is 1e-4
FIRST_STRENGTHS = tuple(range(-6, 7, 2))  # log10 of C: Radford et al. 2021, appendix A.3
STEPS_PER_DECADE = 8  # of the last interval that is searched, likewise
LEAST_HELD, NUM_FOLDS = 100, 5  # validation images that may decide alone, and folds of fewer


class Probe(NamedTuple):
    """A linear classifier on features."""

    weight: Float[Tensor, "classes dim"]
    bias: Float[Tensor, " classes"]


class ChosenProbe(NamedTuple):
    """The selected probe."""

    probe: Probe
    """Refitted on train and validation together."""
    strength: float
    """The inverse regularisation strength C with the highest accuracy on images held out."""
    tried: dict[float, float]
    """That accuracy by C, ascending."""


def probe_logits(probe: Probe, features: Float[Tensor, "n dim"]) -> Float[Tensor, "n classes"]:
    """Return the logits of features, in float64."""
    return features.double() @ probe.weight.T + probe.bias


def fit_probe(
    features: Float[Tensor, "n dim"],
    labels: Int[Tensor, " n"],
    *,
    num_classes: int,
    inverse_strength: float = 1.0,
    start: Probe | None = None,
) -> Probe:
    """Minimise ``C sum_i CE(W x_i + b, y_i) + |W|^2 / 2`` with L-BFGS in float64, as scikit-learn states it.

    The bias is not regularised, so centring the features first does not change the solution and speeds up the
    search. The problem is convex: the start only changes the time.

    Args:
        inverse_strength: C; smaller values shrink the weights more.
        start: initial values (default: zeros).
    """
    centre = features.double().mean(dim=0)
    x, y = features.double() - centre, labels.to(features.device)
    # The weights are rescaled so that a strong penalty is as curved as the loss.
    unit = min(1.0, math.sqrt(inverse_strength * len(y)))
    weight = x.new_zeros(num_classes, x.shape[1]) if start is None else start.weight / unit
    bias = x.new_zeros(num_classes) if start is None else start.bias + start.weight @ centre
    optimiser = torch.optim.LBFGS(
        [weight.requires_grad_(), bias.requires_grad_()],
        max_iter=MAX_ITERATIONS,
        # With a tiny C the predictions hang on tiny weights, and on biases that are as small.
        tolerance_grad=GRADIENT_TOLERANCE * unit,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(unit * (x @ weight.T) + bias, y)
        loss = loss + unit**2 * weight.square().sum() / (2 * inverse_strength * len(y))
        loss.backward()
        return loss

    optimiser.step(closure)
    weight = unit * weight.detach()
    return Probe(weight, bias.detach() - weight @ centre)


def choose_probe(
    train: tuple[Float[Tensor, "n dim"], Int[Tensor, " n"]],
    validation: tuple[Float[Tensor, "held dim"], Int[Tensor, " held"]],
    *,
    num_classes: int,
    on_fit: Callable[[int], None] = lambda done: None,
) -> ChosenProbe:
    """Choose the regularisation strength on validation, and refit on train and validation together.

    Seven values of C from 1e-6 to 1e6 come first; then the interval around the best is halved until its steps
    are an eighth of a decade. Ties in accuracy go to the higher likelihood of the labels: on few validation
    images ties are common, and a tiny C ends in uniform probabilities.

    Paper: Radford et al. 2021, appendix A.3.
    Departs from the paper: it states its strengths as lambda; here they are scikit-learn's C. Fewer than
    ``LEAST_HELD`` validation images decide together with the others, by cross-validation.
    """
    features, labels = (torch.cat(pair) for pair in zip(train, validation, strict=True))
    folds = _folds(labels, len(validation[1]))
    scores: dict[float, tuple[float, float]] = {}
    starts: list[Probe | None] = [None] * len(folds)

    def score(exponent: float) -> None:
        if exponent in scores:
            return
        logits = []
        for place, held in enumerate(folds):
            known = features[~held], labels[~held]
            strength, start = 10.0**exponent, starts[place]
            probe = fit_probe(*known, num_classes=num_classes, inverse_strength=strength, start=start)
            starts[place] = probe
            logits.append(probe_logits(probe, features[held]))
        scores[exponent] = _score(torch.cat(logits), torch.cat([labels[held] for held in folds]))
        on_fit(len(scores))

    for first in FIRST_STRENGTHS:
        score(float(first))
    step = 1.0
    while step >= 1 / STEPS_PER_DECADE:
        best = max(scores, key=scores.__getitem__)
        for exponent in (best - step, best + step):
            if FIRST_STRENGTHS[0] <= exponent <= FIRST_STRENGTHS[-1]:
                score(exponent)
        step /= 2
    best = max(scores, key=scores.__getitem__)
    probe = fit_probe(features, labels, num_classes=num_classes, inverse_strength=10**best)
    return ChosenProbe(probe, 10**best, {10**exponent: scores[exponent][0] for exponent in sorted(scores)})


def _folds(labels: Int[Tensor, " n"], num_validation: int) -> list[Bool[Tensor, " n"]]:
    """Return which images are held out, once or several times; the last are those of validation."""
    place = torch.arange(len(labels), device=labels.device)
    if num_validation >= LEAST_HELD:
        return [place >= len(labels) - num_validation]
    fold = torch.empty_like(place)
    fold[labels.argsort(stable=True)] = place % NUM_FOLDS  # each class in all of them
    return [fold == each for each in range(min(NUM_FOLDS, len(labels)))]


def _score(logits: Float[Tensor, "held classes"], labels: Int[Tensor, " held"]) -> tuple[float, float]:
    """Return accuracy and mean log-likelihood of the labels; the greater pair is better."""
    labels = labels.to(logits.device)
    right = logits.argmax(dim=-1) == labels
    return float(right.double().mean()), -float(F.cross_entropy(logits, labels))


def image_part(loaded: LoadedModel) -> tuple[nn.Module, Preprocessing]:
    """Return the image encoder of a model and its preprocessing.

    Raises:
        ConfigError: the model has no classification head: it is a detector, captioner or translator.
    """
    part = task_of_model(loaded).image_encoder(loaded)
    if not isinstance(getattr(part, "head", None), nn.Module):
        raise ConfigError(
            f"{loaded.model_settings.get('name', 'the model')} has no features of whole images",
            expected="a model that classifies images, or a CLIP",
            remedy=other_use(loaded.preprocessing),
        )
    fields = {name: loaded.preprocessing[name] for name in Preprocessing.model_fields}
    assert part is not None
    return part, Preprocessing.from_tree(fields)


def read_features(
    model: nn.Module, images: Float[Tensor, "batch 3 height width"]
) -> Float[Tensor, "batch dim"]:
    """Return the input of an image model's head, in float32.

    For a ViT that is the normalised class token or the mean of its tokens, for a hierarchical model the mean
    of the last feature map, for CLIP the input of its projection. The two tokens of a distilled model are
    concatenated.

    Args:
        model: an image model with the part ``head``, in evaluation mode.
    """
    read: list[Tensor] = []
    head: Any = model.head
    with head.register_forward_pre_hook(lambda module, given: read.append(given[0])):
        model(images)
    return read[0].detach().flatten(1).float()


ProbeProtocol = Literal["linear", "knn"]
Preparing = Literal["published", "model"]
OnProgress = Callable[[str, int, int], None]
"""Called with the stage, and how many of how many parts of it are done; the total is 0 where unknown."""

BATCH_SIZE = 64


Features = tuple[Float[Tensor, "images dim"], Int[Tensor, " images"]]
"""Features of some images, and their classes."""


class FeatureReader:
    """A frozen model on the fastest device; its features are cached in the user's cache folder."""

    def __init__(self, model: nn.Module, preprocessing: Preprocessing) -> None:
        self.machine, self.preprocessing = inspect_machine(), preprocessing
        self.digest = digest_of(  # of everything but the images that features depend on
            "pooled",
            digest_of_weights(model),
            repr(getattr(model, "config", type(model).__name__)),
            preprocessing.model_dump_json(),
            self.machine.precision,
        )
        self.model = model.to(self.machine.device).eval()
        with torch.inference_mode():
            grey = torch.zeros(1, 3, *preprocessing.image_size, device=self.machine.device)
            self.width = read_features(self.model, grey).shape[1]

    def read(
        self,
        dataset: ImageDataset,
        name: str,
        batch_size: int = BATCH_SIZE,
        on_progress: OnProgress = lambda *_: None,
    ) -> Features:
        """Return the features of a split, from the cache if they are there.

        Raises:
            DataError: an image cannot be read.
        """
        split: ImageSplit = dataset.splits[name]

        @torch.inference_mode()
        def encode(pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 1 dim"]:
            images = self.preprocessing.normalise(pixels).to(self.machine.device)
            with autocast(self.machine.precision, self.machine.device):
                return read_features(self.model, images)[:, None]

        cache = FeatureCache(
            ImageSource(split, self.preprocessing),
            encode,
            path=cache_folder() / "features" / f"{digest_of(self.digest, split.fingerprint)}.f16",
            shape=(1, self.width),
            batch_size=batch_size,
            progress=partial(on_progress, f"features of {name}"),
        )
        cache.prepare()
        rows = [cache.load(index)[0] for index in range(len(cache))]
        values = torch.stack(rows).float() if rows else torch.empty(0, self.width)
        return values, torch.from_numpy(split.labels.copy())


def probe(
    run: str | Path,
    source: str | Path,
    *,
    protocol: ProbeProtocol = "linear",
    preparation: Preparing = "published",
    num_neighbours: int | None = None,
    temperature: float = TEMPERATURE,
    on_progress: OnProgress = lambda *_: None,
) -> Report:
    """Score the features of a frozen model on the test split of a data set, which may have other classes.

    Features are computed once and cached in the user's cache folder.

    Args:
        run: a run directory, the folder of a saved model or a published model; of a CLIP its image tower.
        source: any images with classes that ``vitrail.train`` takes.
        protocol: ``linear``, logistic regression with its strength chosen on validation, or ``knn``, weighted
            nearest neighbours among train and validation images.
        preparation: how images of a benchmark are resized: as in papers, or as in the ``model``'s training;
            size and colour statistics are the model's in either case.
        num_neighbours: by default 20, or as many as the smallest class has images, since its own could never
            win the vote otherwise.
        temperature: as in ``weighted_votes``.

    Raises:
        CheckpointError: there is no usable model.
        DataError: the data cannot be used.
        ConfigError: the model has no features of whole images; or a number is not positive.
    """
    if (num_neighbours is not None and num_neighbours < 1) or temperature <= 0:
        raise ConfigError(
            f"{num_neighbours} neighbours and a temperature of {temperature:g}",
            expected="one neighbour or more, and a temperature above 0",
            remedy=f"Take {NUM_NEIGHBOURS} and {TEMPERATURE}, as Caron et al. 2021",
        )
    loaded = load_any(run)
    if benchmark_of(str(source)) is not None:  # used as published, with nothing left out
        dataset = open_dataset(str(source))
    else:
        settings = CLASSIFICATION.data_settings(str(source))
        dataset, _ = open_checked(CLASSIFICATION, settings, single_process())
    check_published(dataset)
    model, preprocessing = image_part(loaded)
    prepared = "as in training"
    if preparation == "published":
        preprocessing, prepared = as_prepared(preprocessing, str(source))
    reader = FeatureReader(model, preprocessing)
    parts = {
        name: reader.read(dataset, name, on_progress=on_progress) for name in ("train", "validation", "test")
    }
    features, labels = parts["test"]
    if protocol == "knn":
        device = reader.machine.device
        bank, known = (
            torch.cat(pair).to(device) for pair in zip(parts["train"], parts["validation"], strict=True)
        )
        smallest = int(torch.bincount(known)[known.unique()].min())
        num_neighbours = min(num_neighbours or min(NUM_NEIGHBOURS, smallest), len(bank))
        probabilities = weighted_votes(
            bank,
            known,
            features.to(device),
            num_classes=len(dataset.class_names),
            num_neighbours=num_neighbours,
            temperature=temperature,
        ).cpu()
        how = f"weighted {num_neighbours}-nn of {len(bank)}, temperature {temperature:g}"
    else:
        how, probabilities = _linear(dataset, parts, reader.machine, on_progress)
    signature = CLASSIFICATION.sign(dataset, "test", preprocessing) | {
        "method": how,
        "resized": prepared,
        "features": f"{reader.width} of {Path(run).name}",
        "samples": str(len(labels)),
        "precision": reader.machine.precision,
        "vitrail": __version__,
    }
    signature |= count_copies(task_of_model(loaded), trained_experiment(run), dataset.test)
    tables = classification_tables(probabilities, labels, torch.arange(len(labels)))
    report = Report(
        signature=signature,
        scores=headline_scores(tables, probabilities, labels),
        tables=tables.model_dump(mode="json"),
        class_names=dataset.class_names,
    )
    return as_published(report, dataset, "test")


def _linear(
    dataset: ImageDataset, parts: dict[str, Features], machine: Machine, on_progress: OnProgress
) -> tuple[str, Float[Tensor, "n classes"]]:
    # MPS has no float64, in which the probe is fitted.
    device = torch.device("cpu") if machine.device.type == "mps" else machine.device
    train, validation, test = ((each.to(device), labels.to(device)) for each, labels in parts.values())
    chosen = choose_probe(
        train,
        validation,
        num_classes=len(dataset.class_names),
        on_fit=lambda done: on_progress("fits of the probe", done, 0),
    )
    count = len(validation[1])
    held = f"on {count} validation images"
    if count < LEAST_HELD:
        held = f"by {NUM_FOLDS}-fold cross-validation of {count + len(train[1])} images"
    how = f"linear probe, C={chosen.strength:.3g}, best of {len(chosen.tried)} tried {held}"
    return how, probe_logits(chosen.probe, test[0]).softmax(dim=-1).float().cpu()


def mean_of_all(values: list[float | None]) -> float | None:
    """Return the mean; None where any value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
