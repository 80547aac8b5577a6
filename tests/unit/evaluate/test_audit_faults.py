"""The audit finds what was done to a run's files, and names it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odb_example.errors import UserError
from odb_example.evaluate.audit import audit_run, audit_runs, describe
from odb_example.evaluate.folders import AUDIT, EXCLUDED, PREDICTIONS, RESULTS

pytestmark = pytest.mark.unit

Rows = list[dict[str, Any]]


def edit_rows(name: str, change: Callable[[Rows], Any]) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        change(rows)
        (folder / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    return plant


def edit_object(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    return plant


def predictions(change: Callable[[Rows], Any]) -> Callable[[Path], None]:
    return edit_rows(PREDICTIONS, change)


def first(**changes: Any) -> Callable[[Path], None]:
    return predictions(lambda rows: rows[0].update(changes))


def other_letter(rows: Rows) -> None:
    rows[0]["prediction"] = next(x for x in rows[0]["valid_candidate_letters"] if x != rows[0]["prediction"])


def own_the_answer(rows: Rows) -> None:
    """A wrong row made right, consistently: only the digest taken at writing can tell."""
    row = next(row for row in rows if not row["correct"] and row["option_status"] == "options_valid")
    row.update(ground_truth=row["prediction"], correct=True)


def raise_score(rows: Rows) -> None:
    rows[0]["candidate_scores"]["A"] = rows[0]["choice_scores"]["A"] = -0.001


def truncate(name: str, cut: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-cut])


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a changed letter": (predictions(other_letter), "prediction_is_not_best: predictions.jsonl line 1"),
    "a changed letter, flag and all": (predictions(own_the_answer), "row_edited: predictions.jsonl"),
    "a dropped row": (predictions(lambda rows: rows.pop(3)), "row_missing: predictions.jsonl (validation_Art_4)"),
    "a doubled row": (
        predictions(lambda rows: rows.append(rows[2])),
        "row_doubled: predictions.jsonl (validation_Art_3)",
    ),
    "a score that is no number": (
        predictions(lambda rows: rows[0]["candidate_scores"].update(A=float("nan"))),
        "score_impossible: predictions.jsonl line 1",
    ),
    "a foreign row": (
        predictions(lambda rows: rows.append(rows[2] | {"sample_id": "validation_Art_99"})),
        "row_added: predictions.jsonl (validation_Art_99)",
    ),
    "two rows swapped": (predictions(lambda rows: rows.insert(0, rows.pop(1))), "rows_reordered: predictions.jsonl"),
    "a swapped subject": (first(subject="Math", category="Science"), "subject_differs: predictions.jsonl line 1"),
    "a wrong discipline": (first(category="Science"), "category_differs: predictions.jsonl line 1"),
    "an edited score": (predictions(raise_score), "score_impossible: predictions.jsonl line 1"),
    "a score of one file only": (
        predictions(lambda rows: rows[0]["choice_scores"].update(A=-9.0)),
        "choice_scores_differ: predictions.jsonl line 1",
    ),
    "a missing letter": (
        predictions(lambda rows: rows[0]["candidate_scores"].pop("H")),
        "scores_incomplete: predictions.jsonl line 1",
    ),
    "a wrong margin": (first(score_margin=3.5), "margin_differs: predictions.jsonl line 1"),
    "a flipped flag": (
        predictions(lambda rows: rows[0].update(correct=not rows[0]["correct"])),
        "correct_flag_differs: predictions.jsonl line 1",
    ),
    "another prompt": (first(question="What does <image 1> show?"), "prompt_differs: predictions.jsonl line 1"),
    "other options": (first(options=["a", "b", "c", "d"]), "prompt_differs: predictions.jsonl line 1"),
    "another protocol": (first(protocol="MMMU-MC-choice-likelihood-v2"), "protocol_differs: predictions.jsonl line 1"),
    "another split": (first(split="dev"), "split_differs: predictions.jsonl line 1"),
    "a wrong status": (first(option_status="too_many_options_scored_AH"), "status_differs: predictions.jsonl line 1"),
    "one letter too many": (
        first(valid_candidate_letters=list("ABCDE")),
        "valid_letters_differ: predictions.jsonl line 1",
    ),
    "an answer that is no letter": (first(ground_truth="I"), "answer_not_a_letter: predictions.jsonl line 1"),
    "a missing field": (
        predictions(lambda rows: rows[0].pop("num_images")),
        "shape_differs: predictions.jsonl line 1: field `num_images`",
    ),
    "an image count": (first(num_images=5), "total_differs: mmmu_mc_likelihood_results.json, field `total_images`"),
    "a wrong total": (
        edit_object(RESULTS, lambda result: result.update(overall_correct=result["overall_correct"] + 1)),
        "total_differs: mmmu_mc_likelihood_results.json, field `overall_correct`",
    ),
    "a wrong accuracy": (
        edit_object(RESULTS, lambda result: result.update(overall_accuracy=48.35)),
        "total_differs: mmmu_mc_likelihood_results.json, field `overall_accuracy`",
    ),
    "a wrong discipline's accuracy": (
        edit_object(RESULTS, lambda result: result["per_category"]["Science"].update(accuracy=99.0)),
        "total_differs: mmmu_mc_likelihood_results.json, field `per_category.Science.accuracy`",
    ),
    "wrong status counts": (
        edit_object(RESULTS, lambda result: result["option_status_counts"].update(options_valid=843)),
        "total_differs: mmmu_mc_likelihood_results.json, field `option_status_counts.options_valid`",
    ),
    "an interval too narrow": (
        edit_object(RESULTS, lambda result: result.update(accuracy_interval_95=[40.0, 41.0])),
        "total_differs: mmmu_mc_likelihood_results.json, field `accuracy_interval_95`",
    ),
    "a subject left out of the header": (
        edit_object(RESULTS, lambda result: result["subjects"].remove("Art")),
        "subject_not_asked_for: mmmu_mc_likelihood_results.json, field `subjects`",
    ),
    "another checkpoint's results": (
        edit_object(RESULTS, lambda result: result.update(checkpoint="a/better/one")),
        "audit_differs: score_audit.json, field `checkpoint`",
    ),
    "a dropped exclusion": (edit_rows(EXCLUDED, lambda rows: rows.pop(0)), "row_missing: excluded.jsonl"),
    "a scored row excluded too": (
        lambda folder: _exclude_the_first(folder),
        "row_scored_and_excluded: predictions.jsonl (validation_Art_1)",
    ),
    "an exclusion without a reason": (
        edit_rows(EXCLUDED, lambda rows: rows[0].update(answer_raw="B", normalized_answer="B")),
        "reason_does_not_hold: excluded.jsonl line 1",
    ),
    "an unknown reason": (
        edit_rows(EXCLUDED, lambda rows: rows[0].update(reason="hard")),
        "reason_unknown: excluded.jsonl",
    ),
    "a changed exclusion": (
        edit_rows(EXCLUDED, lambda rows: rows[0].update(normalized_answer="J")),
        "normalized_answer_differs: excluded.jsonl line 1",
    ),
    "letters that share a token": (
        edit_object(AUDIT, lambda audit: audit["candidate_token_info"]["B"].update(first_token_id=32)),
        "letters_share_a_token: score_audit.json",
    ),
    "an edited audit": (
        edit_object(AUDIT, lambda audit: audit["batch_invariance"].update(largest_difference=0.0, flips=[1])),
        "audit_edited: score_audit.json",
    ),
    "wrong counts in the audit": (
        edit_object(AUDIT, lambda audit: audit["prediction_counts"].update(A=0)),
        "audit_differs: score_audit.json, field `prediction_counts`",
    ),
    "a truncated file": (truncate(PREDICTIONS, 40), "file_truncated: predictions.jsonl"),
    "a file that ends a row early": (
        predictions(lambda rows: rows.pop()),
        "file_edited: predictions.jsonl",
    ),
    "truncated results": (truncate(RESULTS, 40), "file_unreadable: mmmu_mc_likelihood_results.json"),
    "a missing file": (lambda folder: (folder / EXCLUDED).unlink(), "file_missing: excluded.jsonl"),
    "a byte of white space": (
        lambda folder: (folder / RESULTS).write_text((folder / RESULTS).read_text() + " \n"),
        "file_edited: mmmu_mc_likelihood_results.json",
    ),
}  # fmt: skip


def _exclude_the_first(folder: Path) -> None:
    row = json.loads((folder / PREDICTIONS).read_text().splitlines()[0])
    names = ("protocol", "split", "subject", "sample_id", "options")
    extra = {name: row[name] for name in names} | {
        "reason": "non_letter_answer", "answer_raw": "12", "normalized_answer": "12",
    }  # fmt: skip
    with (folder / EXCLUDED).open("a") as stream:
        stream.write(json.dumps(extra) + "\n")


def test_an_untouched_run_has_no_finding_and_its_figures_are_recomputed(
    run_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit_runs([run_copy]) == 0
    result = json.loads((run_copy / RESULTS).read_text())
    recomputed = audit_run(run_copy).recomputed
    assert {name: result[name] for name in recomputed} == recomputed
    assert f"({result['overall_correct']}/{result['overall_total']})" in capsys.readouterr().out


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_named(run_copy: Path, fault: str) -> None:
    plant, expected = FAULTS[fault]
    plant(run_copy)
    found = [str(finding) for finding in audit_run(run_copy).findings]
    assert any(line.startswith(expected) for line in found), found


def test_files_without_digests_are_audited_and_what_cannot_be_seen_is_said(run_copy: Path) -> None:
    (run_copy / AUDIT).write_text(json.dumps({"protocol": "MMMU-MC-choice-likelihood-v1"}))
    assert audit_run(run_copy).findings == []
    assert "no file digests" in describe(audit_run(run_copy))
    predictions(other_letter)(run_copy)
    assert any(finding.kind == "prediction_is_not_best" for finding in audit_run(run_copy).findings)


def test_a_run_folder_is_taken_as_well_as_the_benchmarks_own(run_copy: Path) -> None:
    assert audit_run(run_copy.parent).findings == []


def test_a_folder_without_results_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no benchmark results"):
        audit_runs([tmp_path])


def test_three_runs_are_refused(run_copy: Path) -> None:
    with pytest.raises(UserError, match="one run or two, got 3"):
        audit_runs([run_copy] * 3)


def spoil(value: Any, choose: random.Random) -> None:
    """Put something else in the place of one part of a JSON object or list, at any depth."""
    key = choose.choice(sorted(value)) if isinstance(value, dict) else choose.randrange(len(value))
    if isinstance(value[key], (dict, list)) and value[key] and choose.random() < 0.7:
        spoil(value[key], choose)
        return
    kinds = [None, "x", 3, [], {}, ["y"], {"z": 1}, -0.5, True]
    value[key] = choose.choice([other for other in kinds if other != value[key]])


@pytest.mark.parametrize("name", [RESULTS, AUDIT, PREDICTIONS, EXCLUDED])
def test_no_edit_of_one_value_goes_unseen_or_ends_the_audit(written_run: Path, tmp_path: Path, name: str) -> None:
    for seed in range(20):
        folder = shutil.copytree(written_run, tmp_path / str(seed))
        plant = edit_rows if name.endswith("l") else edit_object
        plant(name, lambda value, seed=seed: spoil(value, random.Random(seed)))(folder)
        audit = audit_run(folder)
        assert audit.findings, f"seed {seed}"
        assert describe(audit)
        shutil.rmtree(folder)
