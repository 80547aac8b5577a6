"""Reads a whole store once and reports every fault by record id and field; repairs nothing.

Costs one pass over the lines and the decoding of every image. What `Store.open` trusts for speed is checked here: ids,
images, checksums, counts, the index.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odb_example.data.images import ImageError, open_image
from odb_example.data.pixels import MAX_RATIO, pixel_digest
from odb_example.data.records import RecordError
from odb_example.data.store import METADATA_NAME, RECORDS_NAME, image_problem, parse_line
from odb_example.data.store_index import index_problem
from odb_example.errors import UserError
from odb_example.files import read_json


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong; ``record_id`` is empty where no record is to blame, ``line`` counts from 1."""

    record_id: str
    field: str
    problem: str
    line: int = 0


def verify(path: str | os.PathLike[str]) -> Iterator[Fault]:
    """Yield every fault of the store at ``path``; nothing where it is sound.

    Raises:
        UserError: there is no `records.jsonl` to read.
    """
    folder = Path(path).resolve()
    records = folder / RECORDS_NAME
    if not records.is_file():
        raise UserError(f"{path} is no data store: {RECORDS_NAME} is missing")
    metadata, fault = _metadata(folder)
    if fault:
        yield fault
    yield from _index_faults(records)
    check = _LineCheck(folder, str(metadata.get("image_identity", "")))
    with records.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            yield from check.faults(line, number)
    yield from _count_faults(metadata, check)


def _metadata(folder: Path) -> tuple[Mapping[str, Any], Fault | None]:
    try:
        metadata = read_json(folder / METADATA_NAME)
    except UserError as error:
        return {}, Fault("", METADATA_NAME, error.problem)
    if not isinstance(metadata, dict):
        return {}, Fault("", METADATA_NAME, "is no JSON object")
    return metadata, None


def _index_faults(records: Path) -> Iterator[Fault]:
    problem = index_problem(records)
    # No index is no fault: it is made when the store is opened.
    if problem and problem != "is absent":
        yield Fault("", "records.index", problem)


class _LineCheck:
    """Checks lines one by one and keeps what only the whole can tell."""

    def __init__(self, folder: Path, image_identity: str) -> None:
        self._folder, self._identity = folder, image_identity
        self._first_line: dict[str, int] = {}
        self._images: dict[str, str] = {}
        self.digest = hashlib.sha256()
        self.lines = 0
        self.sources: Counter[str] = Counter()

    def faults(self, line: bytes, number: int) -> Iterator[Fault]:
        self.digest.update(line)
        self.lines = number
        try:
            record = parse_line(line.removesuffix(b"\n"), f"line {number}")
        except RecordError as error:
            yield Fault(error.record_id, error.field, error.fault, number)
            return
        self.sources[record.source] += 1
        before = self._first_line.setdefault(record.id, number)
        if before != number:
            yield Fault(record.id, "id", f"is used by line {before} too", number)
        for place, relative in enumerate(record.images):
            problem = self._images.get(relative)
            if problem is None:
                problem = self._images[relative] = self._image_problem(relative)
            if problem:
                yield Fault(record.id, f"images[{place}]", problem, number)

    def _image_problem(self, relative: str) -> str:
        problem = image_problem(self._folder, relative)
        if problem:
            return problem
        data = (self._folder / relative).read_bytes()
        try:
            picture = open_image(data)
        except ImageError as error:
            return f"{relative!r}: {error}"
        width, height = picture.size
        if max(width, height) > MAX_RATIO * min(width, height):
            return f"{relative!r} is {height}x{width}, beyond the processors' ratio of {MAX_RATIO}"
        content = {
            "pixels": lambda: pixel_digest(np.asarray(picture)),
            "bytes": lambda: hashlib.sha256(data).hexdigest(),
        }.get(self._identity)
        if content and not content().startswith(Path(relative).stem):
            return f"{relative!r} is not the image it was stored as"
        return ""


def _count_faults(metadata: Mapping[str, Any], check: _LineCheck) -> Iterator[Fault]:
    if not metadata:
        return
    expected = metadata.get("num_records")
    if expected != check.lines:
        yield Fault("", "num_records", f"metadata says {expected!r}, the file has {check.lines} lines")
    if check.lines == 0:
        yield Fault("", "records", "the store is empty")
    sources = metadata.get("sources")
    if isinstance(sources, dict):
        for source in sorted(set(sources) | set(check.sources)):
            if sources.get(source, 0) != check.sources[source]:
                yield Fault(
                    "",
                    f"sources.{source}",
                    f"metadata says {sources.get(source, 0)}, the file has {check.sources[source]}",
                )
    checksum = metadata.get("records_sha256")
    if checksum is not None and checksum != check.digest.hexdigest():
        yield Fault("", "records_sha256", "the record lines are not the ones that were written")
