"""Where each line of `records.jsonl` starts: a file beside it, mapped into memory and shared by all workers.

A derived file: rebuilt when it is absent, damaged, older than the records or made for other ones. In a folder that
cannot be written to, the index lives in memory, one copy per process that opens the store.

Layout: a 64-byte header (magic, number of records, bytes of `records.jsonl`, probe of its content), then one
little-endian int64 per record plus the end of the file. Costs 8 bytes a record and one pass over the file when built.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
INDEX_NAME = "records.index"
_HEADER = struct.Struct("<8sqq32s8x")
_MAGIC = b"TMDBidx1"
_PROBES, _PROBE_BYTES, _CHUNK = 16, 4096, 1 << 22


def load_offsets(records: Path) -> Offsets:
    """Offsets of the lines of ``records``, shape (records + 1,); the last is the file's size.

    Reads the index beside the file, or builds it (and writes it where the folder allows).
    """
    index = records.with_name(INDEX_NAME)
    if index_problem(records):
        offsets = scan_offsets(records)
        if not os.access(records.parent, os.W_OK):
            return offsets
        write_index(records, offsets)
    return np.memmap(index, dtype="<i8", mode="r", offset=_HEADER.size)


def index_problem(records: Path) -> str:
    """Why the index beside ``records`` cannot be used, or nothing."""
    index = records.with_name(INDEX_NAME)
    if not index.is_file():
        return "is absent"
    with index.open("rb") as stream:
        header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return "is cut short"
    magic, count, size, probe = _HEADER.unpack(header)
    if magic != _MAGIC:
        return "is of another kind"
    if index.stat().st_size != _HEADER.size + 8 * (count + 1):
        return "is cut short"
    if index.stat().st_mtime_ns < records.stat().st_mtime_ns:
        return "is older than the records"
    if size != records.stat().st_size or probe != _probe(records):
        return "was made for other records"
    return ""


def scan_offsets(records: Path) -> Offsets:
    """Find the start of every line in one pass. A last line without a line end counts as a line."""
    size = records.stat().st_size
    ends: list[Offsets] = []
    position = 0
    with records.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            ends.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10).astype(np.int64) + position + 1)
            position += len(chunk)
    found = np.concatenate([np.zeros(1, np.int64), *ends])
    return found if found[-1] == size else np.append(found, size)


def write_index(records: Path, offsets: Offsets) -> None:
    """Write the index beside ``records``, whole or not at all; several processes may do so at once."""
    index = records.with_name(INDEX_NAME)
    header = _HEADER.pack(_MAGIC, len(offsets) - 1, records.stat().st_size, _probe(records))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{INDEX_NAME}.", dir=records.parent)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(header)
        stream.write(offsets.astype("<i8").tobytes())
    os.chmod(temporary, 0o644)
    os.replace(temporary, index)


def _probe(records: Path) -> bytes:
    """A fingerprint of the file that reads no more than 64 kB of it."""
    size = records.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    last = max(size - _PROBE_BYTES, 0)
    with records.open("rb") as stream:
        for number in range(_PROBES):
            stream.seek(last * number // (_PROBES - 1))
            digest.update(stream.read(_PROBE_BYTES))
    return digest.digest()
