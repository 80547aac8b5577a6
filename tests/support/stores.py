"""Small real stores, written record by record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from odb_example.data.records import Record, Turn
from odb_example.data.store_writer import StoredImage, StoreWriter


def text_record(number: int, *, source: str = "notes", answer: str = "Yes.") -> Record:
    """A record without images."""
    turns = (Turn("human", f"Question {number}?"), Turn("gpt", answer))
    return Record(f"{source}-{number}", source, turns, (), {"row": number})


def image_of(data: bytes, suffix: str = "png") -> StoredImage:
    """An image addressed by its bytes."""
    return StoredImage(data, hashlib.sha256(data).hexdigest(), suffix)


def image_record(number: int, *images: StoredImage, source: str = "pictures") -> Record:
    """A record that shows ``images``."""
    turns = (Turn("human", "<image>" * len(images) + f"\nQuestion {number}?"), Turn("gpt", f"Answer {number}."))
    return Record(f"{source}-{number}", source, turns, tuple(image.path for image in images))


def write_store(path: Path, rows: Sequence[tuple[Record, Sequence[StoredImage]]]) -> Path:
    """A store of ``rows``, all of the source of the first."""
    source = rows[0][0].source if rows else "notes"
    with StoreWriter(path, sources=[source], plan={"recipe": "test"}) as writer:
        with writer.source(source) as part:
            for record, images in rows:
                part.add(record, images)
        writer.finish(image_identity="bytes")
    return path


def write_foreign(path: Path, lines: Sequence[Mapping[str, Any] | bytes], *, num_records: int | None = None) -> Path:
    """A store as somebody else writes it: no index, no checksum, the bare count; ``bytes`` lines go in as they are."""
    path.mkdir(parents=True)
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (path / "records.jsonl").write_bytes(b"".join(line + b"\n" for line in encoded))
    count = len(lines) if num_records is None else num_records
    (path / "metadata.json").write_text(json.dumps({"num_records": count}), encoding="utf-8")
    return path
