"""Result files are written whole or not at all: temporary file in the same folder, flushed, then renamed.

A full disk or an unwritable folder becomes one `UserError`; nothing half-written is left behind.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from odb_example.errors import UserError


@contextmanager
def writing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` and rename it to ``path`` when the block ends well.

    Raises:
        UserError: the folder cannot be made or written to, or the disk is full.
    """
    path = Path(path)
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}", "free some space or name another folder"
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def require_writable(folder: Path) -> None:
    """Refuse a folder that could not be made or written to. Nothing is made.

    Raises:
        UserError: what stands in its place is no folder, or takes no new entries.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is no folder"
        raise UserError(f"cannot write {folder}: {there} {why}", "name another folder")


def require_replaceable(path: Path, kind: str, begins: bytes) -> None:
    """Refuse to write a result over a file that is something else.

    Raises:
        UserError: a file is there that does not begin as a ``kind`` does (``begins``, in lower case).
    """
    if not path.is_file():
        return
    with path.open("rb") as stream:
        start = stream.read(256)
    if start.strip() and not start.lstrip().lower().startswith(begins):
        raise UserError(f"{path} is there and is no {kind}", "name another file, or move it away")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON. NaN is refused: it is no JSON, and a reader elsewhere would stumble."""
    with writing(path) as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")


def write_json_lines(path: Path, rows: Iterable[Any]) -> int:
    """Write one JSON value a line; returns the number of rows."""
    with writing(path) as stream:
        return sum(bool(stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")) for row in rows)


def read_json(path: Path) -> Any:
    """Read one JSON file.

    Raises:
        UserError: missing, not UTF-8, or not JSON; the line and column are named.
    """
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yield the value of each line; blank lines are refused, because a truncated file must not pass as a short one.

    Raises:
        UserError: naming file and line.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    yield json.loads(line.decode("utf-8"))
                except ValueError as error:
                    raise UserError(f"{path} line {number} is not JSON: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
