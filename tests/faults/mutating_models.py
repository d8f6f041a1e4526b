"""Load mutated weights, saved models and exports, and look for uncaught errors, hangs and memory.

    PYTHONPATH=tests python tests/faults/mutating_models.py --seconds 60 [READER ...]
    PYTHONPATH=tests python tests/faults/mutating_models.py --seconds 600 --atheris torch.zip

Each reader runs in a process of its own, so that a crash of a library shows as such, with the last seed. What
has digests gets new ones, as an attacker would write them. ``--atheris`` lets coverage guide the mutations.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FunctionType
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch

from faults.mutations import Mutation, mutate_bytes, mutate_description
from making.bert_folder import write_bert_folder
from making.clip_folder import write_clip_folder
from making.marian_folder import write_marian_folder
from making.saved_vit import save_vit
from making.small_exports import small_vit, write_package
from vitrail.core.errors import VitrailError
from vitrail.core.sealed import read_sealed, sealed
from vitrail.models.weights.files import read_state
from vitrail.models.weights.published import load_published
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.labelling.predictor import Labeller
from vitrail.tasks.translation.predictor import Translator

HANG_S = 5.0
MOST_MIB = 1024
STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.arange(5)}
IMAGE = np.zeros((24, 16, 3), np.uint8)
INSTRUMENTED = ("vitrail.models.weights", "torch._weights_only_unpickler", "numpy.lib", "vitrail.data.text")


class Target(NamedTuple):
    """A file that is mutated, and what reads it."""

    file: Path
    read: Callable[[], object]
    mutate: Mutation = mutate_bytes
    seal: Callable[[], None] = lambda: None
    """Renews the digests of the files beside it."""


Targets = Callable[[str, Path], list[Target]]
"""Writes what a reader reads into a folder, and returns its files."""


def _write_tensors(path: Path) -> None:
    arrays = {name: tensor.numpy() for name, tensor in STATE.items()}
    match path.name.split("."):
        case [_, "safetensors"]:
            safetensors.torch.save_file(STATE, path)
        case ["zip", _]:
            torch.save({"model": STATE, "epoch": 3}, path)
        case ["legacy", _]:
            torch.save({"model": STATE, "epoch": 3}, path, _use_new_zipfile_serialization=False)
        case ["stored", _]:
            np.savez(path, **arrays)
        case ["deflated", _]:
            np.savez_compressed(path, **arrays)


WEIGHTS = {
    "safetensors": "a.safetensors",
    "torch.zip": "zip.pth",
    "torch.legacy": "legacy.pth",
    "npz": "stored.npz",
    "npz.deflated": "deflated.npz",
}
HUB = {
    "hub.bert": (lambda folder: write_bert_folder(folder, "sentence"), "config.json", "vocab.txt"),
    "hub.clip": (write_clip_folder, "config.json", "preprocessor_config.json", "vocab.json", "merges.txt"),
    "hub.marian": (write_marian_folder, "config.json", "tokenizer_config.json", "vocab.json", "source.spm"),
}
EXPORTS = {"package.onnx": ("onnx", "model.onnx"), "package.openvino": ("openvino", "model.xml")}
READERS = (*WEIGHTS, *HUB, "model", "model.labeller", "model.translator", *EXPORTS)


def targets_of(reader: str, folder: Path) -> list[Target]:
    """Write what a reader reads, and return its files."""
    if reader in WEIGHTS:
        path = folder / WEIGHTS[reader]
        _write_tensors(path)
        return [Target(path, lambda: read_state(path))]
    if reader in HUB:
        write, *names = HUB[reader]
        write(folder / "hub")
        return [_published(folder / "hub", name) for name in names]
    if reader in EXPORTS:
        model_format, name = EXPORTS[reader]
        package = write_package(folder / "package", small_vit(depth=1), model_format).folder
        _write_graph(package, model_format)
        _seal(package)
        return [
            Target(package / file, lambda: Predictor(package).predict(IMAGE), mutate, lambda: _seal(package))
            for file, mutate in (("package.json", mutate_description), (name, mutate_bytes))
        ]
    return _saved(reader, folder)


def _write_graph(folder: Path, model_format: str) -> None:
    """Write a graph whose logits are the mean of each colour; tracing a model takes seconds."""
    import onnx
    from onnx import helper, numpy_helper

    shapes = {"images": ["batch", 3, 24, 16], "logits": ["batch", 3]}
    ports = {name: helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()}
    tensors = {"axes": np.array([2, 3]), "bias": np.arange(3, dtype=np.float32)}
    nodes = [
        helper.make_node("ReduceMean", ["images", "axes"], ["mean"], keepdims=0),
        helper.make_node("Add", ["mean", "bias"], ["logits"]),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "colours", [ports["images"]], [ports["logits"]], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save_model(model, str(folder / "model.onnx"))
    if model_format == "openvino":
        import openvino

        converted = openvino.convert_model(folder / "model.onnx")
        (folder / "model.onnx").unlink()
        openvino.save_model(converted, folder / "model.xml", compress_to_fp16=False)


def _published(folder: Path, name: str) -> Target:
    mutate = mutate_description if name.endswith(".json") else mutate_bytes
    return Target(folder / name, lambda: load_published(f"hf:{folder}"), mutate)


def _saved(reader: str, folder: Path) -> list[Target]:
    saved, hub = folder / "saved", folder / "hub"
    match reader:
        case "model":
            save_vit(saved, image_size=(24, 16))
            read: Callable[[], object] = lambda: Predictor(saved).predict(IMAGE)  # noqa: E731
        case "model.labeller":
            write_bert_folder(hub, "sentence")
            load_published(f"hf:{hub}").save(saved)
            read = lambda: Labeller(saved).label(["a dog"])  # noqa: E731
        case _:
            write_marian_folder(hub)
            load_published(f"hf:{hub}").save(saved)
            read = lambda: Translator(saved).translate(["ba ke"], beam_size=1, max_length=5)  # noqa: E731
    files = sorted(path for path in saved.iterdir() if path.suffix != ".safetensors")
    return [
        Target(
            path,
            read,
            mutate_description if path.suffix == ".json" else mutate_bytes,
            lambda: _seal(saved),
        )
        for path in files
    ]


def _seal(folder: Path) -> None:
    """Renew all digests of a folder's files, if its description can be read."""
    for name in ("model.json", "package.json"):
        path = folder / name
        try:
            tree = read_sealed(path, is_verified=False)
            files = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in tree["files"]}
            path.write_text(sealed({**tree, "files": files}))
        except (VitrailError, OSError, ValueError, KeyError, TypeError):
            continue


