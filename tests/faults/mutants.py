"""How many small changes of a module its tests notice: the mutation score.

    python tests/faults/mutants.py masks

Cosmic Ray makes the mutants: each is one change of an operator, a comparison, a number, a condition or a
decorator, and is tested in a process forked from one that has imported everything but the package and its
tests. mutants.toml names the modules, their tests, the operators and the mutants that change nothing.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from hypothesis import Phase, settings

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MOST_MEMORY = 16 << 30  # bytes of address space


class Mutant(NamedTuple):
    """One change of a module."""

    source: str
    number: int
    """Of the first line that differs."""
    former: str
    line: str


def main() -> None:
    """Print each surviving mutant and the score of each module; fail below the least score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", choices=[[], *SETTINGS["modules"]], metavar="MODULE")
    parser.add_argument("--most", type=int, default=500, help="mutants of a module, drawn by chance above")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", help="only mutants of lines that match this expression", default="")
    arguments = parser.parse_args()
    os.chdir(REPOSITORY)
    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None)
    settings.load_profile("mutants")
    names = arguments.modules or SETTINGS["modules"]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        shutil.copytree(REPOSITORY / "src", Path(folder, "src"), ignore=shutil.ignore_patterns("__pycache__"))
        os.environ.update(PYTHONPATH=f"{folder}/src", PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        os.environ["HF_HUB_OFFLINE"] = "1"
        sys.path.insert(0, f"{folder}/src")
        sys.dont_write_bytecode = True  # a mutant may have the size and second of the one before
        scores = [score(name, Path(folder), arguments) for name in names]
    sys.exit(min(scores) < SETTINGS["least_score"])


def score(name: str, folder: Path, arguments: argparse.Namespace) -> float:
    """Return the share of the mutants of a module that its tests notice."""
    module, start = SETTINGS["modules"][name], time.monotonic()
    path = Path(module["path"])
    former = path.read_text()
    tests = Tests(module["tests"], folder)
    tests.prepare()
    mutants = [mutant for mutant in mutants_of(former) if re.search(arguments.lines, mutant.former)]
    equal = {line for row in module.get("equivalent", ()) for line in row["lines"]}
    unknown = equal - {mutant.line for mutant in mutants}
    if unknown and not arguments.lines:
        sys.exit(f"{name}: no mutant is {sorted(unknown)}. Correct tests/faults/mutants.toml")
    mutants = [mutant for mutant in mutants if mutant.line not in equal]
    num_mutants = len(mutants)
    if num_mutants > arguments.most:
        mutants = random.Random(arguments.seed).sample(mutants, arguments.most)
    num_survivors = 0
    for mutant in sorted(mutants, key=lambda mutant: mutant.number):
        (folder / path).write_text(mutant.source)
        if tests.pass_():
            num_survivors += 1
            print(f"{path}:{mutant.number}: survived\n  - {mutant.former}\n  + {mutant.line}", flush=True)
    (folder / path).write_text(former)
    share = 1 - num_survivors / max(len(mutants), 1)
    print(
        f"{name}: {len(mutants) - num_survivors} of {len(mutants)} mutants noticed, {share:.1%}; "
        f"{num_mutants} in all and {len(equal)} equivalent ones, {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return share


def mutants_of(former: str) -> Iterator[Mutant]:
    """Yield every change but those that mypy answers for (annotations), and each once."""
    seen = {_meaning(former), None}
    nodes = list(ast_nodes(get_ast(former)))
    for name in plugins.operator_names():
        if not re.fullmatch("|".join(SETTINGS["operators"]), name.removeprefix("core/")):
            continue
        operator = plugins.get_operator(name)()
        for occurrence in range(sum(1 for node in nodes for _ in operator.mutation_positions(node))):
            source = mutate_code(former, operator, occurrence)
            meaning = _meaning(source)
            if meaning not in seen:
                seen.add(meaning)
                yield _mutant(former, source)


def _mutant(former: str, source: str) -> Mutant:
    before, after = former.splitlines(), source.splitlines()
    number = next(i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new)
    return Mutant(source, number + 1, before[number].strip(), after[number].strip())


def _meaning(source: str) -> str | None:
    """Return the syntax tree without annotations, as text, or None where an operator was none."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if getattr(node, "posonlyargs", None):  # an asterisk before keywords, which is no multiplication
            return None
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    return ast.dump(tree)


class Tests:
    """The tests of a module, run in forked processes."""

    def __init__(self, paths: list[str], folder: Path) -> None:
        self.folder = folder
        self.arguments = [
            "-qx",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            f"--basetemp={folder}/tests",
            *paths,
        ]
        self.limit_s = 600.0

    def prepare(self) -> None:
        """Run the tests unchanged, import here what they imported from elsewhere, and bound their time."""
        found = self.folder / "imported.json"
        if not self.pass_(lambda: found.write_text(json.dumps(_foreign_modules(self.folder)))):
            sys.exit((self.folder / "output").read_text() + "The tests fail without a mutant")
        for name in json.loads(found.read_text()):
            with suppress(Exception):
                importlib.import_module(name)
        start = time.monotonic()
        self.pass_()
        self.limit_s = 10 + 5 * (time.monotonic() - start)

    def pass_(self, after: Callable[[], Any] = lambda: None) -> bool:
        """Run the tests on the source as it is now, and tell whether all pass in time."""
        process = os.fork()
        if process == 0:
            self._run(after)
        deadline = time.monotonic() + 4 * self.limit_s  # a busy machine gives it less than a core
        while True:
            found, status = os.waitpid(process, os.WNOHANG)
            if found or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if not found:
            os.waitpid(process, 0)
        return bool(found) and status == 0

    def _run(self, after: Callable[[], Any]) -> None:
        os.setsid()
        limit_s = int(self.limit_s)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        output = os.open(self.folder / "output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = 1
        try:
            code = int(pytest.main(self.arguments))
            after()
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)


def _foreign_modules(folder: Path) -> list[str]:
    own = (str(folder), str(REPOSITORY / "tests"))
    return [
        name
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and not file.startswith(own)
    ]


if __name__ == "__main__":
    main()
