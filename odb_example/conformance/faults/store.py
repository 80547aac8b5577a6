"""Stores and splits that are nearly right."""

from __future__ import annotations

import io
import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from odb_example.conformance.faults.fault import fault
from odb_example.conformance.pipeline import Pipeline
from odb_example.data.records import Record, Turn


class Wrapped:
    """A store that passes everything on; wrong ones override a method."""

    def __init__(self, path: Path, opened: Callable[[Path], Any]) -> None:
        self.path = path
        self.inner = opened(path)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Record:
        found: Record = self.inner[index]
        return found

    def image_bytes(self, path: str) -> bytes:
        data: bytes = self.inner.image_bytes(path)
        return data


class LineStore:
    """A store that reads all lines at once and believes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = [self.parsed(line) for line in self.lines((path / "records.jsonl").read_text("utf-8"))]

    def lines(self, text: str) -> list[str]:
        return text.split("\n")[:-1]

    def parsed(self, line: str) -> Record:
        return Record.from_json(json.loads(line))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]

    def image_bytes(self, path: str) -> bytes:
        return (self.path / path).read_bytes()


def _opened_as(pipeline: Pipeline, kind: Callable[..., Any]) -> Pipeline:
    return replace(pipeline, open_store=partial(kind, opened=pipeline.part("open_store")))


@fault(caught_by="store_gives_records_back", mentions=("splitlines", "U+2028"))
def lines_parted_at_unicode_separators(pipeline: Pipeline) -> Pipeline:
    """The store's file is parted by str.splitlines, which also parts at U+2028."""
    return replace(
        pipeline, open_store=_SplitLines, write_store=partial(_written_unescaped, pipeline.part("write_store"))
    )


class _SplitLines(LineStore):
    def lines(self, text: str) -> list[str]:
        return text.splitlines()

    def parsed(self, line: str) -> Record:
        try:
            return super().parsed(line)
        except ValueError:
            return Record("broken", "probe", (Turn("human", line),))


def _written_unescaped(write: Any, folder: Path, records: Sequence[Record], images: Mapping[str, bytes]) -> None:
    write(folder, records, images)
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text("utf-8").split("\n")[:-1]]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "records.jsonl").write_text(text, "utf-8")


@fault(caught_by="store_gives_records_back", mentions="normalised")
def text_is_normalised(pipeline: Pipeline) -> Pipeline:
    """Text is brought to NFC on reading: é stays é to the eye and becomes other tokens."""
    return _opened_as(pipeline, _Normalising)


class _Normalising(Wrapped):
    def __getitem__(self, index: int) -> Record:
        found = super().__getitem__(index)
        turns = tuple(Turn(turn.role, unicodedata.normalize("NFC", turn.value)) for turn in found.conversations)
        return replace(found, conversations=turns)


@fault(caught_by="store_gives_records_back", mentions="`upstream`")
def upstream_is_dropped(pipeline: Pipeline) -> Pipeline:
    """What the source said about a record is not kept."""
    return _opened_as(pipeline, _WithoutUpstream)


class _WithoutUpstream(Wrapped):
    def __getitem__(self, index: int) -> Record:
        return replace(super().__getitem__(index), upstream={})


@fault(caught_by="store_keeps_images_bit_for_bit", mentions="encoded again")
def images_are_encoded_again(pipeline: Pipeline) -> Pipeline:
    """Sound images are decoded and written as JPEG."""
    return _opened_as(pipeline, _Reencoding)


class _Reencoding(Wrapped):
    def image_bytes(self, path: str) -> bytes:
        stream = io.BytesIO()
        Image.open(io.BytesIO(super().image_bytes(path))).convert("RGB").save(stream, "JPEG", quality=98)
        return stream.getvalue()


@fault(caught_by="store_keeps_images_bit_for_bit", mentions="changed their order")
def images_are_sorted(pipeline: Pipeline) -> Pipeline:
    """The images of a record are listed by name, not in the order of their placeholders."""
    return _opened_as(pipeline, _SortedImages)


class _SortedImages(Wrapped):
    def __getitem__(self, index: int) -> Record:
        found = super().__getitem__(index)
        return replace(found, images=tuple(sorted(found.images)))


