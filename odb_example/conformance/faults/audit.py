"""Result files that do not add up, and audits that let them pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from odb_example.conformance.faults.fault import fault
from odb_example.conformance.pipeline import BenchmarkFiles, Pipeline
from odb_example.conformance.reference import LETTERS, best_letter

Change = Callable[[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]], None]
Audit = Callable[[BenchmarkFiles], Sequence[str]]


def _changed(pipeline: Pipeline, change: Change) -> Pipeline:
    return replace(pipeline, benchmark=partial(_then, pipeline.part("benchmark"), change))


def _then(benchmark: Callable[[], BenchmarkFiles], change: Change) -> BenchmarkFiles:
    right = benchmark()
    results, rows, excluded = copy.deepcopy(
        (dict(right.results), [dict(row) for row in right.predictions], [dict(row) for row in right.excluded])
    )
    change(results, rows, excluded)
    return BenchmarkFiles(results=results, predictions=rows, excluded=excluded, score_audit=right.score_audit)


@fault(caught_by="predictions_follow_their_scores", mentions="ties go to the later letter")
def ties_go_to_the_later_letter(pipeline: Pipeline) -> Pipeline:
    """Of two equal scores the later letter is predicted."""
    return _changed(pipeline, _late_tie)


def _late_tie(results: Any, rows: list[dict[str, Any]], excluded: Any) -> None:
    row = next(row for row in rows if len(row["valid_candidate_letters"]) > 1)
    first, second = row["valid_candidate_letters"][:2]
    best = max(row["candidate_scores"].values())
    for field in ("candidate_scores", "choice_scores"):
        row[field] = {**row[field], first: best, second: best}
    row.update(prediction=second, correct=second == row["ground_truth"], score_margin=0.0)


@fault(caught_by="predictions_follow_their_scores", mentions="letters without an option take part in the margin")
def margin_is_taken_over_all_letters(pipeline: Pipeline) -> Pipeline:
    """Margins are leads over the best of A-H, letters without an option among them."""
    return _changed(pipeline, _wide_margins)


def _wide_margins(results: Any, rows: list[dict[str, Any]], excluded: Any) -> None:
    for row in rows:
        others = [row["candidate_scores"][letter] for letter in LETTERS if letter != row["prediction"]]
        row["score_margin"] = row["candidate_scores"][row["prediction"]] - max(others)


@fault(caught_by="predictions_follow_their_scores", mentions="is marked right")
def one_wrong_row_is_marked_right(pipeline: Pipeline) -> Pipeline:
    """One wrong answer in sixty is marked as right."""
    return _changed(pipeline, _mark_right)


def _mark_right(results: Any, rows: list[dict[str, Any]], excluded: Any) -> None:
    next(row for row in rows if not row["correct"])["correct"] = True


@fault(caught_by="predictions_follow_their_scores", mentions="above 0")
def logits_are_written_as_log_probabilities(pipeline: Pipeline) -> Pipeline:
    """Raw logits are written where log-probabilities are stated."""
    return _changed(pipeline, _as_logits)


def _as_logits(results: Any, rows: list[dict[str, Any]], excluded: Any) -> None:
    for row in rows:
        for field in ("candidate_scores", "choice_scores"):
            row[field] = {letter: score + 12.5 for letter, score in row[field].items()}


@fault(caught_by="letters_follow_the_options", mentions="fixed A-D")
def four_letters_are_scored_whatever_the_options(pipeline: Pipeline) -> Pipeline:
    """A-D are valid letters of every row."""
    return _changed(pipeline, _always_four)


def _always_four(results: Any, rows: list[dict[str, Any]], excluded: Any) -> None:
    for row in rows:
        valid = list("ABCD")
        best = best_letter(row["candidate_scores"], "ABCD")
        scores = sorted((row["candidate_scores"][letter] for letter in valid), reverse=True)
        row.update(
            valid_candidate_letters=valid, prediction=best, correct=best == row["ground_truth"],
            choice_scores={letter: row["candidate_scores"][letter] for letter in valid},
            score_margin=scores[0] - scores[1],
        )  # fmt: skip


@fault(caught_by="every_row_is_accounted_for", mentions="in the files twice")
def a_row_is_scored_twice(pipeline: Pipeline) -> Pipeline:
    """The sampler's padding is scored: one row stands in the files twice."""
    return _changed(pipeline, _double_row)


def _double_row(results: Any, rows: list[dict[str, Any]], excluded: Any) -> None:
    rows.append(dict(rows[3]))


@fault(caught_by="every_row_is_accounted_for", mentions="dropped without a word")
def a_row_is_lost(pipeline: Pipeline) -> Pipeline:
    """A row that could not be read is in neither file."""
    return _changed(pipeline, _lose_row)


