"""Kills data builds at random moments and checks that the resumed build is the uninterrupted one, to the fingerprint.

    python benchmarks/kill_resume.py --builder miniature --kills 20

A moment is a file operation under the store's folder, drawn by seed, so that a failing one can be repeated. Each
attempt is a forked process that kills itself (SIGKILL, nothing is cleaned up) right before that operation; the next
one takes over. After the kills a last attempt runs to its end. Prints one JSON line; exit status 1 where fingerprints
or files differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import datasets
import sklearn.datasets

from odb_example.data.build_report import BuildReport
from odb_example.data.miniature import build_miniature
from odb_example.data.recipe import build_public
from odb_example.data.store import Store
from odb_example.data.verify import verify
from odb_example.settings import Settings

# Imported here for the forked attempts, which would otherwise each do it again.
PRELOADED = (datasets, sklearn.datasets)
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # 5 s after each capped source, for nothing here
# What Python announces before it touches a file (audit events); each is a moment at which a build can be cut short.
FILE_EVENTS = frozenset({"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"})

Build = Callable[[Path], BuildReport]


def miniature(path: Path) -> BuildReport:
    return build_miniature(path, records=150, seed=7, benchmark_path=path / "benchmark")


def public_from(root: str) -> Build:
    def build(path: Path) -> BuildReport:
        return build_public(Settings(data=str(path), recipe_root=root, build_workers=1, cache_dir=f"{root}-cache"))

    return build


def attempt(build: Build, path: Path, die_at: int | None) -> tuple[bool, int]:
    """One attempt in a process of its own.

    Args:
        die_at: number of the file operation it dies before; None lets it finish.

    Returns:
        whether it finished, and the file operations it made if so.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if event in FILE_EVENTS and str(arguments[0]).startswith(str(path)):
                seen += 1
                if seen == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        build(path)
        os.write(writing, str(seen).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    if status not in (0, signal.SIGKILL):
        raise RuntimeError(f"the build failed with status {status}")
    return status == 0, int(said or 0)


def content(path: Path) -> dict[str, bytes]:
    """Every file of a store by name; the index is compared by what it says, not by its time."""
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builder", choices=("miniature", "public"), default="miniature")
    parser.add_argument("--recipe-root", help="local copies of the sources, for --builder public")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    build = miniature if options.builder == "miniature" else public_from(options.recipe_root)
    folder = Path(tempfile.mkdtemp(prefix="kill-resume-"))
    try:
        verdict = run(build, folder, options.kills, random.Random(options.seed))
    finally:
        shutil.rmtree(folder)
    print(json.dumps({"builder": options.builder, **verdict}))
    return 0 if verdict["same_fingerprint"] and verdict["same_files"] and not verdict["faults"] else 1


def run(build: Build, folder: Path, kills: int, chance: random.Random) -> dict[str, object]:
    """Build once whole; then again and again, killed ``kills`` times in all, a fresh store whenever one is finished."""
    whole, broken = folder / "whole" / "store", folder / "broken" / "store"
    _, operations = attempt(build, whole, None)
    done = finished = 0
    while done < kills:
        ended, _ = attempt(build, broken, chance.randint(1, operations))
        if ended:
            # What was left was less than the operations drawn: a store finished on the way, as good as any.
            check_same(whole, broken)
            shutil.rmtree(broken.parent)
            finished += 1
        else:
            done += 1
    attempt(build, broken, None)
    return {
        "kills": done,
        "finished_on_the_way": finished,
        "file_operations": operations,
        "same_fingerprint": Store.open(whole).fingerprint == Store.open(broken).fingerprint,
        "same_files": content(whole) == content(broken),
        "faults": [str(fault) for fault in verify(broken)],
        "left_over": sorted(entry.name for entry in broken.parent.iterdir() if entry != broken),
    }


def check_same(whole: Path, other: Path) -> None:
    if content(whole) != content(other):
        raise RuntimeError("a resumed build differs from the whole one")


if __name__ == "__main__":
    sys.exit(main())
