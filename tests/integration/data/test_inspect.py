"""The inspect command's report on a real store, and its failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from odb_example.data.inspect import inspect_data
from odb_example.settings import Settings

pytestmark = pytest.mark.integration

REFERENCE = {
    "model", "processor_backend", "max_length", "image_max_pixels", "num_records", "vision_token_ids", "inspected",
    "failures",
}  # fmt: skip
ROW = {
    "index", "source", "has_image", "num_record_images", "input_length", "label_tokens", "known_vision_token_count",
    "known_vision_label_values", "vision_tensors", "model_batch_keys",
}  # fmt: skip


def settings(model: Path, store: Path, folder: Path, **changes: object) -> Settings:
    values = {"max_length": 1024, "image_max_pixels": 65_536, "token_budget": 1024, "buffer_size": 64, "num_samples": 8}
    return Settings(model=str(model), data=str(store), output_root=str(folder), **{**values, **changes})


def test_the_report_is_the_references_json_on_stdout_and_words_on_stderr(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = inspect_data(settings(tiny_checkpoint, miniature_store, tmp_path))
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found.keys() >= REFERENCE
    assert found["failures"] == []
    assert not report.failures
    rows = found["inspected"]
    assert [sum(row["has_image"] is kind for row in rows) for kind in (True, False)] == [8, 2]
    for row in rows:
        assert row.keys() == ROW
        assert row["known_vision_label_values"] == ([-100] if row["has_image"] else [])
        assert bool(row["vision_tensors"]) is row["has_image"]
        assert 0 < row["label_tokens"] < row["input_length"]
    assert "\u27e6" in printed.err
    assert "of the budget filled" in printed.err
    assert 0 < found["expected_fill"]["fill"] <= 1
    with Image.open(found["histogram"]) as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("L").getcolors(256) or []) > 3


def test_records_that_cannot_become_a_sample_are_failures_by_name(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path
) -> None:
    output = tmp_path / "report.json"
    cut = settings(tiny_checkpoint, miniature_store, tmp_path, max_length=12, inspect_output=str(output))
    report = inspect_data(cut)
    assert report.failures
    written = json.loads(output.read_text())
    assert written["failures"] == [{"index": fault.index, "error": fault.error} for fault in report.failures]
    assert all("record '" in fault.error for fault in report.failures)
