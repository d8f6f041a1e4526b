"""Images that break detectors elsewhere: without boxes, with tiny ones, with hundreds, of mixed sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from making.box_scenes import Scene, write_coco
from vitrail.cli import main
from vitrail.tasks.registry import open_run

pytest.importorskip("scipy", reason="needs the extra detection")
pytest.importorskip("faster_coco_eval", reason="needs the extra detection")

NUM_STEPS = 3
SIZES = [(61, 97), (150, 23), (9, 80), (64, 64), (40, 31), (7, 5)]  # heights and widths
MODELS = {
    "sdetr_nano": {"backbone_width": 4, "num_proposals": 60, "num_denoising": 4, "decoder_depth": 1},
    "detr_nano": {"backbone_width": 4, "encoder_depth": 1, "decoder_depth": 2},
}


@pytest.fixture(scope="module")
def extremes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold half of all training images without a box, one with 300, and boxes of one pixel and of all."""
    random = np.random.default_rng(0)

    def scene(split: str, number: int, boxes: list[list[float]]) -> Scene:
        height, width = SIZES[number % len(SIZES)]
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        return Scene(
            f"{split}-{number}.png", split, pixels, boxes, [index % 3 for index in range(len(boxes))]
        )

    def heap(count: int) -> list[list[float]]:
        first = random.uniform(0, (90, 55), (count, 2))
        return np.concatenate((first, first + random.uniform(1, 6, (count, 2))), axis=1).tolist()

    one_pixel = [[3.0, 2.0, 4.0, 3.0], [0.0, 0.0, 1.0, 1.0], [4.0, 6.0, 5.0, 7.0]]
    boxes_of_images = [heap(300), one_pixel, [], [[0.0, 0.0, 64.0, 64.0]], [], [], [], one_pixel]
    scenes = [scene("train", number, boxes) for number, boxes in enumerate(boxes_of_images)]
    for split in ("validation", "test"):
        scenes += [scene(split, 0, heap(150)), scene(split, 1, [])]
    return write_coco(tmp_path_factory.mktemp("extremes"), scenes)


def command(data: Path, output: Path, model: str) -> list[str]:
    settings = {f"model.{name}": value for name, value in MODELS[model].items()} | {
        "model.width": 16,
        "model.hidden_dim": 24,
        "model.num_heads": 2,
        "model.num_queries": 40,
        "data.image_size": [64, 64],
        "data.resize": "fit",
        "train.batch_size": 4,
        "train.steps": NUM_STEPS,
        "train.validations": 1,
        "augment.mosaic": 0.3,
    }
    asked = ["train", str(data), "--model", model, "--name", "run", "--output", str(output)]
    for name, value in settings.items():
        asked += ["--set", f"{name}={json.dumps(value)}"]
    return asked


def assert_trained(output: Path) -> None:
    run = open_run(output / "run")
    steps = [entry for entry in run.metrics() if entry["kind"] == "train"]
    assert steps[-1]["step"] == NUM_STEPS
    assert all(np.isfinite(entry["loss"]) for entry in steps)
    assert json.loads((run.path / "report.json").read_text())["signature"]["samples"] == "2"
    assert (run.path / "report.html").is_file()


@pytest.mark.parametrize("model", MODELS)
def test_one_process_trains_with_them(extremes: Path, tmp_path: Path, model: str) -> None:
    assert main(command(extremes, tmp_path, model)) == 0

    assert_trained(tmp_path)


@pytest.mark.further  # an objective's test trains in two processes, of which one has no box
@pytest.mark.parametrize("model", MODELS)
def test_two_processes_train_with_them(extremes: Path, tmp_path: Path, model: str) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    done = subprocess.run(
        [*launcher, "-m", "vitrail", *command(extremes, tmp_path, model)],
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stderr
    assert_trained(tmp_path)
