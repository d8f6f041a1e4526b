"""Translating and learning to translate, beside other libraries, interleaved in one run.

Decoding: the same weights in vitrail, in transformers' MarianMTModel and in CTranslate2, greedily and with a
beam of 5, one sentence at a time and 64. They live in one process for each of these, and take turns
sentence list by sentence list; before timing, what they write is compared. CTranslate2's threads slow those
of PyTorch in the same process to half (docs/log.md): with more than one thread, compare with one library at
a time (``--beside``). All are given subwords and give
subwords, so that no tokeniser is timed, and all stop when the beam's hypotheses have ended. Random weights
never end a sentence: all then write the same number of subwords, the mean length of the target side.

Training: the library's own step beside a plain torch.nn.Transformer model of the same shape with the same
batches, label smoothing and AdamW. Every mode lives in a process of its own; they take turns.

Ratios are taken round by round. On a machine with other work on it, two threads wait for each other, and CPU
time of one (``--cpu-time``) spreads less.

    python benchmarks/translate.py --data ../shared/data/multi30k --rounds 7
    python benchmarks/translate.py --data ../shared/data/multi30k --jobs decode --beams 1 --cpu-time
    python benchmarks/translate.py --data ../shared/data/multi30k --jobs decode --beside transformers
    python benchmarks/translate.py --data ../shared/data/multi30k --run runs/en-de --jobs decode
    python benchmarks/translate.py --data ../shared/data/multi30k --model transformer_base --jobs train
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OTHERS = ("transformers", "CTranslate2")
MODES = ("vitrail float32", "vitrail bfloat16", "plain float32", "plain bfloat16")
LABEL_SMOOTHING = 0.1  # Vaswani et al. 2017, section 5.4
STEPS_PER_BURST = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", required=True, help="parallel text, such as the folder of Multi30k")
    parser.add_argument("--languages", nargs=2, default=["en", "de"])
    parser.add_argument("--model", default="transformer_tiny", help="shape of the random model")
    parser.add_argument("--vocabulary", type=int, default=8000, help="subwords of the random model")
    parser.add_argument("--run", help="a trained model to decode with, instead of a random one")
    parser.add_argument("--jobs", nargs="+", default=["decode", "train"], choices=["decode", "train"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--sentences", type=int, default=128, help="of a round; an eighth of it one by one")
    parser.add_argument("--tokens", type=int, default=2048, help="of a training batch, padding counted")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--beside", nargs="+", default=OTHERS, choices=OTHERS, help="what is timed beside")
    parser.add_argument("--cpu-time", action="store_true", help="decode in CPU time of one thread")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(json.loads(arguments.worker))
        return
    import torch

    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        prepare(arguments, Path(folder))
        if "decode" in arguments.jobs:
            decode(arguments, folder)
        if "train" in arguments.jobs:
            train(arguments, folder)


def prepare(arguments: argparse.Namespace, folder: Path) -> None:
    """Write what all processes use: our model, CTranslate2's, and the subwords of the sentences."""
    from translation_models import keep, load_run, make_random, open_data
    from vitrail.data.text.subwords import PairVocabulary
    from vitrail.data.text_preprocessing import PairPreprocessing
    from vitrail.tasks.translation.ctranslate2_export import export_ctranslate2

    data = open_data(arguments.data, arguments.languages)
    loaded = load_run(arguments.run) if arguments.run else None
    loaded = loaded or make_random(data, arguments.model, arguments.vocabulary)
    keep(loaded, folder / "ours")
    config: Any = loaded.model.config
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    print(
        f"{arguments.run or arguments.model}: {parameters:,} parameters, width {config.width}, "
        f"{config.encoder_depth} + {config.decoder_depth} blocks, {config.target_vocabulary_size:,} subwords"
    )
    vocabulary = PairVocabulary.from_files(loaded.files)
    preprocessing = PairPreprocessing.from_tree(loaded.preprocessing)
    rows = vocabulary.source.encode(preprocessing.prepare(data.validation.sources))
    written = vocabulary.target.encode(preprocessing.prepare(data.validation.targets))
    mean_length = round(statistics.fmean(len(row) + 1 for row in written))
    longest = 2 * max(map(len, rows)) + 10 if arguments.run else mean_length
    described = {"rows": rows[: arguments.sentences], "longest": longest}
    (folder / "sentences.json").write_text(json.dumps(described))
    if "decode" in arguments.jobs:
        sentences = data.validation.sources[: min(32, arguments.sentences)]
        for line in export_ctranslate2(loaded, folder / "ctranslate2", sentences=sentences).to_lines():
            print(f"CTranslate2: {line}")
        print(f"at most {longest} subwords of a translation")


