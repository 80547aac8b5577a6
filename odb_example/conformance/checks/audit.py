"""The files of a multiple-choice run add up from their rows alone, and an audit finds what was done to them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from odb_example.conformance.check import needs
from odb_example.conformance.expect import expect, expect_close, expect_equal
from odb_example.conformance.pipeline import BenchmarkFiles, Pipeline
from odb_example.conformance.reference import LETTERS, best_letter

Rows = list[dict[str, Any]]


@needs("benchmark")
def predictions_follow_their_scores(pipeline: Pipeline) -> None:
    """Each row predicts its best valid letter, is right where that is the answer, and states its margin."""
    for row in _files(pipeline).predictions:
        name, valid = row["sample_id"], "".join(row["valid_candidate_letters"])
        best = best_letter(row["candidate_scores"], valid)
        expect_equal(
            row["prediction"],
            best,
            claim=f"row {name} predicts {row['prediction']}, its scores say {best}",
            likely="ties go to the later letter"
            if row["candidate_scores"][row["prediction"]] == row["candidate_scores"][best]
            else "the prediction is taken over letters that have no option, or from another row",
        )
        expect_equal(
            row["correct"],
            row["prediction"] == row["ground_truth"],
            claim=f"row {name} is marked {'right' if row['correct'] else 'wrong'}, it predicts {row['prediction']} and "
            f"the answer is {row['ground_truth']}",
            likely="the answer is compared before it is stripped and upper-cased, or with another row's",
        )
        scores = sorted((row["candidate_scores"][letter] for letter in valid), reverse=True)
        if len(scores) > 1:
            expect_close(
                row["score_margin"],
                scores[0] - scores[1],
                claim=f"the margin of row {name} is not its lead over the second letter",
                likely="letters without an option take part in the margin",
                absolute=1e-6,
            )
        expect(
            all(row["candidate_scores"][letter] <= 0 for letter in LETTERS if letter in row["candidate_scores"]),
            claim=f"row {name} has a log-probability above 0",
            came=row["candidate_scores"],
            likely="raw logits or probabilities are written as log-probabilities",
        )


@needs("benchmark")
def letters_follow_the_options(pipeline: Pipeline) -> None:
    """Valid letters and status are what the number of options says, in the protocol's order of checks."""
    for row in _files(pipeline).predictions:
        count, answer = len(row["options"]), row["ground_truth"]
        if count == 0:
            status, valid = "missing_options_scored_all_letters", LETTERS
        elif count > len(LETTERS):
            status, valid = "too_many_options_scored_AH", LETTERS
        elif answer not in LETTERS[:count]:
            status, valid = "answer_outside_options_scored_all_letters", LETTERS
        else:
            status, valid = "options_valid", LETTERS[:count]
        for field, came, expected in (
            ("valid_candidate_letters", "".join(row["valid_candidate_letters"]), valid),
            ("option_status", row["option_status"], status),
        ):
            expect_equal(
                came,
                expected,
                claim=f"`{field}` of row {row['sample_id']} with {count} options",
                likely="a fixed A-D is scored, or the checks come in another order: no options, more than eight, "
                "answer outside",
            )


@needs("benchmark")
def every_row_is_accounted_for(pipeline: Pipeline) -> None:
    """Scored and excluded rows together are the rows seen, none twice, each excluded one with its reason."""
    files = _files(pipeline)
    ids = Counter(row["sample_id"] for row in [*files.predictions, *files.excluded])
    twice = [name for name, count in ids.items() if count > 1]
    expect(
        not twice,
        claim=f"{len(twice)} rows stand in the files twice, the first is {twice[:1]}",
        likely="ranks share rows: padding of a distributed sampler is scored and kept",
    )
    seen = files.results["total_rows_seen"]
    expect_equal(
        len(files.predictions) + len(files.excluded),
        seen,
        claim=f"{len(files.predictions)} scored and {len(files.excluded)} excluded rows are not the {seen} seen",
        likely="rows that cannot be read are dropped without a word",
    )
    for row in files.excluded:
        expect(
            bool(row.get("reason")),
            claim=f"row {row['sample_id']} is excluded without a reason",
            likely="exclusions are counted only; nobody can check them then",
        )
        answer = str(row.get("normalized_answer", "")).strip()
        expect(
            not (row["reason"] == "non_letter_answer" and len(answer) == 1 and answer in LETTERS),
            claim=f"row {row['sample_id']} with the answer {answer} is excluded as no letter",
            likely="only A-D count as letters, or open questions are left out by their type",
        )


@needs("benchmark")
def totals_are_those_of_the_rows(pipeline: Pipeline) -> None:
    """Accuracy, totals, counts and categories are recomputed from the rows."""
    files = _files(pipeline)
    rows, results = files.predictions, files.results
    right = sum(row["prediction"] == row["ground_truth"] for row in rows)
    figures = {
        "overall_correct": right,
        "overall_total": len(rows),
        "evaluated_samples": len(rows),
        "excluded_samples": len(files.excluded),
        "excluded_by_reason": dict(Counter(row["reason"] for row in files.excluded)),
        "option_status_counts": dict(Counter(row["option_status"] for row in rows)),
        "prediction_counts": dict(Counter(row["prediction"] for row in rows)),
    }
    for field, expected in figures.items():
        came = results[field]
        came = {name: count for name, count in came.items() if count} if isinstance(came, dict) else came
        expect_equal(
            came,
            expected,
            claim=f"`{field}` is not what the rows give",
            likely="totals of one rank, or from before the last rows were written",
        )
    accuracy = 100 * right / len(rows)
    with_excluded = 100 * right / max(1, len(rows) + len(files.excluded))
    expect_close(
        results["overall_accuracy"],
        accuracy,
        absolute=0.0051,
        claim="`overall_accuracy` is not what the rows give",
        likely="excluded rows are in its denominator"
        if abs(results["overall_accuracy"] - with_excluded) < 0.006
        else "it is the mean over subjects or categories, or a share instead of per cent",
    )
    for category in sorted({row["category"] for row in rows}):
        of_it = [row for row in rows if row["category"] == category]
        entry = results["per_category"].get(category, {})
        expect_equal(
            (entry.get("correct"), entry.get("total")),
            (sum(row["correct"] for row in of_it), len(of_it)),
            claim=f"`per_category` of {category} is not what its rows give",
            likely="a subject is counted in another discipline",
        )


