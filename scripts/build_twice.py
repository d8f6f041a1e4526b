"""Build the sdist and the wheel twice, and keep them where both builds are the same bytes: ``make dist``.

The builds differ in what files must not depend on: the folder, the umask, the time zone, the language and the
hash seed. They are made of the last commit and bear its time; ``dist/SHA256SUMS`` lists their digests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DIST = REPOSITORY / "dist"
BUILDS = (
    ("first", 0o022, {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
    ("the second one", 0o077, {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
)


def run(*command: str, folder: Path, variables: dict[str, str] | None = None) -> bytes:
    """Run a command and return what it printed."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=folder, env=variables)
    return done.stdout


def build(folder: Path, umask: int, variables: dict[str, str]) -> dict[str, bytes]:
    """Build from the last commit inside a folder, and return the files by name."""
    source = folder / "vitrail"
    source.mkdir(parents=True)
    environment = os.environ | variables
    environment["SOURCE_DATE_EPOCH"] = (
        run("git", "log", "-1", "--format=%ct", folder=REPOSITORY).decode().strip()
    )
    archive = run("git", "archive", "HEAD", folder=REPOSITORY)
    former = os.umask(umask)
    try:
        subprocess.run(("tar", "-x", "--no-same-permissions"), input=archive, cwd=source, check=True)
        command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"))
        run(*command, folder=source, variables=environment)
    finally:
        os.umask(former)
    return {path.name: path.read_bytes() for path in sorted((folder / "dist").iterdir())}


def main() -> int:
    """Build twice; return 1 where the builds differ."""
    if changed := run("git", "status", "--porcelain", "--untracked-files=no", folder=REPOSITORY):
        print(f"not in the last commit, and so not built:\n{changed.decode()}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        first, second = (build(Path(folder, name), *how) for name, *how in BUILDS)
    differing = [name for name in first.keys() | second.keys() if first.get(name) != second.get(name)]
    if differing:
        print(f"two builds differ in {', '.join(differing)}", file=sys.stderr)
        return 1
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    digests = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in first.items())
    for name, content in first.items() | {"SHA256SUMS": digests.encode()}.items():
        (DIST / name).write_bytes(content)
    print(digests, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
