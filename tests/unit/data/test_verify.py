"""`verify` finds what was broken, names the record, and finds nothing in a sound store."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.stores import image_of, image_record, text_record, write_foreign, write_store

from odb_example.data.images import open_image
from odb_example.data.store import Store
from odb_example.data.store_writer import StoredImage
from odb_example.data.verify import Fault, verify

pytestmark = pytest.mark.unit


def encoded(image: Image.Image, form: str = "PNG", **save: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **save)  # type: ignore[arg-type]
    return stream.getvalue()


def picture(number: int) -> StoredImage:
    return image_of(encoded(Image.new("RGB", (12, 9), (number, 50, 90))))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rows = [(image_record(number, picture(number)), [picture(number)]) for number in range(6)]
    return write_store(tmp_path / "store", rows)


def rewrite(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    lines = (path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (path / "records.jsonl").write_bytes(b"".join(change(lines)))


def by_record(path: Path) -> dict[tuple[str, str], str]:
    return {(fault.record_id, fault.field): fault.problem for fault in verify(path)}


def test_a_sound_store_has_no_fault(store: Path) -> None:
    assert list(verify(store)) == []


def test_a_sound_foreign_store_has_no_fault(tmp_path: Path) -> None:
    assert list(verify(write_foreign(tmp_path / "store", [text_record(0).to_json()]))) == []


def test_a_truncated_line_is_reported_and_the_rest_still_read(store: Path) -> None:
    rewrite(store, lambda lines: [*lines[:2], lines[2][:40] + b"\n", *lines[3:]])
    faults = list(verify(store))
    assert Fault("", "(whole)", faults[1].problem, 3) in faults
    assert {fault.field for fault in faults} == {"(whole)", "records.index", "sources.pictures", "records_sha256"}


def test_an_id_used_twice_is_reported_with_both_lines(store: Path) -> None:
    rewrite(store, lambda lines: [*lines[:5], lines[1]])
    assert by_record(store)["pictures-1", "id"] == "is used by line 2 too"


def test_a_lost_line_is_a_wrong_count(store: Path) -> None:
    rewrite(store, lambda lines: lines[:-1])
    found = by_record(store)
    assert found["", "num_records"] == "metadata says 6, the file has 5 lines"
    assert found["", "sources.pictures"] == "metadata says 6, the file has 5"


def test_a_changed_answer_shows_in_the_checksum(store: Path) -> None:
    rewrite(store, lambda lines: [line.replace(b"Answer 3", b"Answer 4") for line in lines])
    assert by_record(store)["", "records_sha256"] == "the record lines are not the ones that were written"


def test_a_missing_image_is_reported_by_record(store: Path) -> None:
    (store / picture(2).path).unlink()
    assert by_record(store) == {("pictures-2", "images[0]"): f"{picture(2).path!r} is missing"}


def test_a_truncated_image_is_reported_by_record(store: Path) -> None:
    (store / picture(2).path).write_bytes(picture(2).data[:-20])
    assert list(by_record(store)) == [("pictures-2", "images[0]")]


def test_an_image_that_was_exchanged_is_reported(store: Path) -> None:
    (store / picture(2).path).write_bytes(picture(3).data)
    assert by_record(store)["pictures-2", "images[0]"] == f"{picture(2).path!r} is not the image it was stored as"


def test_a_link_out_of_the_folder_is_reported(store: Path, tmp_path: Path) -> None:
    (store / picture(2).path).unlink()
    (tmp_path / "elsewhere.png").write_bytes(picture(2).data)
    (store / picture(2).path).symlink_to(tmp_path / "elsewhere.png")
    assert by_record(store)["pictures-2", "images[0]"].endswith("is a link out of the store's folder")


def test_an_index_from_another_file_is_reported_and_not_trusted(store: Path, tmp_path: Path) -> None:
    other = write_store(tmp_path / "other", [(text_record(number), ()) for number in range(6)])
    shutil.copy(other / "records.index", store / "records.index")
    assert by_record(store) == {("", "records.index"): "was made for other records"}
    assert Store.open(store)[4].id == "pictures-4"


def test_an_empty_store_is_reported(tmp_path: Path) -> None:
    assert by_record(write_foreign(tmp_path / "store", [])) == {("", "records"): "the store is empty"}


def test_damaged_metadata_is_reported_and_the_records_still_checked(store: Path) -> None:
    (store / "metadata.json").write_text("{", encoding="utf-8")
    (store / picture(2).path).unlink()
    assert list(by_record(store)) == [("", "metadata.json"), ("pictures-2", "images[0]")]


def strip(ratio: int) -> bytes:
    return encoded(Image.new("RGB", (ratio, 1)))


def palette_image() -> bytes:
    image = Image.new("P", (9, 9), 3)
    image.putpixel((8, 8), 1)
    image.putpalette([10, 20, 30] * 4)
    return encoded(image, transparency=3)


ORIENTATION_6 = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
UNUSUAL = {
    "one pixel": encoded(Image.new("RGB", (1, 1), "red")),
    "16 bits": encoded(Image.fromarray(np.full((9, 9), 40_000, "uint16"))),
    "CMYK": encoded(Image.new("CMYK", (9, 9), (10, 200, 30, 40)), "JPEG"),
    "palette with transparency": palette_image(),
    "turned by EXIF": encoded(Image.new("RGB", (9, 5)), "JPEG", exif=ORIENTATION_6),
    "animated": encoded(Image.new("P", (9, 9), 1), "GIF", save_all=True, append_images=[Image.new("P", (9, 9), 2)]),
    "strip within the ratio": strip(200),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_images_are_stored_and_read_without_surprise(tmp_path: Path, name: str) -> None:
    image = image_of(UNUSUAL[name])
    path = write_store(tmp_path / "store", [(image_record(0, image), [image])])
    assert list(verify(path)) == []
    opened = open_image(Store.open(path).image_bytes(image.path))
    assert opened.mode == "RGB"
    expected = {"one pixel": (1, 1), "turned by EXIF": (5, 9), "strip within the ratio": (200, 1)}
    assert opened.size == expected.get(name, (9, 9))
    if name == "palette with transparency":
        assert opened.getpixel((0, 0)) == (255, 255, 255)


def bomb() -> bytes:
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    return (
        header + zlib.crc32(header[12:]).to_bytes(4, "big") + b"\0\0\0\0IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (strip(201), "beyond the processors' ratio"),
        (bomb(), "3600000000 pixels"),
        (b"", "is empty"),
        (b"hello", "not a"),
    ],
)
def test_an_image_no_processor_takes_is_known_before_training(tmp_path: Path, data: bytes, words: str) -> None:
    image = image_of(data)
    path = write_store(tmp_path / "store", [(image_record(0, image), [image])])
    assert words in by_record(path)["pictures-0", "images[0]"]


@settings(deadline=None)
@given(st.data())
def test_any_change_of_any_byte_of_the_lines_is_found(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_store(Path(folder, "store"), [(text_record(number), ()) for number in range(4)])
        lines = bytearray((path / "records.jsonl").read_bytes())
        place = data.draw(st.integers(0, len(lines) - 1))
        lines[place] ^= data.draw(st.integers(1, 255))
        (path / "records.jsonl").write_bytes(bytes(lines))
        assert any(fault.field == "records_sha256" for fault in verify(path))


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 7), st.sampled_from(["empty", "cut", "bytes", "type"]), min_size=1))
def test_every_broken_line_is_reported_and_no_sound_one(ways: dict[int, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps(text_record(number).to_json()).encode() for number in range(8)]
        for place, way in ways.items():
            lines[place] = {"empty": b"", "cut": lines[place][:-9], "bytes": b"\xff\x00", "type": b'{"id": 4}'}[way]
        faults = verify(write_foreign(Path(folder, "store"), lines))
        assert {fault.line - 1 for fault in faults} == set(ways)
