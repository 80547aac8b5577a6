"""Two runs over the same rows, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scores import invented

from odb_example.evaluate.audit import audit_run, audit_runs, compare
from odb_example.evaluate.folders import PREDICTIONS

pytestmark = pytest.mark.unit

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def second_run(invent_run: Callable[..., Any], tmp_path: Path) -> Path:
    """The same rows, scored by another invention."""

    def mirrored(batch: dict[str, Any]) -> list[dict[str, Any]]:
        return [row | {"scores": row["scores"][::-1]} for row in invented(batch)]

    return Path(invent_run(mirrored).write(tmp_path / "second"))


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / PREDICTIONS).read_text().splitlines()]


def test_flips_and_discordant_rows_are_counted_row_by_row(run_copy: Path, second_run: Path) -> None:
    comparison = compare(audit_run(run_copy), audit_run(second_run))
    pairs = list(zip(rows_of(run_copy), rows_of(second_run), strict=True))
    flips = [(a["sample_id"], a["prediction"], b["prediction"]) for a, b in pairs if a["prediction"] != b["prediction"]]
    assert flips
    assert list(comparison.flips) == flips
    assert comparison.only_first == sum(a["correct"] and not b["correct"] for a, b in pairs)
    assert comparison.only_second == sum(b["correct"] and not a["correct"] for a, b in pairs)
    assert comparison.rows == len(pairs)
    assert comparison.findings == []


def test_a_run_against_itself_has_no_flip_and_p_one(run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit_runs([run_copy, run_copy]) == 0
    assert "0 predictions differ; McNemar's exact p = 1" in capsys.readouterr().out


def test_rows_that_only_one_run_has_are_named(run_copy: Path, second_run: Path) -> None:
    lines = (second_run / PREDICTIONS).read_text().splitlines(keepends=True)
    (second_run / PREDICTIONS).write_text("".join(lines[1:]))
    comparison = compare(audit_run(run_copy), audit_run(second_run))
    assert [finding.kind for finding in comparison.findings] == ["row_only_in_one_run"]
    assert "validation_Art_1" in comparison.findings[0].where


def test_runs_under_other_prompts_are_not_comparable(
    run_copy: Path, invent_run: Callable[..., Any], tmp_path: Path
) -> None:
    other = invent_run(prompt_variant="lmms-eval").write(tmp_path / "other")
    assert audit_run(other).findings == []
    comparison = compare(audit_run(run_copy), audit_run(other))
    assert {finding.kind for finding in comparison.findings} == {"runs_not_comparable"}
