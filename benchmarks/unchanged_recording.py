"""What ``unchanged.py record`` does: make small data, and run every command on it."""

from __future__ import annotations

import csv
import importlib
import json
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

COMMANDS = Path(__file__).with_name("unchanged.txt")
# Imported once, by the process that forks for each command: this takes longer than most commands do.
PRELOADED = ("torch._dynamo", "matplotlib.pyplot", "scipy.optimize", "cyclopts")
BYTECODE = f"{tempfile.gettempdir()}/vitrail-bytecode"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": BYTECODE}
LIMIT_S = 900  # of one command
COLOURS = {"blue": (30, 60, 200), "green": (20, 160, 40), "red": (210, 40, 30)}
WORDS = {"a": "ein", "dog": "Hund", "man": "Mann", "runs": "rennt", "sees": "sieht", "big": "gross"}


def record(output: Path, source: Path, only: str) -> int:
    """Make the data, and run each command in a process and a folder of its own."""
    output = output.resolve()
    os.environ |= ENVIRONMENT | {"VITRAIL_CACHE": f"{output}/cache", "PYTHONPATH": f"{source.resolve()}/src"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.path.insert(0, os.environ["PYTHONPATH"])
    sys.dont_write_bytecode, sys.pycache_prefix = False, BYTECODE
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    for name in ("data", "cache"):
        shutil.rmtree(output / name, ignore_errors=True)
    make_data(output / "data")
    for verb, name, words in read_commands():
        folder, began = output / f"{verb}-{name}", time.perf_counter()
        if fnmatch(folder.name, only):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            target = {"cards": save_cards, "maps": save_maps, "serve": save_answers}.get(verb, vitrail)
            process = fork(run, folder, target, name, words)
            process.join(LIMIT_S)
            process.kill()
            (folder / "exit.json").write_text(json.dumps(process.exitcode))
            print(f"{folder.name}: exit {process.exitcode}, {time.perf_counter() - began:.1f} s", flush=True)
    return 0


def read_commands() -> Iterator[tuple[str, str, list[str]]]:
    text = re.sub(r"\n +", " ", re.sub("(?m)^#.*", "", COMMANDS.read_text()))
    for name, words in reversed(re.findall(r"(?m)^([A-Z]+) = (.*)", text)):
        text = text.replace(f"${name}", words)
    for verb, names, words in re.findall(r"(?m)^(\S+) (.*?):(.*)", text):
        yield from ((verb, name, shlex.split(words.replace("{}", name))) for name in names.split())


def fork(target: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def run(folder: Path, target: Callable[..., None], name: str, words: list[str]) -> None:
    os.chdir(folder)
    for number, stream in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
    target(name, words)


def vitrail(name: str, words: list[str]) -> None:
    """Do what `python -m vitrail WORDS` does, and exit."""
    sys.argv = ["vitrail", *words]
    runpy.run_module("vitrail", run_name="__main__", alter_sys=True)


def save_cards(name: str, words: list[str]) -> None:
    """Save what `vitrail models` says of each model."""
    for model in importlib.import_module("vitrail").list_models():
        with redirect_stdout(Path(f"{model}.json").open("w")), suppress(SystemExit):
            vitrail(name, ["models", model, "--json"])


def save_maps(kind: str, words: list[str]) -> None:
    """Save every array in the explanations of an image, in float32."""
    for name in words[1:]:
        predictor = getattr(importlib.import_module("vitrail"), kind)(f"../train-{name}/run")
        explanation = predictor.explain(words[0])
        found = list(arrays_of(explanation))
        for method in ("rollout", "attention", "relevance", "gradient_input", "occlusion"):
            with suppress(Exception):  # not every method suits every model
                found.append(explanation.relevance(method).numpy())
        np.savez(f"{name}.npz", *found)


def arrays_of(tree: Any) -> Iterator[np.ndarray]:
    import torch

    if isinstance(tree, torch.Tensor) and tree.ndim > 1:
        yield tree.detach().numpy()
    elif isinstance(tree, tuple | list):
        for each in tree:
            yield from arrays_of(each)
    elif type(tree).__module__.startswith("vitrail") and not isinstance(tree, torch.nn.Module):
        for name in [*getattr(tree, "__dict__", ()), *getattr(tree, "__slots__", ())]:
            yield from arrays_of(getattr(tree, name))


def save_answers(name: str, words: list[str]) -> None:
    """Serve runs, and save what the server says of an image or a text."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    served = [f"{each}=../train-{each}/run" for each in words]
    server = fork(vitrail, name, ["serve", "--port", str(port), *served])
    for each in words:
        body, kind = Path("../data/boxes/test/0.png").read_bytes(), "image/png"
        if each == "transformer_tiny":
            body, kind = json.dumps({"text": "a big dog runs"}).encode(), "application/json"
        for address in ("predict", "explain"):
            url = f"http://127.0.0.1:{port}/{address}?model={each}"
            for _ in range(60):  # until the server listens
                with suppress(OSError):
                    asked = urllib.request.Request(url, body, {"Content-Type": kind})
                    Path(f"{each}-{address}.json").write_bytes(urllib.request.urlopen(asked).read())
                    break
                time.sleep(1)
    server.terminate()
    server.join()


def make_data(folder: Path) -> None:
    """Write images by class, boxes, sentence pairs and captions, and copies of them with faults."""
    random = np.random.default_rng(0)

    def picture(colour: str, corners: tuple[int, ...], image: Image.Image | None = None) -> Image.Image:
        noise = Image.fromarray(random.integers(90, 150, (60, 90, 3), dtype=np.uint8))
        ImageDraw.Draw(image := image or noise).rectangle(corners, COLOURS[colour])
        return image

    for place in ("boxes/annotations", "pairs", "captions"):
        (folder / place).mkdir(parents=True)
    categories = [{"id": 2 * label + 1, "name": colour} for label, colour in enumerate(COLOURS)]
    captions = [["image", "caption"]]
    for split, count in {"train": 12, "val": 4, "test": 4}.items():
        images, annotations = [], []
        (folder / "boxes" / split).mkdir()
        for number in range(count):
            scene = None
            images.append({"id": number, "file_name": f"{number}.png", "height": 60, "width": 90})
            for label, colour in enumerate(COLOURS):
                left, top, width, height = random.integers((0, 4, 10, 10), (9, 30, 21, 21)).tolist()
                corners = (30 * label + left, top, 30 * label + left + width - 1, top + height - 1)
                scene = picture(colour, corners, scene)
                box = {"bbox": [30 * label + left, top, width, height], "area": width * height, "iscrowd": 0}
                annotations.append(
                    box | {"id": 3 * number + label, "image_id": number, "category_id": 2 * label + 1}
                )
                path = folder / "images" / split / colour / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                picture(colour, (left, 4, left + width, height)).crop((0, 0, 32, 32)).save(path)
                captioned = f"{split}-{colour}-{number}.png"
                shutil.copy(path, folder / "captions" / captioned)
                captions += [[captioned, f"a {colour} box on noise"], [captioned, f"the box is {colour}"]]
            scene.save(folder / "boxes" / split / f"{number}.png")
        table = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "boxes" / "annotations" / f"instances_{split}.json").write_text(json.dumps(table))
        rows = [random.choice(list(WORDS), random.integers(2, 8)) for _ in range(12 * count)]
        for language, table in {"en": {word: word for word in WORDS}, "de": WORDS}.items():
            lines = [" ".join(table[word] for word in row) + "\n" for row in rows]
            (folder / "pairs" / f"{split}.{language}").write_text("".join(lines))
    with open(folder / "captions" / "captions.csv", "w", newline="") as file:
        csv.writer(file).writerows(captions)

    for name in ("images", "boxes", "pairs"):
        shutil.copytree(folder / name, folder / f"faulty-{name}")
    images = folder / "faulty-images"
    cut = (images / "train" / "red" / "1.png").read_bytes()[:300]
    (images / "train" / "red" / "torn.png").write_bytes(cut)
    shutil.copy(images / "train" / "red" / "2.png", images / "test" / "blue" / "copy.jpg")
    path = folder / "faulty-boxes" / "annotations" / "instances_train.json"
    table = json.loads(path.read_text())
    for place, box in enumerate(([80, 50, 30, 30], [5, 5, 0, 9], [-4, 2, 9, 9], [95, 70, 5, 5])):
        table["annotations"][5 * place]["bbox"] = box
    table["images"].append({"id": 99, "file_name": "missing.png", "height": 60, "width": 90})
    path.write_text(json.dumps(table))
    for language, lines in {"en": "a dog\n\na man\n", "de": f"ein Hund\nein\n{'ein ' * 40}\n"}.items():
        with open(folder / "faulty-pairs" / f"train.{language}", "a") as file:
            file.write(lines)
