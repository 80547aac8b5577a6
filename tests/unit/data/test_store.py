"""Stores, ours and others': what is written is read back, what is broken is named."""

from __future__ import annotations

import io
import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.stores import image_of, image_record, text_record, write_foreign, write_store
from unit.data.test_records import records

from odb_example.data.records import Record, RecordError
from odb_example.data.store import Store
from odb_example.data.store_index import index_problem
from odb_example.data.store_writer import StoredImage, StoreWriter, standing
from odb_example.errors import UserError

pytestmark = pytest.mark.unit


def png(colour: int, size: tuple[int, int] = (9, 7)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (colour, 10, 10)).save(stream, "PNG")
    return stream.getvalue()


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=5))
def test_every_record_written_is_read_back_equal(drawn: list[Record]) -> None:
    rows = []
    for number, record in enumerate(drawn):
        images = [StoredImage(b"x", f"{number:02x}{place:02x}" * 16, "png") for place in range(len(record.images))]
        paths = tuple(image.path for image in images)
        rows.append((Record(f"{number}-{record.id}", "s", record.conversations, paths, record.upstream), images))
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(write_store(Path(folder, "store"), rows))
        assert list(store) == [record for record, _ in rows]
        assert [store.image_bytes(path) for record in store for path in record.images] == [
            image.data for _, images in rows for image in images
        ]


def test_records_are_reached_by_index_from_either_end(tmp_path: Path) -> None:
    store = Store.open(write_store(tmp_path / "store", [(text_record(number), ()) for number in range(20)]))
    assert len(store) == 20
    assert store[7] == text_record(7)
    assert store[-1] == text_record(19)
    assert store[18:] == [text_record(18), text_record(19)]
    assert json.loads(store.raw_line(3))["id"] == "notes-3"
    for past in (20, -21):
        with pytest.raises(IndexError):
            store[past]


def test_a_store_travels_to_another_process_by_path(tmp_path: Path) -> None:
    store = Store.open(write_store(tmp_path / "store", [(text_record(number), ()) for number in range(3)]))
    there = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 1000
    assert list(there) == list(store)
    assert there.fingerprint == store.fingerprint


def test_a_folder_written_by_others_is_read_and_indexed(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "store", [text_record(number).to_json() for number in range(5)])
    store = Store.open(path)
    assert [record.id for record in store] == [f"notes-{number}" for number in range(5)]
    assert store.fingerprint.startswith("lines:")
    assert index_problem(path / "records.jsonl") == ""


def test_a_last_line_without_line_end_is_a_record(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "store", [text_record(number).to_json() for number in range(3)])
    whole = (path / "records.jsonl").read_bytes()
    (path / "records.jsonl").write_bytes(whole.rstrip(b"\n"))
    assert Store.open(path)[2] == text_record(2)


@pytest.mark.parametrize("newer", [True, False])
def test_an_index_of_other_records_is_rebuilt(tmp_path: Path, newer: bool) -> None:
    path = write_foreign(tmp_path / "store", [text_record(number).to_json() for number in range(4)])
    Store.open(path)
    other = [text_record(number, answer="An answer of another length.").to_json() for number in range(4)]
    (path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in other), encoding="utf-8")
    stamp = 1_000_000_000 if newer else 3_000_000_000
    os.utime(path / "records.jsonl", (stamp, stamp))
    assert index_problem(path / "records.jsonl")
    assert [record.conversations[1].value for record in Store.open(path)] == ["An answer of another length."] * 4
    if newer:
        assert index_problem(path / "records.jsonl") == ""


@given(st.binary(max_size=200))
def test_a_damaged_index_never_gives_other_records(garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_foreign(Path(folder, "store"), [text_record(number).to_json() for number in range(3)])
        (path / "records.index").write_bytes(garbage)
        assert [record.id for record in Store.open(path)] == ["notes-0", "notes-1", "notes-2"]


def test_records_that_change_under_an_open_store_are_noticed(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "store", [text_record(number).to_json() for number in range(4)])
    store = Store.open(path)
    whole = (path / "records.jsonl").read_bytes()
    with (path / "records.jsonl").open("r+b") as stream:
        stream.write(b" " + whole[:-1])
    with pytest.raises(UserError, match="line 2 does not start where the index says"):
        store[1]


def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "store", [text_record(number).to_json() for number in range(3)])
    path.chmod(0o555)
    try:
        assert Store.open(path)[2] == text_record(2)
    finally:
        path.chmod(0o755)


