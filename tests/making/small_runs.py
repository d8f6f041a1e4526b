"""A tiny training of each task: its data, and the settings that make it short."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from making.box_scenes import make_scenes, write_coco
from making.caption_folders import write_csv, write_parquet
from making.image_folders import write_image_folder
from making.plain_pages import plain_pages
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.settings import ClassificationExperiment, ImageDataSettings
from vitrail.tasks.training import TrainedRun, train
from vitrail.train.run import Run
from vitrail.train.settings import TrainSettings

BRIEF = {"train.steps": 4, "train.validations": 2, "train.precision": "float32"}
WORDS = {"a": "ein", "dog": "Hund", "man": "Mann", "runs": "rennt", "sees": "sieht", "big": "grosser"}


def write_corpus(folder: Path, *, train: int = 150, test: int = 11) -> Path:
    """Write pairs of English and German sentences, word by word, in a split each."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for split, count in (("train", train), ("test", test)):
        rows = [[draw.choice(list(WORDS)) for _ in range(draw.randint(2, 7))] for _ in range(count)]
        (folder / f"{split}.en").write_text("".join(" ".join(row) + "\n" for row in rows))
        (folder / f"{split}.de").write_text("".join(" ".join(WORDS[w] for w in row) + "\n" for row in rows))
    return folder


def write_reviews(folder: Path, *, train: int = 60, test: int = 12) -> Path:
    """Write sentences in a split each, labelled by whether there is a dog in them."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for split, count in (("train", train), ("test", test)):
        rows = [[draw.choice(list(WORDS)) for _ in range(draw.randint(2, 7))] for _ in range(count)]
        lines = [f"{' '.join(row)}\t{'dog' if 'dog' in row else 'none'}\n" for row in rows]
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "".join(lines))
    return folder


def write_untrained_run(folder: Path, source: Path, loaded: LoadedModel) -> Path:
    """Write the run directory that a training of an image classifier on a source leaves, without training."""
    experiment = ClassificationExperiment(
        data=ImageDataSettings(source=str(source), image_size=loaded.preprocessing["image_size"]),
        model=loaded.model_settings,
        train=TrainSettings(steps=1, batch_size=2),
    )
    run = Run.create(folder, experiment, name="tiny")
    loaded.save(run.model_folder)
    return run.path


class SmallRun(NamedTuple):
    """What a tiny training of a task needs."""

    write: Callable[[Path], Path]
    """Writes the data into a folder and returns the source."""
    changes: Mapping[str, Any]
    model: str
    recognised_as: str | None = None
    """Where the data alone does not decide the task."""

    def train(self, source: Path, output: Path, *, page: bool = False, **request: Any) -> TrainedRun:
        """Train, by default without a report page."""
        changes = {**self.changes, **request.pop("changes", {})}
        with nullcontext() if page else plain_pages():
            done = train(source, model=self.model, changes=changes, output=output, **request)
        assert isinstance(done, TrainedRun)
        return done


SMALL_RUNS = {
    "captioning": SmallRun(
        lambda folder: write_parquet(folder, train=30, validation=5),
        BRIEF
        | {
            "model.encoder": "vit_nano",
            "model.encoder_changes": {"width": 12, "depth": 1, "num_heads": 3},
            "model.encoder_stage": -1,
            "model.embedding_dim": 12,
            "model.hidden_dim": 16,
            "model.attention_dim": 8,
            "data.image_size": [16, 16],
            "data.min_count": 1,
            "data.validation_fraction": 0.2,
            "train.batch_size": 6,
            "task.beam_size": 2,
        },
        "show_attend_tell_small",
    ),
    "classification": SmallRun(
        lambda folder: write_image_folder(folder / "photos", per_class=6),
        BRIEF | {"model.width": 12, "model.depth": 1, "model.num_heads": 3, "train.batch_size": 4},
        "vit_nano",
    ),
    "contrastive": SmallRun(
        lambda folder: write_csv(folder, 24),
        BRIEF
        | {
            "model.image_model": None,
            "model.image_model_settings": {},
            "model.patch_size": 8,
            "model.image_width": 12,
            "model.image_depth": 1,
            "model.image_num_heads": 3,
            "model.text_width": 12,
            "model.text_depth": 1,
            "model.text_num_heads": 3,
            "model.embedding_dim": 8,
            "data.image_size": [16, 24],
            "data.vocabulary_size": 40,
            "train.batch_size": 6,
        },
        "clip_tiny",
        recognised_as="captioning",
    ),
    "detection": SmallRun(
        lambda folder: write_coco(folder, make_scenes(train=7, validation=2, test=3)),
        BRIEF
        | {
            "model.backbone_width": 4,
            "model.width": 16,
            "model.hidden_dim": 24,
            "model.num_heads": 2,
            "model.decoder_depth": 1,
            "model.num_queries": 9,
            "model.num_proposals": 11,
            "model.num_denoising": 4,
            "data.image_size": [48, 64],
            "train.batch_size": 4,
        },
        "sdetr_nano",
    ),
    "labelling": SmallRun(
        write_reviews,
        BRIEF
        | {
            "model.width": 12,
            "model.num_heads": 3,
            "model.hidden_dim": 16,
            "model.depth": 1,
            "data.vocabulary_size": 40,
            "train.batch_size": 100,
        },
        "text_transformer",
    ),
    "translation": SmallRun(
        write_corpus,
        BRIEF
        | {
            "model.width": 16,
            "model.hidden_dim": 24,
            "model.num_heads": 2,
            "model.encoder_depth": 1,
            "model.decoder_depth": 1,
            "data.languages": ["en", "de"],
            "data.vocabulary_size": 60,
            "train.batch_size": 300,
            "task.beam_size": 2,
        },
        "transformer_tiny",
    ),
}
