"""Rows of a benchmark's predictions, and whether two runs scored them alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

Rows = dict[str, dict[str, Any]]


def rows_of(folder: Path) -> Rows:
    lines = (folder / "predictions.jsonl").read_text().splitlines()
    return {row["sample_id"]: row for row in map(json.loads, lines)}


def assert_same_scores(first: Rows, second: Rows) -> None:
    assert first.keys() == second.keys()
    for name, row in first.items():
        other = second[name]
        assert other["candidate_scores"] == pytest.approx(row["candidate_scores"], abs=1e-5)
        flipped = other["prediction"] != row["prediction"]
        assert not flipped or row["score_margin"] <= 2e-5, f"{name} flips with a lead of {row['score_margin']}"