BROKEN_LINES: list[tuple[bytes, str, str]] = [
    (b'{"id": "x", "source": "s", "conv', "(whole)", "not JSON"),
    (b'{"id": "\xff\xfe"}', "(whole)", "not UTF-8"),
    (b"", "(whole)", "not JSON"),
    (b"[1, 2]", "(whole)", "a JSON object is needed"),
    (b'{"id": "x", "source": 3, "conversations": [], "images": []}', "source", "a string is needed"),
    (b'{"id": "x", "source": "s", "conversations": null, "images": []}', "conversations", "a list of turns"),
]


@pytest.mark.parametrize(("line", "field", "words"), BROKEN_LINES)
def test_a_broken_line_is_one_error_that_names_line_and_field(
    tmp_path: Path, line: bytes, field: str, words: str
) -> None:
    store = Store.open(write_foreign(tmp_path / "store", [text_record(0).to_json(), line, text_record(2).to_json()]))
    assert store[0] == text_record(0)
    assert store[2] == text_record(2)
    with pytest.raises(RecordError, match=words) as raised:
        store[1]
    assert raised.value.field == field
    assert "records.jsonl line 2" in str(raised.value)


@given(st.binary(max_size=60).filter(lambda line: b"\n" not in line))
def test_any_bytes_for_a_line_are_a_record_error_or_a_record(line: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(write_foreign(Path(folder, "store"), [text_record(0).to_json(), line]))
        with pytest.raises(RecordError):
            store[1]


def test_opening_refuses_what_is_no_store(tmp_path: Path) -> None:
    record = text_record(0).to_json()
    for number, (files, words) in enumerate(
        [
            ({}, "metadata.json is missing"),
            ({"metadata.json": "{}"}, "records.jsonl is missing"),
            ({"metadata.json": "{", "records.jsonl": ""}, "is not JSON"),
            ({"metadata.json": "[]", "records.jsonl": ""}, "field `num_records`"),
            ({"metadata.json": '{"num_records": "3"}', "records.jsonl": ""}, "field `num_records`"),
            ({"metadata.json": '{"num_records": true}', "records.jsonl": ""}, "field `num_records`"),
            ({"metadata.json": '{"num_records": 0}', "records.jsonl": ""}, "holds no records"),
            ({"metadata.json": '{"num_records": 2}', "records.jsonl": json.dumps(record) + "\n"}, "says 2.* holds 1"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=words):
            Store.open(folder)


def test_images_outside_the_folder_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(1))
    path = write_store(tmp_path / "store", [(image_record(0, image_of(png(2))), [image_of(png(2))])])
    (path / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    (path / "images" / "within.png").symlink_to(path / image_of(png(2)).path)
    (path / "images" / "folder").symlink_to(tmp_path)
    store = Store.open(path)
    assert store.image_bytes("images/within.png") == png(2)
    for relative, words in [
        ("../secret.png", "leaves the store"),
        (str(tmp_path / "secret.png"), "not a relative path"),
        ("images/link.png", "link out of the store"),
        ("images/folder/secret.png", "link out of the store"),
        ("images/none.png", "is missing"),
        ("images", "is missing"),
    ]:
        with pytest.raises(UserError, match=words):
            store.image_bytes(relative)


def test_an_image_used_twice_is_stored_once(tmp_path: Path) -> None:
    one, two = image_of(png(1)), image_of(png(2))
    path = write_store(tmp_path / "store", [(image_record(0, one, two), [one, two]), (image_record(1, one), [one])])
    assert len([file for file in (path / "images").rglob("*") if file.is_file()]) == 2
    assert Store.open(path).metadata["num_images"] == 2


def test_an_unfinished_build_is_no_store_and_is_taken_up(tmp_path: Path) -> None:
    path, plan = tmp_path / "store", {"recipe": "test"}
    kept = image_of(png(1))
    with StoreWriter(path, sources=["a", "b"], plan=plan) as writer:
        with writer.source("a") as part:
            part.add(image_record(0, kept, source="a"), [kept])
        with pytest.raises(RuntimeError, match="power cut"), writer.source("b") as part:  # noqa: PT012
            part.add(text_record(0, source="b"))
            raise RuntimeError("power cut")
    assert not path.exists()
    with StoreWriter(path, sources=["a", "b"], plan=plan) as again:
        assert again.finished == ("a",)
        with again.source("b") as part:
            part.add(text_record(1, source="b"))
        metadata = again.finish()
    assert [record.id for record in Store.open(path)] == ["a-0", "b-1"]
    assert metadata["sources"] == {"a": 1, "b": 1}
    assert not again.building.exists()


def test_images_of_a_stopped_part_that_no_record_names_are_swept(tmp_path: Path) -> None:
    orphan = image_of(png(1))
    with StoreWriter(tmp_path / "store", sources=["a"], plan={}) as writer:
        with pytest.raises(RuntimeError), writer.source("a") as part:  # noqa: PT012
            part.add(image_record(0, orphan, source="a"), [orphan])
            raise RuntimeError
        with writer.source("a") as part:
            part.add(text_record(0, source="a"))
        writer.finish()
    assert not (tmp_path / "store" / orphan.path).exists()


def test_another_plan_starts_from_nothing(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store", sources=["a"], plan={"seed": 1}) as writer, writer.source("a") as part:
        part.add(text_record(0, source="a"))
    with StoreWriter(tmp_path / "store", sources=["a"], plan={"seed": 2}) as writer:
        assert writer.finished == ()


def test_two_builds_at_once_are_refused(tmp_path: Path) -> None:
    with (
        StoreWriter(tmp_path / "store", sources=["a"], plan={}),
        pytest.raises(UserError, match="another process is building"),
        StoreWriter(tmp_path / "store", sources=["a"], plan={}),
    ):
        raise AssertionError("the second build went ahead")


def test_a_doubled_id_stops_the_build(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="record 'notes-1', field `id`: is used twice"):
        write_store(tmp_path / "store", [(text_record(1), ()), (text_record(1), ())])


def test_the_fingerprint_follows_every_part_of_the_data(tmp_path: Path) -> None:
    one, two = image_of(png(1)), image_of(png(2))
    contents: dict[str, Any] = {
        "plain": [(text_record(0), ())],
        "answer": [(text_record(0, answer="No."), ())],
        "order": [(text_record(1), ()), (text_record(0), ())],
        "both": [(text_record(0), ()), (text_record(1), ())],
        "picture one": [(image_record(0, one), [one])],
        "picture two": [(image_record(0, two), [two])],
    }
    prints = {name: Store.open(write_store(tmp_path / name, rows)).fingerprint for name, rows in contents.items()}
    assert len(set(prints.values())) == len(contents)
    assert Store.open(write_store(tmp_path / "again", contents["plain"])).fingerprint == prints["plain"]


def test_only_the_same_plan_or_an_order_to_overwrite_lets_a_build_touch_a_folder(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [(text_record(0), ())])
    plan = Store.open(store).metadata["plan"]
    assert standing(tmp_path / "new", plan, overwrite=False) is None
    found = standing(store, plan, overwrite=False)
    assert found is not None
    assert found["num_records"] == 1
    assert standing(store, {"another": 1}, overwrite=True) is None
    with pytest.raises(UserError, match="another data store"):
        standing(store, {"another": 1}, overwrite=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="is no data store"):
            standing(tmp_path / "home", plan, overwrite=overwrite)


def test_offsets_are_shared_memory_not_a_copy(tmp_path: Path) -> None:
    store = Store.open(write_store(tmp_path / "store", [(text_record(number), ()) for number in range(3)]))
    assert isinstance(store._offsets, np.memmap)
