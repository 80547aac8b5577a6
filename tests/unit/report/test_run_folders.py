"""The fixture folders have the fields of real runs."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from support.run_folders import Plan, step_rows

from odb_example.evaluate.audit import audit_run
from odb_example.train.records import RankShare, StepRecord

pytestmark = pytest.mark.unit


def test_steps_have_the_fields_that_the_recorder_writes() -> None:
    row = step_rows(Plan())[0]
    assert set(row) == {field.name for field in fields(StepRecord)}
    assert set(row["ranks"][0]) == {field.name for field in fields(RankShare)}


def test_the_audit_finds_the_benchmark_files_sound(finished: Path) -> None:
    for name in ("odb-enable", "standard-none"):
        assert audit_run(finished / name).findings == []


def test_the_summary_has_the_references_fields(finished: Path) -> None:
    from odb_example import schema

    summary = json.loads((finished / "odb-enable" / "train_summary_odb.json").read_text())
    assert schema.missing(summary, schema.TRAIN_SUMMARY) == []
