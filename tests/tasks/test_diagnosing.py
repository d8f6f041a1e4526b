"""What a finished run is told about itself: every complaint with what to do, and none where none is due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.tasks.captioning.scores import caption_tables
from vitrail.tasks.captioning.scores import headline_scores as caption_headlines
from vitrail.tasks.classification.scores import classification_tables, headline_scores
from vitrail.tasks.classification.settings import ClassificationExperiment, ImageDataSettings
from vitrail.tasks.contract import Diagnosis, Parts
from vitrail.tasks.diagnosing import diagnose
from vitrail.tasks.registry import TASKS
from vitrail.train.evaluate import Report
from vitrail.train.run import Run
from vitrail.train.settings import TrainSettings

NAMES = ("ant", "bee", "cat", "dog", "elk")
GOOD = [0, 1, 2, 3, 4] * 10
HALF = [0, 1, 2, 3, 4] * 6 + [1, 2, 3, 4, 0] * 4
PRETRAINED = ", or start from pretrained weights, such as --weights timm:"
FLAT = [0.5, 0.4, 0.4, 0.4, 0.4]


class Images:
    """As many as are trained on."""

    def __len__(self) -> int:
        return 16

    def load(self, index: int, generator: torch.Generator | None) -> Any:
        raise NotImplementedError


def class_report(predicted: list[int], labels: list[int] | None = None) -> Report:
    true = torch.tensor(GOOD if labels is None else labels)
    probabilities = torch.eye(5)[predicted] * 0.9 + 0.02
    tables = classification_tables(probabilities, true, torch.arange(len(true)))
    scores = headline_scores(tables, probabilities, true)
    return Report(signature={}, scores=scores, tables=tables.model_dump(mode="json"), class_names=NAMES)


def diagnose_classes(
    tmp_path: Path,
    predicted: list[int],
    nll: list[float],
    *,
    steps: int = 40,
    seconds: float = 100,
    budget_s: float | None = None,
    weights: str | None = None,
    labels: list[int] | None = None,
    image_size: int = 32,
    correct: float = 1.0,
) -> Diagnosis:
    """Diagnose a run on 16 images in batches of 4, validated evenly."""
    experiment = ClassificationExperiment(
        data=ImageDataSettings(source="pets", image_size=(8, 8)),
        model={"name": "vit_nano", "image_size": (image_size, image_size)},  # type: ignore[arg-type]
        train=TrainSettings(steps=steps, batch_size=4),
        budget_s=budget_s,
        weights=weights,
    )
    run = Run.create(tmp_path, experiment)
    run.log(kind="train", step=steps, loss=1.0, elapsed_s=seconds, parts={"correct": correct})
    for number, value in enumerate(nll, start=1):
        run.log(kind="validation", step=steps * number // len(nll), scores={"nll": value})
    parts = Parts._make([None] * len(Parts._fields))._replace(train=Images())
    return diagnose(run, parts, class_report(predicted, labels))


@pytest.mark.parametrize(
    ("predicted", "nll", "changes", "problems", "remedy"),
    [
        (GOOD, FLAT, {}, [], ""),
        (GOOD, [], {}, [], ""),
        (HALF, FLAT, {}, [], ""),
        (HALF, FLAT, {"correct": 0.62}, ["The training accuracy, 62%, is as low as"], "train longer"),
        (
            GOOD,
            FLAT,
            {"steps": 6},
            ["The 16 training images were seen 1.5 times each; learning from random weights usually"],
            f"--budget 10m for about 10 epochs){PRETRAINED}",  # 17 thirds of 100 s more
        ),
        (GOOD, FLAT, {"steps": 6, "weights": "timm:x"}, [], ""),
        (
            GOOD,
            [0.9, 0.8, 0.7, 0.5, 0.3],
            {"budget_s": 120.0},
            ["The validation log loss was still improving in the last quarter: 0.7 to 0.3."],
            f"train longer (--resume {{run}} --budget 4m for about 30 epochs){PRETRAINED}",  # twice 100 s
        ),
        (GOOD, [0.9, 0.8, 0.7, 0.5, 0.3], {"budget_s": 600.0}, [], ""),  # most epochs were reached
        (
            GOOD,
            [0.9, 0.5, 0.6, 0.7, 0.8],
            {"steps": 60, "weights": "timm:x"},
            ["The validation log loss got worse from its best, 0.5 to 0.8: the model overfits."],
            "give more training images.",
        ),
        (
            [0, 1, 0, 3, 0] * 10,
            FLAT,
            {},
            ["2 of 5 classes are never predicted: cat; elk."],
            f"give more training images{PRETRAINED}",
        ),
        (
            [0] * 50,
            FLAT,
            {"labels": [0] * 46 + [1] * 4},
            [
                "The accuracy is not clearly better than one answer for all.",
                "1 of 5 classes is never predicted: bee.",
            ],
            f"give more training images{PRETRAINED}",
        ),
        (
            [4] * 50,
            FLAT,
            {"steps": 6000, "seconds": 7000.0, "budget_s": 7200.0},
            ["not clearly better", "4 of 5 classes are never predicted: ant; bee; cat; dog."],
            f"give more training images{PRETRAINED}",
        ),
    ],
)
def test_a_run_says_what_is_the_matter_and_what_to_do(
    tmp_path: Path,
    predicted: list[int],
    nll: list[float],
    changes: dict[str, Any],
    problems: list[str],
    remedy: str,
) -> None:
    found = diagnose_classes(tmp_path, predicted, nll, **changes)

    assert found.result.startswith("Accuracy ")
    assert len(found.problems) == len(problems)
    assert all(text in problem for text, problem in zip(problems, found.problems, strict=True))
    assert remedy.format(run=next(tmp_path.iterdir(), "")) in found.remedy
    assert bool(found.remedy) == bool(problems)


def test_the_named_budget_can_be_given(tmp_path: Path) -> None:
    short = diagnose_classes(tmp_path, GOOD, FLAT, steps=1, seconds=3000.0, budget_s=3600.0)

    assert "--budget 33h for about 10 epochs" in short.remedy  # 39 times 50 min


@pytest.mark.parametrize(("image_size", "is_named"), [(8, False), (32, True)])
def test_weights_of_photographs_are_not_named_for_tiny_images(
    tmp_path: Path, image_size: int, is_named: bool
) -> None:
    found = diagnose_classes(tmp_path, GOOD, FLAT, steps=6, image_size=image_size)

    assert ("--weights" in found.remedy) is is_named


@pytest.mark.parametrize(("read", "things"), [("sentence, at most 16", "texts"), ("words", "words")])
def test_labels_are_counted_as_what_they_are_of(read: str, things: str) -> None:
    report = class_report(GOOD).model_copy(update={"signature": {"input": read}})

    found = TASKS["labelling"].conclude(report)

    assert found.result.startswith(f"Accuracy 100.0% on 50 {things} (95 % interval ")
    assert not found.problems


def caption_report(written: list[str], true: list[str]) -> Report:
    tables = caption_tables(written, [[text] for text in true], indices=range(len(true)))
    scores = {**caption_headlines(tables.scores), "cut_off": 0.5}
    return Report(signature={}, scores=scores, tables=tables.model_dump(mode="json"))


def test_texts_that_are_all_the_same_or_do_not_end_are_named() -> None:
    true = [f"a {colour} dog runs over the {place}" for colour in ("red", "old") for place in "abcdef"]

    found = TASKS["captioning"].conclude(caption_report(["a man"] * 12, true))
    right = TASKS["captioning"].conclude(caption_report(true, true))

    assert found.problems == (
        "BLEU is about 0: hardly any phrase of the captions is in their references.",
        "12 of 12 captions are the same: 'a man'.",
        "50% of the captions reach the greatest length without an end.",
    )
    assert right.problems == found.problems[2:]
    assert right.result == "BLEU-4 1.000 and CIDEr 10.000 on 12 images."


@pytest.mark.parametrize(
    ("recall", "num_images", "problems"),
    [(0.06, 100, 1), (0.3, 100, 0), (1.0, 1, 0)],  # chance: 1, 5 and 10 of 100
)
def test_retrieval_is_compared_with_chance(recall: float, num_images: int, problems: int) -> None:
    scores = {"mean_recall": recall, **{f"text_to_image_r{depth}": recall for depth in (1, 5, 10)}}
    report = Report(signature={}, scores=scores, tables={"num_images": num_images, "num_texts": 200})

    found = TASKS["contrastive"].conclude(report)

    assert len(found.problems) == problems
    assert all("in 6.0%, little more than by chance (5.3%)" in problem for problem in found.problems)
