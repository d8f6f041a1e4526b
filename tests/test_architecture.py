"""The layout cannot rot: layers, sizes, names and habits are checked on the source text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "vitrail"
MODULES = sorted(PACKAGE.rglob("*.py"))
ENTRY_POINTS = {"__init__", "__main__"}  # above every layer: they name what users reach
TORCH_FREE = ["__init__", "__main__", "cli", "core", "train/experiments", "train/settings", "data/settings"]
MAX_NN_PARAMETERS = 10
NOT_TORCH_FREE = {"core/boxes.py"}  # boxes are tensors
BANNED_NAMES = re.compile(r"(utils?|misc|helpers?|common)")
PICKLERS = {"pickle", "dill", "joblib", "shelve"}
READER_OF_FOREIGN_FILES = "models/weights/files.py"
MACHINE_PATH = re.compile(r"(?<![\w.~<])/(work|tmp|root|home|opt|Users)/\w")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    """Return the file or folder of the package that a module belongs to, as the layer table names it."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions_of(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def read_layers() -> dict[str, int]:
    """Read the table of docs/architecture.md: the part's name to its row, the top row first."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## Layers")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name: row for row, cell in enumerate(rows) for name in re.findall(r"`(\w+)`", cell)}


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports_of(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that are imported at run time, inside functions too."""
    if is_for_type_checkers(node):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports_of(child)


UPWARD = {  # to be taken out one by one
    ("data/builtin.py", "tasks"),
    ("data/file_places.py", "tasks"),
    ("data/locating.py", "tasks"),
    ("engines/export/comparison.py", "tasks"),
    ("engines/export/samples.py", "tasks"),
    ("engines/loading.py", "tasks"),
    ("report/plots.py", "tasks"),
}
"""Imports that point up until the part that they need has found its place."""


def imported_parts(path: Path) -> set[str]:
    parts = {name.split(".")[1] for name in imports_of(parse(path)) if name.startswith("vitrail.")}
    parts -= {other for file, other in UPWARD if file == name_of(path)}
    return parts & {part_of(other) for other in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    layers = read_layers()
    part = part_of(path)
    if part in ENTRY_POINTS:
        return
    assert part in layers, f"docs/architecture.md names no layer for {part}"

    upward = {
        other for other in imported_parts(path) if other != part and layers.get(other, 0) < layers[part]
    }

    assert not upward, f"{part} imports from higher layers: {sorted(upward)}"


def test_parts_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        if part_of(path) not in ENTRY_POINTS:
            graph.setdefault(part_of(path), set()).update(imported_parts(path) - {part_of(path)})

    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_layer_table_names_what_there_is() -> None:
    assert set(read_layers()) == {part_of(path) for path in MODULES} - ENTRY_POINTS


@pytest.mark.parametrize("part", TORCH_FREE)
def test_the_foundations_load_without_torch(part: str) -> None:
    files = [
        path
        for path in MODULES
        if re.match(rf"{part}(/|\.py)", name_of(path)) and name_of(path) not in NOT_TORCH_FREE
    ]
    assert files
    nodes = [node for path in files for node in parse(path).body]
    at_the_top = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]

    assert not [name for node in at_the_top for name in imports_of(node) if name.split(".")[0] == "torch"]


@pytest.mark.parametrize("path", sorted((PACKAGE / "nn").rglob("*.py")), ids=name_of)
def test_constructors_of_layers_have_few_parameters(path: Path) -> None:
    for function in functions_of(parse(path)):
        if function.name == "__init__":
            arguments = function.args
            given = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1
            assert given <= MAX_NN_PARAMETERS, f"line {function.lineno}: {given} parameters"


def test_no_file_or_folder_has_a_vague_name() -> None:
    paths = [path for root in ("src", "tests", "benchmarks") for path in (REPOSITORY / root).rglob("*")]

    assert not [str(path) for path in paths if BANNED_NAMES.fullmatch(path.stem)]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_prints_but_the_command_line(path: Path) -> None:
    if part_of(path) == "cli":
        return
    calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]

    assert not [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_is_pickled(path: Path) -> None:
    tree = parse(path)
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}

    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    imported = {name for name in imports_of(tree) if name.split(".")[0] in PICKLERS}

    assert "torch.save" not in attributes
    if name_of(path) == READER_OF_FOREIGN_FILES:  # PyTorch's restricted unpickler, and its error
        assert imported <= {"pickle"}
        assert all("weights_only=True" in ast.unparse(node) for node in loads)
        assert "pickle.UnpicklingError" in attributes
        assert not {"pickle.load", "pickle.loads", "pickle.Unpickler"} & attributes
    else:
        assert not loads
        assert not imported


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_everything_public_has_a_docstring(path: Path) -> None:
    tree = parse(path)
    assert ast.get_docstring(tree), "the module has none"

    missing = [
        node.name
        for node in tree.body
        if isinstance(node, Function | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]

    assert not missing


def list_text_files() -> list[Path]:
    """Return what a reader of the repository may open, without what tools leave there."""
    folders = ("src", "tests", "docs", "benchmarks", "examples", ".ci")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*")]
    files += [path for path in REPOSITORY.iterdir() if path.name not in (".git", "LICENSE")]
    return [
        path
        for path in files
        if path.is_file()
        and path.suffix in ("", ".py", ".md", ".toml", ".txt", ".cff", ".css", ".js", ".html")
    ]


def test_source_and_documents_are_ascii() -> None:
    assert not [str(path) for path in list_text_files() if not path.read_bytes().isascii()]


def test_no_path_of_a_machine_is_written_down() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in list_text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATH.search(line) and path != Path(__file__)
    ]

    assert not found
