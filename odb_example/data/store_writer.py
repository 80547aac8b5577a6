"""The TMDB folder, written: streamed, resumable, and complete or not there at all.

Everything is collected in ``<name>.building`` beside the target, one part per source; `finish` joins the parts,
writes the metadata and renames the folder. A build that stops is taken up at the first unfinished source: that
source's part starts afresh, the images it had stored are met again by content. Another plan (sources, options,
builder) starts from nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from odb_example.data.records import Record, RecordError, path_problem, placeholder_problem
from odb_example.data.store import METADATA_NAME, RECORDS_NAME
from odb_example.data.store_index import scan_offsets, write_index
from odb_example.errors import UserError
from odb_example.files import read_json, write_json

FORMAT = "tmdb-1"
SKIPPED_NAME = "skipped.jsonl"
_PARTS, _PLAN = ".parts", "plan.json"


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image to store.

    Attributes:
        content: hex digest of what counts as the image: its pixels where we drew it, its bytes where it came as a file.
            It names the file, so an image is stored once, and it is what the fingerprint sees of it.
        suffix: file ending without dot.
    """

    data: bytes
    content: str
    suffix: str

    @property
    def path(self) -> str:
        return f"images/{self.content[:2]}/{self.content[:32]}.{self.suffix}"


@dataclass(slots=True)
class PartState:
    """What a source's part holds; written when the source is complete."""

    source: str
    records: int = 0
    images: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    digest: str = ""


