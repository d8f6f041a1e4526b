"""The layout cannot rot: layers, names and habits are checked on the source text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "vitrail"
MODULES = sorted(PACKAGE.rglob("*.py"))
ENTRY_POINTS = {"__init__", "__main__"}  # above every layer: they name what users reach
TORCH_FREE = ["__init__", "__main__", "cli", "core", "train/settings", "data/settings"]
MAX_NN_PARAMETERS, MAX_NAMES_AT_THE_TOP = 10, 16
NOT_TORCH_FREE = {"core/boxes.py"}  # boxes are tensors
BANNED_NAMES = re.compile(r"(utils?|misc|helpers?|common)")
PICKLERS = {"pickle", "dill", "joblib", "shelve"}
READER_OF_FOREIGN_FILES = "models/weights/files.py"
READER_OF_PLAIN_PICKLES = "tasks/classification/formats/cifar.py"
MACHINE_PATH = re.compile(r"(?<![\w.~<])/(work|tmp|root|home|opt|Users)/\w")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    """Return the file or folder of the package that a module belongs to, as the layer table names it."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


PARTS = {part_of(path) for path in MODULES}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(path)))


def read_layers() -> dict[str, int]:
    """Read the table of docs/architecture.md: the part's name to its row, the top row first."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## Layers")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name: row for row, cell in enumerate(rows) for name in re.findall(r"`(\w+)`", cell)}


def imports_of(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that are imported at run time, inside functions too."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # the larger part of a tree, without imports
            yield from imports_of(child)


@cache
def imported_parts(path: Path) -> frozenset[str]:
    parts = {name.split(".")[1] for name in imports_of(parse(path)) if name.startswith("vitrail.")}
    return frozenset(parts & PARTS)


def test_imports_point_down() -> None:
    layers = read_layers()

    upward = {
        name_of(path): [other for other in imported_parts(path) if layers[other] < layers[part_of(path)]]
        for path in MODULES
        if part_of(path) not in ENTRY_POINTS
    }

    assert not {name: others for name, others in upward.items() if others}


def test_parts_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        if part_of(path) not in ENTRY_POINTS:
            graph.setdefault(part_of(path), set()).update(imported_parts(path) - {part_of(path)})

    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_layer_table_names_what_there_is() -> None:
    assert set(read_layers()) == {part_of(path) for path in MODULES} - ENTRY_POINTS


def test_the_package_has_few_names_at_its_top() -> None:
    assert len([path for path in PACKAGE.iterdir() if path.name != "__pycache__"]) <= MAX_NAMES_AT_THE_TOP


def test_the_foundations_load_without_torch() -> None:
    for part in TORCH_FREE:
        files = [
            path
            for path in MODULES
            if re.match(rf"{part}(/|\.py)", name_of(path)) and name_of(path) not in NOT_TORCH_FREE
        ]
        assert files, part
        for path in files:
            at_the_top = [node for node in parse(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
            names = [name for node in at_the_top for name in imports_of(node)]
            assert not [name for name in names if name.split(".")[0] == "torch"], name_of(path)


def test_constructors_of_layers_have_few_parameters() -> None:
    for path in (PACKAGE / "nn").rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                given = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) - 1
                assert given <= MAX_NN_PARAMETERS, f"{name_of(path)}:{node.lineno}: {given} parameters"


def test_no_file_or_folder_has_a_vague_name() -> None:
    roots = ("src", "tests", "benchmarks", "scripts")
    paths = [path for root in roots for path in (REPOSITORY / root).rglob("*")]

    assert not [str(path) for path in paths if BANNED_NAMES.fullmatch(path.stem)]


def test_nothing_prints_but_the_command_line() -> None:
    printing = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        if part_of(path) != "cli"
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]

    assert not printing


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        nodes = nodes_of(path)
        attributes = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
        imported = {name for name in imports_of(parse(path)) if name.split(".")[0] in PICKLERS}

        assert "torch.save" not in attributes, name_of(path)
        if name_of(path) == READER_OF_FOREIGN_FILES:  # PyTorch's restricted unpickler, and its error
            assert imported <= {"pickle"}
            assert all("weights_only=True" in ast.unparse(node) for node in loads)
            assert "pickle.UnpicklingError" in attributes
            assert not {"pickle.load", "pickle.loads", "pickle.Unpickler"} & attributes
        elif name_of(path) == READER_OF_PLAIN_PICKLES:  # an unpickler that finds no class but its own
            assert imported == {"pickle"}
            assert not loads
            assert {name for name in attributes if name.startswith("pickle.")} == {"pickle.Unpickler"}
            assert "find_class" in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        else:
            assert not loads, name_of(path)
            assert not imported, name_of(path)


def test_layers_and_models_are_plain_torch() -> None:
    """Speed is swapped in from ``engines/``: no kernel is named, and no path chosen, by how torch runs."""
    forbidden = re.compile(r"torch\.ops\.|\bis_grad_enabled\b|\bis_compiling\b|\bis_exporting\b")

    found = [
        f"{name_of(path)}:{number}"
        for path in MODULES
        if part_of(path) in ("nn", "models")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if forbidden.search(line)
    ]

    assert not found


def test_nothing_outside_tasks_asks_for_a_task_by_its_name() -> None:
    tasks = {path.parent.name for path in (PACKAGE / "tasks").glob("*/task.py")}
    assert len(tasks) >= 5

    asking = {
        name_of(path)
        for path in MODULES
        if part_of(path) != "tasks"
        for node in nodes_of(path)
        if isinstance(node, ast.Compare | ast.Dict)
        or (isinstance(node, ast.Subscript) and ast.unparse(node.value) == "TASKS")
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and constant.value in tasks
    }

    assert not asking


def test_everything_public_has_a_docstring() -> None:
    missing = [
        f"{name_of(path)}:{getattr(node, 'name', 1)}"
        for path in MODULES
        for node in (parse(path), *parse(path).body)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not getattr(node, "name", "").startswith("_")
        and not ast.get_docstring(node)
    ]

    assert not missing


def list_text_files() -> list[Path]:
    """Return what a reader of the repository may open, without what tools leave there."""
    folders = ("src", "tests", "docs", "benchmarks", "examples", "scripts", "requirements", ".ci", ".github")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*")]
    files += [path for path in REPOSITORY.iterdir() if path.name not in (".git", "LICENSE")]
    return [
        path
        for path in files
        if path.is_file()
        and path.suffix in ("", ".py", ".md", ".toml", ".txt", ".in", ".yml", ".cff", ".css", ".js", ".html")
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
