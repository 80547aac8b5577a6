"""Rows of an evaluation that was stopped: kept as they are computed, taken up again only under the same key.

A folder holds one JSON-lines file a rank. Each file opens with the key (protocol version, data and checkpoint
fingerprint, the settings that move figures); a file under another key is thrown away, never mixed in. A last line
that the stop cut off is dropped. A row's name is its place in the evaluation.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from odb_example import distributed
from odb_example.distributed import Ranks

Key = Mapping[str, Any]
PARTIAL_FOLDER = ".partial"


class PartialRows:
    """Rows already computed, and a place for the next ones. Every rank opens the same folder at the same time."""

    def __init__(self, folder: Path, key: Key, ranks: Ranks) -> None:
        self._folder = folder
        self.done = read_partial(folder, key)
        distributed.barrier()  # nobody writes before everybody has read
        if ranks.is_main:
            _consolidate(folder, key, self.done)
        distributed.barrier()
        self._file = (folder / f"rank-{ranks.rank}.jsonl").open("w", encoding="utf-8")
        self._write(key)
        if self.done and ranks.is_main:
            print(f"{len(self.done)} rows of a stopped run with the same key are taken over", file=sys.stderr)

    def add(self, rows: Mapping[int, Any]) -> None:
        """Keep a batch of rows; they are on disk when this returns."""
        for number, value in rows.items():
            self._file.write(json.dumps([number, value]) + "\n")
        self._file.flush()

    def _write(self, key: Key) -> None:
        self._file.write(json.dumps(key, sort_keys=True) + "\n")
        self._file.flush()

    def __enter__(self) -> PartialRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()


def read_partial(folder: Path, key: Key) -> dict[int, Any]:
    """Rows of every file in ``folder`` whose first line is ``key``; a torn last line is passed over."""
    wanted = json.dumps(key, sort_keys=True)
    rows: dict[int, Any] = {}
    for path in sorted(folder.glob("*.jsonl")):
        first, *lines = path.read_text(encoding="utf-8").split("\n")
        if first != wanted:
            continue
        for line in lines[:-1]:  # what follows the last line end is empty, or was cut off
            number, value = json.loads(line)
            rows[number] = value
    return rows


def discard_partial(folder: Path) -> None:
    """Remove the rows once the results that hold them are written."""
    shutil.rmtree(folder, ignore_errors=True)


def _consolidate(folder: Path, key: Key, rows: Mapping[int, Any]) -> None:
    stale = list(folder.glob("*.jsonl"))
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "kept.jsonl.new"
    with kept.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(key, sort_keys=True) + "\n")
        stream.writelines(json.dumps([number, value]) + "\n" for number, value in rows.items())
    kept.replace(folder / "kept.jsonl")
    for path in stale:
        if path.name != "kept.jsonl":
            path.unlink()