def decode(arguments: argparse.Namespace, folder: str) -> None:
    """Time the engines in every setting, and print a table."""
    sides = ("vitrail", *arguments.beside)
    print(f"\n{'sentences/s, float32':24}" + "".join(f"{side:>14}" for side in sides), end="")
    print("".join(f"{'vitrail / ' + side:>25}" for side in arguments.beside), "  same output")
    for beam in arguments.beams:
        for batch in arguments.batches:
            task = {
                "job": "decode",
                "folder": folder,
                "beam": beam,
                "batch": batch,
                "sentences": max(1, arguments.sentences // (8 if batch == 1 else 1)),
                "rounds": arguments.rounds,
                "cpu_time": arguments.cpu_time,
                "sides": sides,
            }
            print(line_of(task, ask(start(task))), flush=True)


def line_of(task: dict[str, Any], found: dict[str, Any]) -> str:
    sides = task["sides"]
    rates = {side: [found["sentences"] / seconds for seconds in found["seconds"][side]] for side in sides}
    name = "greedy" if task["beam"] == 1 else f"beam {task['beam']}"
    text = f"{name + ', batch ' + str(task['batch']):24}"
    text += "".join(f"{statistics.median(rates[side]):14.1f}" for side in sides)
    for other in sides[1:]:
        ratios = [ours / theirs for ours, theirs in zip(rates["vitrail"], rates[other], strict=True)]
        text += f"   {statistics.median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    same = " ".join(f"{found['same'][other]}/{found['sentences']}" for other in sides[1:])
    return f"{text}   {same}"


def train(arguments: argparse.Namespace, folder: str) -> None:
    """Time every mode of training, and print a table with the ratio of the best of each side."""
    tasks = {
        mode: {
            "job": "train",
            "mode": mode,
            "folder": folder,
            "data": arguments.data,
            "languages": arguments.languages,
            "tokens": arguments.tokens,
        }
        for mode in MODES
    }
    workers = {mode: start(task) for mode, task in tasks.items()}
    for mode, worker in workers.items():
        print(f"warming up {mode}: {ask(worker)['seconds']:.1f} s", file=sys.stderr)
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(arguments.rounds):
        for mode, worker in workers.items():
            found = ask(worker)
            rates[mode].append(found["tokens"] / found["seconds"])
    for worker in workers.values():
        worker.communicate()
    print(f"\n{'tokens/s, both sides':24}{'median':>10}{'min':>10}{'max':>10}")
    for mode, values in rates.items():
        print(f"{mode:24}{statistics.median(values):10.0f}{min(values):10.0f}{max(values):10.0f}")
    ours, plain = (
        max(
            (mode for mode in MODES if mode.startswith(side)), key=lambda mode: statistics.median(rates[mode])
        )
        for side in ("vitrail", "plain")
    )
    ratios = [mine / other for mine, other in zip(rates[ours], rates[plain], strict=True)]
    print(
        f"ratio {ours} / {plain}: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to "
        f"{max(ratios):.2f} over {len(ratios)} rounds"
    )


def start(task: dict[str, Any]) -> subprocess.Popen[str]:
    """Begin a job in a process of its own, which answers every line with a line."""
    command = [sys.executable, __file__, "--data", "-", "--worker", json.dumps(task)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Let a worker do its work once and return what it says."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a worker stopped with exit code {worker.wait()}: see its message above")
    found: dict[str, Any] = json.loads(line)
    return found


def work(task: dict[str, Any]) -> None:
    """Do a job once for every line of standard input."""
    step = training_burst(task) if task["job"] == "train" else None
    for _ in sys.stdin:
        print(json.dumps(step() if step else time_decoding(task)), flush=True)
        if step is None:
            return


def time_decoding(task: dict[str, Any]) -> dict[str, Any]:
    """Let the engines take turns with the same sentences, after a comparison of what they write."""
    import torch

    from translation_engines import make_engines

    clock = time.process_time if task["cpu_time"] else time.perf_counter
    if task["cpu_time"]:
        torch.set_num_threads(1)
    described = json.loads((Path(task["folder"]) / "sentences.json").read_text())
    rows: list[list[int]] = described["rows"][: task["sentences"]]
    batches = [rows[first : first + task["batch"]] for first in range(0, len(rows), task["batch"])]
    sides = task["sides"]
    engines = make_engines(sides, Path(task["folder"]), task["beam"], described["longest"])
    written = {
        side: [row for batch in batches for row in translate(batch)] for side, translate in engines.items()
    }
    same = {
        other: sum(ours == theirs for ours, theirs in zip(written["vitrail"], written[other], strict=True))
        for other in sides[1:]
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(task["rounds"]):
        first = number % len(sides)
        turns = [*sides[first:], *sides[:first]]  # nobody always comes first
        for side in turns:
            started = clock()
            for batch in batches:
                engines[side](batch)
            seconds[side].append(clock() - started)
    return {"seconds": seconds, "same": same, "sentences": len(rows)}


def training_burst(task: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Return what takes a few steps with the next batches."""
    side, precision = task["mode"].split()
    make_step = {"vitrail": vitrail_step, "plain": plain_step}[side]
    step, batches = make_step(task, precision), training_batches(task)
    pad_id = translation_task(task).vocabulary.target.pad_id

    def count_tokens(batch: Any) -> int:
        return int(batch.source_lengths.sum() + (batch.target_out != pad_id).sum())

    def burst() -> dict[str, float]:
        drawn = [next(batches) for _ in range(STEPS_PER_BURST)]
        started = time.perf_counter()
        for batch in drawn:
            step(batch)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "tokens": sum(map(count_tokens, drawn))}

    return burst


def training_batches(task: dict[str, Any]) -> Iterator[Any]:
    """Yield batches without an end, for every mode the same."""
    import torch

    from translation_models import open_data
    from vitrail.tasks.translation.samples import PairSource

    translation = translation_task(task)
    data = open_data(task["data"], task["languages"])
    source = PairSource(data.train, translation.vocabulary, translation.preprocessing, max_length=128)
    generator = torch.Generator().manual_seed(0)
    while True:
        for places in source.plan_batches(task["tokens"], generator):
            yield translation.collate([source.load(place, None) for place in places], None)


def translation_task(task: dict[str, Any]) -> Any:
    from vitrail.data.text.subwords import PairVocabulary
    from vitrail.data.text_preprocessing import PairPreprocessing
    from vitrail.models.checkpoint import load_model
    from vitrail.tasks.translation.objective import TranslationObjective

    loaded = load_model(Path(task["folder"]) / "ours")
    return TranslationObjective(
        PairVocabulary.from_files(loaded.files),
        PairPreprocessing.from_tree(loaded.preprocessing),
        label_smoothing=LABEL_SMOOTHING,
    )


def vitrail_step(task: dict[str, Any], precision: str) -> Callable[[Any], None]:
    """One optimiser step by the library's own training step."""
    from vitrail.models.checkpoint import load_model
    from vitrail.tasks.translation.settings import PairDataSettings, TranslationExperiment
    from vitrail.train.machine import keep_freed_memory
    from vitrail.train.processes import single_process
    from vitrail.train.settings import OptimSettings, TrainSettings
    from vitrail.train.step import TrainStep

    keep_freed_memory()
    loaded = load_model(Path(task["folder"]) / "ours")
    experiment = TranslationExperiment(
        data=PairDataSettings(source=task["data"]),
        model=loaded.model_settings,
        optim=OptimSettings(name="adamw", clip_norm=0, ema_fraction=0),
        train=TrainSettings(steps=100_000, batch_size=task["tokens"], precision=precision),
    )
    train_step = TrainStep(translation_task(task), loaded.model, experiment, single_process())

    def step(batch: Any) -> None:
        train_step([batch], 0, experiment.train)

    return step


def plain_step(task: dict[str, Any], precision: str) -> Callable[[Any], None]:
    """One optimiser step of a plain model, as a tutorial would take it, with torch's fastest AdamW."""
    import torch

    from translation_models import PlainTransformer
    from vitrail.models.checkpoint import load_model

    config: Any = load_model(Path(task["folder"]) / "ours").model.config
    model = PlainTransformer(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    measure = torch.nn.CrossEntropyLoss(ignore_index=config.pad_id, label_smoothing=LABEL_SMOOTHING)

    def step(batch: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(batch.source, batch.target_in)
        measure(logits.float().flatten(0, 1), batch.target_out.flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


if __name__ == "__main__":
    main()
