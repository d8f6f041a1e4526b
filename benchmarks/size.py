"""Count the files and lines of Python in each folder of ``src/vitrail`` and ``tests``: ``make size``.

What else the package carries as text (tables, texts of findings, pages) is counted on a line of its own.
"""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
OTHER_TEXT = {".css", ".csv", ".html", ".js", ".toml"}


def count(paths: list[Path]) -> tuple[int, int]:
    """Return the number of files and of their lines."""
    return len(paths), sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main() -> None:
    """Print a table for the package and one for its tests."""
    for root in (REPOSITORY / "src" / "vitrail", REPOSITORY / "tests"):
        print(f"{root.relative_to(REPOSITORY).as_posix():32} {'files':>6} {'lines':>8}")
        folders: dict[str, list[Path]] = {}
        for path in sorted(root.rglob("*.py")):
            folder = "/".join(path.relative_to(root).parts[:-1][:2])  # two levels deep
            folders.setdefault(folder, []).append(path)
        for folder, paths in sorted(folders.items()):
            num_files, num_lines = count(paths)
            print(f"  {folder or '.':30} {num_files:6,} {num_lines:8,}")
        num_files, num_lines = count(sorted(root.rglob("*.py")))
        print(f"  {'all':30} {num_files:6,} {num_lines:8,}")
        num_files, num_lines = count([path for path in root.rglob("*.*") if path.suffix in OTHER_TEXT])
        print(f"  {'tables, texts and pages':30} {num_files:6,} {num_lines:8,}\n")


if __name__ == "__main__":
    main()