@fault(caught_by="store_reads_anywhere", mentions="at random gives another record")
def one_offset_is_off(pipeline: Pipeline) -> Pipeline:
    """The line index is off by one from record 31 on."""
    return _opened_as(pipeline, _OffFrom31)


class _OffFrom31(Wrapped):
    def __getitem__(self, index: int) -> Record:
        return super().__getitem__(index - 1 if index >= 31 and index < len(self) else index)


@fault(caught_by="store_reads_anywhere", mentions="wraps around")
def store_wraps_around(pipeline: Pipeline) -> Pipeline:
    """Reading past the end starts again at the first record."""
    return _opened_as(pipeline, _WrapsAround)


class _WrapsAround(Wrapped):
    def __getitem__(self, index: int) -> Record:
        return super().__getitem__(index % len(self))


@fault(caught_by="store_travels_to_workers", mentions="cannot be pickled")
def store_holds_an_open_file(pipeline: Pipeline) -> Pipeline:
    """The store keeps its file open as an attribute, so that no spawned worker can have it."""
    return _opened_as(pipeline, _HoldsFile)


class _HoldsFile(Wrapped):
    def __init__(self, path: Path, opened: Callable[[Path], Any]) -> None:
        self.stream = (path / "records.jsonl").open("rb")
        super().__init__(path, opened)

    def __del__(self) -> None:
        self.stream.close()


@fault(caught_by="store_refuses_other_counts", mentions="num_records")
def counts_are_not_compared(pipeline: Pipeline) -> Pipeline:
    """A store that was cut short is opened as it is."""
    return replace(pipeline, open_store=LineStore)


@fault(caught_by="store_names_the_damaged_record", mentions="read over")
def damaged_records_are_skipped(pipeline: Pipeline) -> Pipeline:
    """Lines that cannot be read are left out without a word."""
    return replace(pipeline, open_store=_Skipping)


class _Skipping(LineStore):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = []
        for line in (path / "records.jsonl").read_bytes().split(b"\n")[:-1]:
            try:
                self.records.append(Record.from_json(json.loads(line)))
            except Exception:  # noqa: BLE001 - this is the fault
                continue


@fault(caught_by="store_stays_in_its_folder", mentions="out of the store")
def paths_are_joined_unchecked(pipeline: Pipeline) -> Pipeline:
    """An image path of a record may lead anywhere on the machine."""
    return replace(pipeline, open_store=_Trusting)


class _Trusting(LineStore):
    def parsed(self, line: str) -> Record:
        value = json.loads(line)
        turns = tuple(Turn(turn["from"], turn["value"]) for turn in value["conversations"])
        return Record(value["id"], value["source"], turns, tuple(value["images"]), value["upstream"])


@fault(caught_by="split_is_the_stated_rule", mentions="held-out records are trained on")
def one_held_out_record_trains(pipeline: Pipeline) -> Pipeline:
    """The two sides of the split share the record at their border."""
    return replace(pipeline, split=partial(_overlapping, pipeline.part("split")))


def _overlapping(split: Any, records: int, val_size: float, seed: int) -> Any:
    train, held_out = split(records, val_size, seed)
    return [held_out[-1], *train], held_out


@fault(caught_by="split_is_the_stated_rule", mentions="legacy RandomState")
def split_by_the_legacy_generator(pipeline: Pipeline) -> Pipeline:
    """The permutation is numpy.random.RandomState's."""
    return replace(pipeline, split=_legacy_split)


def _legacy_split(records: int, val_size: float, seed: int) -> Any:
    order = np.random.RandomState(seed).permutation(records).tolist()
    count = min(max(int(val_size if val_size > 1 else records * val_size), 1), records - 1)
    return order[count:], order[:count]


@fault(caught_by="split_is_the_stated_rule", mentions="rounded")
def held_out_share_is_rounded(pipeline: Pipeline) -> Pipeline:
    """The held-out share is rounded to the nearest, not down: one record more now and then."""
    return replace(pipeline, split=_rounded_split)


def _rounded_split(records: int, val_size: float, seed: int) -> Any:
    order = np.random.default_rng(seed).permutation(records).tolist()
    count = min(max(round(val_size if val_size > 1 else records * val_size), 1), records - 1)
    return order[count:], order[:count]
