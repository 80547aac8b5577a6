"""The store gives back what was written, at any place, and refuses what is damaged; the split is the stated rule."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from odb_example.conformance.check import needs
from odb_example.conformance.expect import expect, expect_equal, expect_refused
from odb_example.conformance.pipeline import Pipeline
from odb_example.conformance.probes import AWKWARD_RECORDS, PICTURES, record
from odb_example.data.records import Record


@contextmanager
def written(pipeline: Pipeline, records: tuple[Record, ...] = AWKWARD_RECORDS) -> Iterator[Path]:
    """A store of ``records`` in a folder that is gone afterwards."""
    assert pipeline.write_store is not None
    with TemporaryDirectory(prefix="odb-conformance-") as folder:
        path = Path(folder) / "store"
        pipeline.write_store(path, records, {name: PICTURES[name] for item in records for name in item.images})
        yield path


@needs("write_store", "open_store")
def store_gives_records_back(pipeline: Pipeline) -> None:
    """A record is read back as it was written, whatever its text, turns and images."""
    with written(pipeline) as path:
        store = _open(pipeline, path)
        expect_equal(
            len(store),
            len(AWKWARD_RECORDS),
            claim="the store holds another number of records than were written",
            likely="a record was dropped, or lines are parted at other characters than \\n "
            "(str.splitlines also parts at U+2028 and \\x85)",
        )
        for index, wrote in enumerate(AWKWARD_RECORDS):
            came = _read(pipeline, store, index, wrote)
            expect_equal(
                came.id,
                wrote.id,
                claim=f"record {index} is another one",
                likely="records were reordered or the line index is off by one",
            )
            expect_equal(
                [turn.value for turn in came.conversations],
                [turn.value for turn in wrote.conversations],
                unit="turn",
                claim=f"text of record {wrote.id} changed in the store",
                likely="text is stripped, normalised (NFC) or its line ends are translated; store text as it is",
            )
            expect_equal(
                dict(came.upstream),
                dict(wrote.upstream),
                claim=f"`upstream` of record {wrote.id} changed",
                likely="what the source said about a record is dropped on writing or reading",
            )


@needs("write_store", "open_store")
def store_keeps_images_bit_for_bit(pipeline: Pipeline) -> None:
    """The bytes of an image come back as they were."""
    with written(pipeline) as path:
        store = _open(pipeline, path)
        wrote = AWKWARD_RECORDS[1].images
        came = [store.image_bytes(name) for name in store[1].images]
        expected = [PICTURES[name] for name in wrote]
        reordered = came != expected and sorted(came) == sorted(expected)
        expect_equal(
            came,
            expected,
            unit="image",
            claim=f"images of record {AWKWARD_RECORDS[1].id} changed {'their order' if reordered else 'in the store'}",
            likely="paths are sorted or kept in a set; their order is the order of the placeholders"
            if reordered
            else "sound images are decoded and encoded again, or one is missing; keep the original bytes",
        )


@needs("write_store", "open_store")
def store_reads_anywhere(pipeline: Pipeline) -> None:
    """Reading at random gives what reading in order gives, and past the end is an error."""
    records = tuple(record(f"question {number}", "x" * (number % 7), name=f"r{number}") for number in range(40))
    with written(pipeline, records) as path:
        store = _open(pipeline, path)
        for index in np.random.default_rng(0).permutation(len(records)).tolist():
            expect_equal(
                store[index].id,
                records[index].id,
                claim=f"reading record {index} at random gives another record",
                likely="an offset of the index is off, or a cursor is shared between reads",
            )
        expect_equal(
            store[-1].id,
            records[-1].id,
            claim="index -1 is not the last record",
            likely="negative indices are not counted from the end",
        )
        expect_refused(
            lambda: store[len(records)],
            claim="reading past the end gives a record",
            likely="the index wraps around; raise IndexError, or loops over the data never end",
            by=IndexError,
        )


@needs("write_store", "open_store")
def store_travels_to_workers(pipeline: Pipeline) -> None:
    """A pickled store reads the same: loader processes under spawn get it that way."""
    with written(pipeline) as path:
        store = _open(pipeline, path)
        expect_equal(
            _pickled(store)[3].id,
            AWKWARD_RECORDS[3].id,
            claim="a pickled store reads other records",
            likely="the copy lost its place; pickle the path and open again",
        )


@needs("write_store", "open_store")
def store_refuses_other_counts(pipeline: Pipeline) -> None:
    """A store cut short is refused, with both numbers."""
    with written(pipeline) as path:
        lines = _lines(path)
        (path / "records.jsonl").write_bytes(b"".join(lines[:-2]))
        _forget_index(path)
        expect_refused(
            lambda: _read_all(pipeline, path),
            claim=f"a store of {len(lines) - 2} records whose metadata says {len(lines)} is taken as whole",
            likely="`num_records` of metadata.json is not compared with records.jsonl; half a copy trains silently",
            mentions=(str(len(lines)), str(len(lines) - 2)),
            by=pipeline.refusal,
        )


@needs("write_store", "open_store")
def store_names_the_damaged_record(pipeline: Pipeline) -> None:
    """A line that is no record is refused and said where, never left out."""
    for what, line in (
        ("a line cut in half", b'{"id": "broken", "source": "probe", "conv\n'),
        ("a line that is not UTF-8", b'{"id": "broken", "source": "\xff", "conversations": [], "images": []}\n'),
        ("a turn of an unknown role", _line(record("a", "b"), conversations=[{"from": "system", "value": "x"}])),
        ("a placeholder too few", _line(record("a", "b"), images=["images/none.png"])),
    ):
        with written(pipeline) as path:
            lines = _lines(path)
            lines[4] = line
            (path / "records.jsonl").write_bytes(b"".join(lines))
            _forget_index(path)
            expect_refused(
                lambda path=path: _read_all(pipeline, path),  # type: ignore[misc]
                claim=f"{what} is read over",
                likely="errors while reading a record are swallowed; what is left out is never missed",
                mentions=("5",),
                by=pipeline.refusal,
            )


@needs("write_store", "open_store")
def store_stays_in_its_folder(pipeline: Pipeline) -> None:
    """An image path that leads out of the store is refused."""
    for outside in ("../secret.png", "/etc/hostname", "images/../../secret.png"):
        with written(pipeline) as path:
            (path.parent / "secret.png").write_bytes(PICTURES["a.png"])
            lines = _lines(path)
            lines[0] = _line(record("<image>", "b"), images=[outside])
            (path / "records.jsonl").write_bytes(b"".join(lines))
            _forget_index(path)
            expect_refused(
                lambda path=path: [  # type: ignore[misc]
                    store.image_bytes(name) for store in [_open(pipeline, path)] for name in store[0].images
                ],
                claim=f"the image path {outside} is followed out of the store",
                likely="paths of a downloaded store are joined unchecked; any file of the machine can enter training",
                by=pipeline.refusal,
            )


@needs("split")
def split_is_the_stated_rule(pipeline: Pipeline) -> None:
    """Held-out records are the first share of one seeded permutation; all others train, none does both."""
    assert pipeline.split is not None
    for records, val_size, seed in ((100, 0.05, 42), (137, 0.2, 7), (50, 12.0, 42), (10, 0.01, 1), (400, 0.0499, 42)):
        train, held_out = (list(map(int, side)) for side in pipeline.split(records, val_size, seed))
        case = f"{records} records, val_size {val_size:g}, seed {seed}"
        both = sorted(set(train) & set(held_out))
        expect(
            not both,
            claim=f"{len(both)} held-out records are trained on ({case})",
            expected="no index on both sides",
            came=both[:5],
            likely="the two sides overlap at their border; validation loss is then too good",
        )
        order = np.random.default_rng(seed).permutation(records).tolist()
        count = min(max(int(val_size if val_size > 1 else records * val_size), 1), records - 1)
        likely = _split_cause(held_out, records, val_size, seed, count)
        expect_equal(held_out, order[:count], claim=f"other records are held out ({case})", likely=likely)
        expect_equal(train, order[count:], claim=f"other records are trained on ({case})", likely=likely)


def _split_cause(held_out: list[int], records: int, val_size: float, seed: int, count: int) -> str:
    legacy = np.random.RandomState(seed).permutation(records).tolist()
    if held_out == legacy[: len(held_out)]:
        return "numpy's legacy RandomState gives another permutation than default_rng"
    if len(held_out) != count and val_size < 1:
        return f"the share is rounded otherwise: int({records * val_size:g}) = {count}, at least 1"
    return "the rule is numpy.random.default_rng(seed).permutation(n), its first share held out, in that order"


def _read(pipeline: Pipeline, store: Any, index: int, wrote: Record) -> Record:
    try:
        read: Record = store[index]
    except pipeline.refusal as error:
        expect(
            False,
            claim=f"record {wrote.id}, which was written, cannot be read",
            came=str(error),
            likely="text is cut at line separators other than \\n, or not escaped on writing",
        )
    return read


def _pickled(value: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(value))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        expect(
            False,
            claim="the store cannot be pickled",
            came=str(error),
            likely="it holds an open file, a lambda or a local class; loader workers under spawn cannot start",
        )


def _open(pipeline: Pipeline, path: Path) -> Any:
    assert pipeline.open_store is not None
    return pipeline.open_store(path)


def _read_all(pipeline: Pipeline, path: Path) -> list[Record]:
    store = _open(pipeline, path)
    return [store[index] for index in range(len(store))]


def _lines(path: Path) -> list[bytes]:
    return (path / "records.jsonl").read_bytes().splitlines(keepends=True)


def _line(item: Record, **changes: Any) -> bytes:
    return json.dumps({**item.to_json(), **changes}).encode() + b"\n"


def _forget_index(path: Path) -> None:
    # What a store keeps beside the two files of the format is its own and made anew.
    for file in path.iterdir():
        if file.is_file() and file.name not in ("records.jsonl", "metadata.json"):
            file.unlink()