@needs("benchmark", "audit")
def audit_passes_a_sound_run(pipeline: Pipeline) -> None:
    """An audit finds nothing in files that nobody touched."""
    assert pipeline.audit is not None
    findings = list(pipeline.audit(_files(pipeline)))
    expect(
        not findings,
        claim="the audit finds something wrong with untouched files",
        expected="no finding",
        came=findings[:3],
        likely="it compares with figures of another data set or recomputes by another rule; alarms without cause are "
        "soon ignored",
    )


@needs("benchmark", "audit")
def audit_finds_edits(pipeline: Pipeline) -> None:
    """An audit finds every edit of the files, and says which row or field it is in."""
    assert pipeline.audit is not None
    files = _files(pipeline)
    # Without the digests an audit may say that they are missing; that is no finding about the edit.
    bare = set(pipeline.audit(replace(files, score_audit={})))
    for words, mention, edited in _edits(files, with_digests=bool(files.score_audit)):
        findings = "\n".join(finding for finding in pipeline.audit(edited) if finding not in bare)
        expect(
            bool(findings),
            claim=f"the audit misses {words}",
            expected="a finding",
            likely="figures are taken from the file instead of being recomputed from the rows",
        )
        expect(
            mention in findings,
            claim=f"the audit does not say where: {words}",
            expected=f"{mention!r} in a finding",
            came=findings,
            likely="only totals are compared",
        )


def _edits(files: BenchmarkFiles, *, with_digests: bool) -> Iterator[tuple[str, str, BenchmarkFiles]]:
    """Edits in words, what a finding must mention, and the edited files. All but the last show without digests."""
    rows = files.predictions
    right = next((number for number, row in enumerate(rows) if row["correct"]), 0)
    wrong = next((number for number, row in enumerate(rows) if not row["correct"]), 0)
    name = [row["sample_id"] for row in rows]

    def with_rows(change: Callable[[Rows], object], *, digests: bool = False) -> BenchmarkFiles:
        edited: Rows = copy.deepcopy([dict(row) for row in rows])
        change(edited)
        return BenchmarkFiles(
            results=files.results, predictions=edited, excluded=files.excluded,
            score_audit=files.score_audit if digests else {},
        )  # fmt: skip

    def with_results(**changes: Any) -> BenchmarkFiles:
        return BenchmarkFiles(
            results={**files.results, **changes}, predictions=rows, excluded=files.excluded, score_audit={}
        )

    yield "a wrong row marked as right", name[wrong], with_rows(lambda all_: all_[wrong].update(correct=True))
    other = next(letter for letter in rows[right]["valid_candidate_letters"] if letter != rows[right]["prediction"])
    yield (
        "a changed prediction",
        name[right],
        with_rows(lambda all_: all_[right].update(prediction=other, correct=other == all_[right]["ground_truth"])),
    )
    yield "a row that is missing", "", with_rows(lambda all_: all_.pop(right))
    yield "a row that stands twice", name[wrong], with_rows(lambda all_: all_.append(dict(all_[wrong])))
    yield (
        "an answer changed to the prediction",
        "",
        with_rows(lambda all_: all_[wrong].update(ground_truth=all_[wrong]["prediction"], correct=True)),
    )
    yield (
        "a correct count that is one too high",
        "overall_correct",
        with_results(overall_correct=files.results["overall_correct"] + 1),
    )
    yield (
        "an accuracy that is a point too high",
        "overall_accuracy",
        with_results(overall_accuracy=files.results["overall_accuracy"] + 1.0),
    )
    yield (
        "a score that lifts the answer above the prediction",
        name[wrong],
        with_rows(lambda all_: _lift(all_[wrong])),
    )
    if with_digests:
        yield (
            "a score edited so that everything still adds up",
            name[right],
            with_rows(lambda all_: _lower_invalid(all_[right]), digests=True),
        )


def _lift(row: dict[str, Any]) -> None:
    best = max(row["candidate_scores"].values())
    for field in ("candidate_scores", "choice_scores"):
        row[field] = {**row[field], row["ground_truth"]: best / 2}


def _lower_invalid(row: dict[str, Any]) -> None:
    worst = min(row["candidate_scores"], key=lambda letter: row["candidate_scores"][letter])
    for field in ("candidate_scores", "choice_scores"):
        if worst in row[field]:
            row[field] = {**row[field], worst: row[field][worst] - 0.5}


def _files(pipeline: Pipeline) -> BenchmarkFiles:
    assert pipeline.benchmark is not None
    return pipeline.once(("benchmark",), ("benchmark",), pipeline.benchmark)
