"""Result files are whole or absent."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from odb_example.errors import UserError
from odb_example.files import read_json, read_json_lines, require_replaceable, write_json, write_json_lines

pytestmark = pytest.mark.unit


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"kept": True})

    def rows() -> object:
        yield {"row": 1}
        raise RuntimeError("stopped in the middle")

    with pytest.raises(RuntimeError):
        write_json_lines(path, rows())
    assert read_json(path) == {"kept": True}
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*No space left on device"):
        write_json(tmp_path / "result.json", {})
    assert os.listdir(tmp_path) == []


def test_a_folder_in_the_place_of_the_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        write_json(tmp_path / "result.json", {})
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_file_in_the_place_of_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_json(tmp_path / "out" / "result.json", {})


@pytest.mark.parametrize(("content", "refused"), [("# notes", True), ("<!DOCTYPE html>", False), ("", False)])
def test_a_result_replaces_no_file_of_another_kind(tmp_path: Path, content: str, refused: bool) -> None:
    file = tmp_path / "README.md"
    require_replaceable(file, "page", b"<!doctype html")
    file.write_text(content)
    with pytest.raises(UserError, match="is there and is no page") if refused else nullcontext():
        require_replaceable(file, "page", b"<!doctype html")


def test_nan_is_refused_because_it_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "result.json", {"loss": float("nan")})
    assert os.listdir(tmp_path) == []


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    rows = [{"text": "žluť\u2028字"}, {"n": 1}, []]
    assert write_json_lines(tmp_path / "rows.jsonl", rows) == 3
    assert list(read_json_lines(tmp_path / "rows.jsonl")) == rows


@pytest.mark.parametrize("content", [b'{"a": 1}\n{"a"', b'{"a": 1}\n\n', b'{"a": "\xff"}\n'])
def test_a_truncated_or_foreign_line_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"rows\.jsonl line \d is not JSON"):
        list(read_json_lines(path))


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_a_file_that_is_not_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"result\.json is not"):
        read_json(path)
