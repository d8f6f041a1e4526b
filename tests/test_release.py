"""What a release is made with cannot rot: pins, hashes, permissions, licences and versions agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vitrail

REPOSITORY = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
LOCKED = sorted((REPOSITORY / "requirements").glob("*.txt"))
OF_DEVELOPERS = {"test", "lint", "mutants", "benchmark"}


def name_of(path: Path) -> str:
    return path.name


def pinned_versions() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_actions_are_pinned_by_commit_and_jobs_name_their_permissions(path: Path) -> None:
    text = path.read_text()

    used = re.findall(r"uses: (.*)", text)
    assert used
    assert not [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)]
    assert "\npermissions: {}\n" in text
    assert text.count("    permissions:\n") == text.count("    runs-on:")
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")


def test_one_action_has_one_commit() -> None:
    used = {each for path in WORKFLOWS for each in re.findall(r"uses: (\S+)@(\S+)", path.read_text())}

    commits: dict[str, set[str]] = {}
    for action, commit in used:
        commits.setdefault("/".join(action.split("/")[:2]), set()).add(commit)
    assert not {action: found for action, found in commits.items() if len(found) > 1}


@pytest.mark.parametrize("path", LOCKED, ids=name_of)
def test_locked_packages_have_hashes_and_the_versions_of_the_constraints(path: Path) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", path.read_text().partition("make pins\n")[2])
    known = pinned_versions()

    assert len(entries) > 10
    for entry in entries:
        name, version = re.match(r"([\w.-]+)==(\S+)", entry).groups()
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), name
        assert version.removesuffix("+cpu") == known.get(name, version), name


def test_every_direct_dependency_of_users_has_a_listed_licence() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = project["dependencies"] + [
        text for extra in extras.keys() - OF_DEVELOPERS for text in extras[extra]
    ]
    names = {canonicalize_name(Requirement(text).name) for text in texts} - {"vitrail"}
    page = (REPOSITORY / "docs" / "licences.md").read_text()
    listed = re.findall(r"^\| ([\w.-]+) \| ([^|]+) \|", page, re.MULTILINE)

    assert names <= dict(listed).keys()
    assert not [name for name, licence in listed if "unknown" in licence]


def test_the_version_is_told_once() -> None:
    citation = (REPOSITORY / "CITATION.cff").read_text()
    changes = (REPOSITORY / "CHANGELOG.md").read_text()

    assert f"\nversion: {vitrail.__version__}\n" in citation
    assert re.search(r"^## (\S+?),", changes, re.MULTILINE)[1] == vitrail.__version__


def test_the_lower_bounds_are_not_above_what_is_tested() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(text for of_extra in extras for text in of_extra)]
    known = pinned_versions()

    for requirement in map(Requirement, texts):
        version = known.get(canonicalize_name(requirement.name))
        assert version is None or requirement.specifier.contains(version), str(requirement)