def _lose_row(results: Any, rows: list[dict[str, Any]], excluded: Any) -> None:
    del rows[5]


@fault(caught_by="every_row_is_accounted_for", mentions="only A-D count as letters")
def answers_beyond_d_are_excluded(pipeline: Pipeline) -> Pipeline:
    """A row answered E is excluded as having no letter."""
    return _changed(pipeline, _exclude_e)


def _exclude_e(results: Any, rows: list[dict[str, Any]], excluded: list[dict[str, Any]]) -> None:
    row = rows.pop(2)
    excluded.append({**row, "reason": "non_letter_answer", "answer_raw": "E", "normalized_answer": "E"})


@fault(caught_by="totals_are_those_of_the_rows", mentions="in its denominator")
def excluded_rows_count_as_wrong(pipeline: Pipeline) -> Pipeline:
    """Accuracy is taken over all rows seen, excluded ones among them."""
    return _changed(pipeline, _wide_denominator)


def _wide_denominator(results: dict[str, Any], rows: list[dict[str, Any]], excluded: list[dict[str, Any]]) -> None:
    if not excluded:
        excluded.append({**rows[0], "sample_id": "excluded", "reason": "non_letter_answer", "normalized_answer": "7"})
        results["excluded_samples"] = 1
        results["excluded_by_reason"] = {"non_letter_answer": 1}
    results["overall_accuracy"] = round(100 * results["overall_correct"] / (len(rows) + len(excluded)), 2)


@fault(caught_by="totals_are_those_of_the_rows", mentions="`overall_correct`")
def totals_are_one_too_high(pipeline: Pipeline) -> Pipeline:
    """One right answer more is counted than the rows hold."""
    return _changed(pipeline, _one_more)


def _one_more(results: dict[str, Any], rows: Any, excluded: Any) -> None:
    results["overall_correct"] += 1
    results["overall_accuracy"] = round(100 * results["overall_correct"] / results["overall_total"], 2)


@fault(caught_by="totals_are_those_of_the_rows", mentions="another discipline")
def a_category_is_miscounted(pipeline: Pipeline) -> Pipeline:
    """One row is counted in another discipline than its own."""
    return _changed(pipeline, _move_category)


def _move_category(results: dict[str, Any], rows: list[dict[str, Any]], excluded: Any) -> None:
    results["per_category"][rows[0]["category"]]["total"] += 1


@fault(caught_by="audit_finds_edits", mentions="only totals are compared")
def audit_trusts_the_correct_field(pipeline: Pipeline) -> Pipeline:
    """The audit counts the rows' own `correct` instead of comparing prediction and answer."""
    return replace(pipeline, audit=_trusting)


def _trusting(files: BenchmarkFiles) -> list[str]:
    right = sum(row["correct"] for row in files.predictions)
    return [] if right == files.results["overall_correct"] else ["overall_correct differs"]


@fault(caught_by="audit_finds_edits", mentions="does not say where")
def audit_names_no_row(pipeline: Pipeline) -> Pipeline:
    """The audit says that something differs, and not where."""
    return replace(pipeline, audit=partial(_nameless, pipeline.part("audit")))


def _nameless(audit: Audit, files: BenchmarkFiles) -> list[str]:
    found = len(audit(files))
    return [f"{found} things differ from what was written"] if found else []


@fault(caught_by="audit_finds_edits", mentions="a row that stands twice")
def audit_does_not_look_for_repeats(pipeline: Pipeline) -> Pipeline:
    """The audit reads rows into a dict by their id, so a repeated one is never seen."""
    return replace(pipeline, audit=partial(_by_id, pipeline.part("audit")))


def _by_id(audit: Audit, files: BenchmarkFiles) -> Sequence[str]:
    rows = list({row["sample_id"]: row for row in files.predictions}.values())
    return audit(replace(files, predictions=rows))


@fault(caught_by="audit_finds_edits", mentions="everything still adds up")
def audit_checks_no_digest(pipeline: Pipeline) -> Pipeline:
    """The audit recomputes figures only: a score edited with care passes."""
    return replace(pipeline, audit=partial(_without_digests, pipeline.part("audit")))


def _without_digests(audit: Audit, files: BenchmarkFiles) -> Sequence[str]:
    return audit(replace(files, score_audit={}))


@fault(caught_by="audit_passes_a_sound_run", mentions="alarms without cause")
def audit_cries_wolf(pipeline: Pipeline) -> Pipeline:
    """The audit complains about every run of fewer than 900 rows."""
    return replace(pipeline, audit=partial(_wolf, pipeline.part("audit")))


def _wolf(audit: Audit, files: BenchmarkFiles) -> list[str]:
    return [*audit(files), f"total_rows_seen is {files.results['total_rows_seen']}, 900 are known"]