class Hang(BaseException):
    """A file took too long."""


def attempt(target: Target, content: bytes) -> str:
    """Read a mutated file, and return what came of it; whatever is not ours is raised."""
    target.file.write_bytes(content)
    target.seal()
    try:
        target.read()
    except VitrailError:
        return "refused"
    return "read"


def run(
    reader: str,
    seconds: float,
    *,
    first: int = 0,
    most: int = sys.maxsize,
    progress: Callable[[int], None] = lambda seed: None,
    targets_of: Targets = targets_of,
) -> Counter[str]:
    """Mutate the files of a reader in turn, and count what came of it, uncaught errors by their text.

    Args:
        first: seed, which decides the file and what changes in it.
        targets_of: writes the files of a reader.
    """
    found: Counter[str] = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as name, _alarm():
        targets = targets_of(reader, Path(name))
        originals = [each.file.read_bytes() for each in targets]
        attempt(targets[0], originals[0])  # imports, and what is kept from the first time
        start_mib, end = _peak_mib(), time.monotonic() + seconds
        for seed in range(first, first + most):
            began = time.monotonic()
            if began > end:
                break
            progress(seed)
            target, original = targets[seed % len(targets)], originals[seed % len(targets)]
            signal.setitimer(signal.ITIMER_REAL, HANG_S)
            try:
                outcome = attempt(target, target.mutate(original, Random(seed)))
            except Hang:
                outcome = f"HANG: {target.file.name}, seed {seed}"
            except Exception as error:
                outcome = f"UNCAUGHT: {target.file.name}, {type(error).__name__}: {str(error)[:100]}"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            found[outcome] += 1
            slowest = max(slowest, time.monotonic() - began)
            target.file.write_bytes(original)
            target.seal()
        found["slowest, ms"] = round(1000 * slowest)
        found["memory, MiB"] = _peak_mib() - start_mib
    return found