class StoreWriter:
    """Writes one store, source after source, in the order of ``sources``.

    A context: entering takes up (or throws away) what a stopped build left and keeps other builds out; inside, use
    `source` for each source that is not in `finished`, then `finish`. Leaving early keeps the finished parts for the
    next attempt.

    Args:
        plan: everything that decides the content (builder version, recipe, options); a stopped build of another plan is
            thrown away, and the plan becomes part of the metadata.
    """

    def __init__(self, path: str | os.PathLike[str], *, sources: Sequence[str], plan: Mapping[str, Any]) -> None:
        self.path = Path(path).absolute()
        self.sources = tuple(sources)
        self.plan = json.loads(json.dumps({"format": FORMAT, "sources": list(sources), **plan}))
        self.building = self.path.with_name(f"{self.path.name}.building")
        self._lock = -1

    def __enter__(self) -> StoreWriter:
        try:
            self.building.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.building, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise UserError(f"another process is building {self.path}", "wait for it, or stop it") from error
        except OSError as error:
            raise UserError(f"cannot write {self.building}: {error.strerror}", "name another folder") from error
        if self._left_plan() != self.plan:
            for left in self.building.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            write_json(self.building / _PARTS / _PLAN, self.plan)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _left_plan(self) -> Any:
        file = self.building / _PARTS / _PLAN
        return read_json(file) if file.is_file() else None

    @property
    def finished(self) -> tuple[str, ...]:
        """Sources whose parts are complete."""
        return tuple(source for source in self.sources if self._state_file(source).is_file())

    def source(self, name: str) -> SourceWriter:
        """Start (or start again) the part of one source; complete when the ``with`` block ends well."""
        assert name in self.sources, name
        return SourceWriter(self.building, name, self._part_file(name), self._state_file(name))

    def finish(self, **metadata: Any) -> dict[str, Any]:
        """Join the parts, write metadata and index, and put the folder in its place.

        Args:
            metadata: further fields of `metadata.json`.

        Returns:
            the metadata as written.

        Raises:
            RecordError: an id is used twice.
        """
        assert self.finished == self.sources, "every source must be complete"
        states = [PartState(**read_json(self._state_file(source))) for source in self.sources]
        records = self.building / RECORDS_NAME
        images, checksum = self._join(records)
        self._join_listings(states)
        self._sweep(images)
        write_index(records, scan_offsets(records))
        whole = {
            "format": FORMAT,
            "num_records": sum(state.records for state in states),
            "num_images": len(images),
            "sources": {state.source: state.records for state in states},
            "skipped": {state.source: state.skipped for state in states if state.skipped},
            "records_sha256": checksum,
            "fingerprint": fingerprint(states),
            "plan": self.plan,
            **metadata,
        }
        write_json(self.building / METADATA_NAME, whole)
        shutil.rmtree(self.building / _PARTS)
        self._put_in_place()
        return whole

    def _join(self, records: Path) -> tuple[set[str], str]:
        """Write all parts into one file; returns the image paths its records name, and its SHA-256."""
        ids: set[str] = set()
        images: set[str] = set()
        checksum = hashlib.sha256()
        with records.open("wb") as stream:
            for source in self.sources:
                with self._part_file(source).open("rb") as part:
                    for line in part:
                        value = json.loads(line)
                        if value["id"] in ids:
                            raise RecordError(source, value["id"], "id", "is used twice")
                        ids.add(value["id"])
                        images.update(value["images"])
                        checksum.update(line)
                        stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        return images, checksum.hexdigest()

    def _join_listings(self, states: Sequence[PartState]) -> None:
        if any(state.skipped for state in states):
            with (self.building / SKIPPED_NAME).open("wb") as stream:
                for source in self.sources:
                    stream.write(_listing_of(self._part_file(source)).read_bytes())

    def _sweep(self, referenced: set[str]) -> None:
        """Remove images that only an interrupted part had named."""
        images = self.building / "images"
        for file in [file for file in images.rglob("*") if file.is_file()]:
            if file.relative_to(self.building).as_posix() not in referenced:
                file.unlink()

    def _put_in_place(self) -> None:
        replaced = self.path.with_name(f"{self.path.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if self.path.exists():
            os.replace(self.path, replaced)
        os.replace(self.building, self.path)
        shutil.rmtree(replaced, ignore_errors=True)

    def _part_file(self, source: str) -> Path:
        return self.building / _PARTS / f"{self.sources.index(source):02d}.jsonl"

    def _state_file(self, source: str) -> Path:
        return self._part_file(source).with_suffix(".json")


class SourceWriter:
    """One source's part: add records with their images, count what was left out."""

    def __init__(self, folder: Path, source: str, part: Path, state: Path) -> None:
        self._folder, self._part, self._state_file = folder, part, state
        self._state = PartState(source)
        self._skipped: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        self._stream: BinaryIO
        self._listing: BinaryIO

    def __enter__(self) -> SourceWriter:
        self._state_file.unlink(missing_ok=True)
        self._stream = self._part.open("wb")
        self._listing = _listing_of(self._part).open("wb")
        return self

    def add(self, record: Record, images: Sequence[StoredImage] = ()) -> None:
        """Store one record; ``images`` are its images in order, their paths already in the record.

        Raises:
            RecordError: the record would not read back.
        """
        assert [image.path for image in images] == list(record.images), record.id
        problem = placeholder_problem(record.conversations, len(record.images))
        problem = problem or next(filter(None, map(path_problem, record.images)), "")
        if problem:
            raise RecordError(str(self._part), record.id, "images", problem)
        for image in images:
            store_image(self._folder / image.path, image.data)
        line = json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
        self._digest.update(line)
        self._stream.write(line)
        self._state.records += 1
        self._state.images += len(images)

    def skip(self, row: str, reason: str, detail: str = "") -> None:
        """Count and list a row that did not become a record."""
        self._skipped[reason] += 1
        listed = {"source": self._state.source, "row": row, "reason": reason, "detail": detail}
        self._listing.write(json.dumps(listed, ensure_ascii=False).encode("utf-8") + b"\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self._stream, self._listing):
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
        if kind is None:
            self._state.skipped = dict(sorted(self._skipped.items()))
            self._state.digest = self._digest.hexdigest()
            write_json(self._state_file, asdict(self._state))


def _listing_of(part: Path) -> Path:
    return part.with_suffix(".skipped")


def standing(path: str | os.PathLike[str], plan: Mapping[str, Any], *, overwrite: bool) -> dict[str, Any] | None:
    """The metadata of the store at ``path`` if ``plan`` made it; None where a build may go ahead.

    Raises:
        UserError: another store is there and ``overwrite`` is off, or the folder holds something that is no store
        (which
            is never replaced).
    """
    folder = Path(path)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not ((folder / METADATA_NAME).is_file() and (folder / RECORDS_NAME).is_file()):
        raise UserError(f"{path} is there and is no data store", "name another folder, or move it away")
    metadata = read_json(folder / METADATA_NAME)
    if isinstance(metadata, dict) and metadata.get("plan") == plan:
        return metadata
    if not overwrite:
        raise UserError(f"{path} holds another data store", "name another folder, or give --overwrite to replace it")
    return None


def fingerprint(states: Sequence[PartState]) -> str:
    """What the data is, from what every part holds. Image paths carry the image's content, so lines cover pixels."""
    whole = hashlib.sha256()
    for state in states:
        whole.update(f"{state.source}\n{state.records}\n{state.digest}\n".encode())
    return f"tmdb:{whole.hexdigest()}"


def store_image(file: Path, data: bytes) -> None:
    """Write one image unless its content is there already; a killed process leaves no half file under the name."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, file)
