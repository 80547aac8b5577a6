"""The portable TMDB folder, read: `metadata.json`, `records.jsonl` and image files.

`Store` is a lazy sequence of records: opening reads the metadata and maps the line index; a record costs one read at a
known offset. Folders written by others are read too: only `num_records` is expected of their metadata, and where they
carry no fingerprint one is made from the record lines. What this gives up: duplicate ids and damaged images are not
noticed on opening; `odb_example.data.verify` reads everything once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from odb_example.data.records import Record, RecordError, path_problem
from odb_example.data.store_index import Offsets, load_offsets
from odb_example.errors import UserError
from odb_example.files import read_json

RECORDS_NAME, METADATA_NAME = "records.jsonl", "metadata.json"


class Store(Sequence[Record]):
    """Records by index, images by path. Picklable by path: a worker opens its own descriptor and shares the pages."""

    def __init__(self, path: Path, metadata: dict[str, Any], offsets: Offsets) -> None:
        self.path = path
        self.metadata = metadata
        self._offsets = offsets
        self._descriptor = -1

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """Open the folder ``path``.

        Raises:
            UserError: no such store, bad metadata, no records, or another number of them than the metadata says.
        """
        folder = Path(path).resolve()
        for name in (METADATA_NAME, RECORDS_NAME):
            if not (folder / name).is_file():
                raise UserError(f"{path} is no data store: {name} is missing", "build one with the data command")
        metadata = read_json(folder / METADATA_NAME)
        declared = metadata.get("num_records") if isinstance(metadata, dict) else None
        if type(declared) is not int:
            raise UserError(
                f"{folder / METADATA_NAME}, field `num_records`: a whole number is needed, got {declared!r}"
            )
        offsets = load_offsets(folder / RECORDS_NAME)
        found = len(offsets) - 1
        if found != declared:
            raise UserError(
                f"{folder}: metadata.json, field `num_records` says {declared}, records.jsonl holds {found}",
                "one of the two is cut short or from another store; build it again",
            )
        if found == 0:
            raise UserError(f"{folder} holds no records")
        return cls(folder, metadata, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return parse_line(self.raw_line(index), self.where(index))

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))

    def raw_line(self, index: int) -> bytes:
        """The bytes of record ``index`` without the line end.

        Raises:
            IndexError: past the end.
            UserError: the file changed under the index.
        """
        number = self._position(index)
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        before = min(start, 1)
        data = os.pread(self._file(), end - start + before, start - before)
        line = data[before:]
        if len(line) != end - start or data[:before] not in (b"", b"\n") or b"\n" in line[:-1]:
            raise UserError(f"{self.where(index)} does not start where the index says", "delete records.index")
        return line.removesuffix(b"\n")

    def where(self, index: int) -> str:
        """File and line of record ``index``, for messages."""
        return f"{self.path / RECORDS_NAME} line {self._position(index) + 1}"

    def image_file(self, relative: str) -> Path:
        """The file behind an image path of a record.

        Raises:
            UserError: the path leaves the folder (by itself or through a link), or no file is there.
        """
        problem = image_problem(self.path, relative)
        if problem:
            raise UserError(f"{self.path}: image {problem}")
        return self.path / relative

    def image_bytes(self, relative: str) -> bytes:
        """The content of an image file as stored."""
        return self.image_file(relative).read_bytes()

    @cached_property
    def fingerprint(self) -> str:
        """What the data is: from the metadata, or ``lines:`` and the SHA-256 of the record lines of a foreign store."""
        stated = self.metadata.get("fingerprint")
        if isinstance(stated, str) and stated:
            return stated
        digest = hashlib.sha256()
        with (self.path / RECORDS_NAME).open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
        return f"lines:{digest.hexdigest()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Store.open, (str(self.path),))

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def _position(self, index: int) -> int:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"record {index} of {count}")
        return index % count

    def _file(self) -> int:
        # `pread` has no position of its own, so forked workers and threads may share the descriptor.
        if self._descriptor < 0:
            self._descriptor = os.open(self.path / RECORDS_NAME, os.O_RDONLY)
        return self._descriptor


def parse_line(line: bytes, where: str) -> Record:
    """One line of `records.jsonl` as a record.

    Raises:
        RecordError: not UTF-8, not JSON, or not a sound record.
    """
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(where, "", "(whole)", f"not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise RecordError(where, "", "(whole)", f"not JSON: {error}") from error
    return Record.from_json(value, where)


def image_problem(folder: Path, relative: str) -> str:
    """Why an image path of the store at ``folder`` (resolved) cannot be read, or nothing."""
    problem = path_problem(relative)
    if problem:
        return problem
    place = str(folder)
    linked = False
    # The folder is resolved: only a link below it can lead out, and looking for one is cheaper than resolving all.
    for name in relative.split("/"):
        place = f"{place}{os.sep}{name}"
        linked |= os.path.islink(place)
    if linked and not os.path.realpath(place).startswith(f"{folder}{os.sep}"):
        return f"{relative!r} is a link out of the store's folder"
    if not os.path.isfile(place):
        return f"{relative!r} is missing"
    return ""