def faults_of(found: Counter[str]) -> list[str]:
    """Return what is wrong with an outcome."""
    faults = [name for name in found if name.startswith(("UNCAUGHT", "HANG"))]
    return faults + [f"{found['memory, MiB']} MiB more"] * (found["memory, MiB"] > MOST_MIB)


def _run_apart(reader: str, seconds: float, first: int, targets_of: Targets) -> Counter[str]:
    """Run in another process, which a library may kill."""
    context = multiprocessing.get_context("fork")
    last, (receiving, sending) = context.Value("q", first), context.Pipe(duplex=False)

    def work() -> None:
        note = lambda seed: setattr(last, "value", seed)  # noqa: E731
        sending.send(run(reader, seconds, first=first, progress=note, targets_of=targets_of))

    process = context.Process(target=work)
    process.start()
    sending.close()
    try:
        found: Counter[str] = receiving.recv()
    except EOFError:
        found = Counter()
    process.join()
    if process.exitcode:
        found[f"UNCAUGHT: the process ended with code {process.exitcode} at seed {last.value}"] += 1
    return found


@contextmanager
def _alarm() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise Hang

    former = signal.signal(signal.SIGALRM, give_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, former)


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def fuzz(reader: str, seconds: float, corpus: Path, targets_of: Targets) -> None:
    """Let atheris mutate the first file of a reader by coverage; it ends the process itself."""
    import atheris

    corpus.mkdir(parents=True, exist_ok=True)
    (target, *_) = targets_of(reader, Path(tempfile.mkdtemp()))
    (corpus / "original").write_bytes(target.file.read_bytes())
    for name in [name for name in sys.modules if name.startswith(INSTRUMENTED)]:
        for value in list(vars(sys.modules[name]).values()):
            for each in (value, *(vars(value).values() if isinstance(value, type) else ())):
                if isinstance(each, FunctionType) and each.__module__ == name:
                    atheris.instrument_func(each)

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        return target.mutate(bytes(content) or b"{}", Random(seed))[:most]

    options = [f"-max_total_time={seconds:.0f}", f"-timeout={HANG_S:.0f}", f"-rss_limit_mb={4 * MOST_MIB}"]
    atheris.Setup(
        [sys.argv[0], *options, str(corpus)], lambda data: attempt(target, data), custom_mutator=mutate
    )
    atheris.Fuzz()


def main(all_readers: Sequence[str] = READERS, targets_of: Targets = targets_of) -> int:
    """Run the readers that the command line names, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "readers", nargs="*", metavar="READER", help=f"of {', '.join(all_readers)}; all by default"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for all readers together")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--atheris", type=Path, metavar="CORPUS", help="folder of the corpus of one reader")
    options = parser.parse_args()
    readers = options.readers or all_readers
    _silence()
    if options.atheris is not None:
        fuzz(readers[0], options.seconds, options.atheris, targets_of)
    is_good = True
    for reader in readers:
        found = _run_apart(reader, options.seconds / len(readers), options.first, targets_of)
        faults = faults_of(found)
        count = sum(found.values()) - found["slowest, ms"] - found["memory, MiB"]
        print(
            f"{reader:17} {count:8,} executions, {found['read']:7,} read, {len(faults)} faults, slowest "
            f"{found['slowest, ms']:5} ms, {found['memory, MiB']:4} MiB more",
            *faults,
            sep="\n  ",
            flush=True,
        )
        is_good = is_good and not faults
    return 0 if is_good else 1


def _silence() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main())
