"""Distrust a benchmark's files: recompute every figure from ``predictions.jsonl`` and ``excluded.jsonl`` alone.

In: one or two run folders (or benchmark folders). Out: findings, each naming file, row and field; for two runs, the
rows that flipped and McNemar's p-value. Files written by others are audited too; where there is no ``score_audit.json``
with digests, an edit that keeps the files consistent with each other cannot be seen, and that is said.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from odb_example.errors import UserError
from odb_example.evaluate.file_shapes import AuditShape, ExcludedShape, PredictionShape, ResultsShape, shape_problem
from odb_example.evaluate.folders import AUDIT, BENCHMARK_FOLDER, EXCLUDED, PREDICTIONS, RESULTS
from odb_example.evaluate.mmmu import (
    INCOMPLETE_REASONS,
    LETTERS,
    NON_LETTER_ANSWER,
    build_prompt,
    choose,
    is_letter,
    normalize_answer,
    option_status,
    prompt_digest,
    protocol_name,
)
from odb_example.evaluate.score_audit import (
    DIGEST_FIELD,
    audit_digest,
    file_digest,
    letter_bias,
    row_digest,
)
from odb_example.evaluate.scores import Row, count_scores, counted
from odb_example.evaluate.statistics import mcnemar, wilson_interval
from odb_example.evaluate.subjects import DISCIPLINE_OF, known_split

_MMMU_ID = re.compile(r"(?:dev|validation|test)_(?P<subject>\w+)_\d+")
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that is wrong: a short name of its kind, where it stands, and what was expected."""

    kind: str
    where: str
    words: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.words}"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A benchmark's files as read; what could not be read is a finding."""

    folder: Path
    results: Mapping[str, Any]
    audit: Mapping[str, Any]
    predictions: Sequence[Row]
    excluded: Sequence[Row]
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class RunAudit:
    """Figures recomputed from the rows alone, and what does not fit."""

    files: RunFiles
    recomputed: Mapping[str, Any]
    findings: Sequence[Finding]
    notes: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs over the same rows. ``flips`` are rows predicted differently; p by McNemar's exact test."""

    rows: int
    both_right: int
    only_first: int
    only_second: int
    flips: Sequence[tuple[str, str, str]]
    p_value: float
    findings: Sequence[Finding]


def audit_runs(runs: Sequence[Path]) -> int:
    """Audit one run, or two and their difference; prints, and returns 1 if anything is wrong.

    Raises:
        UserError: no run or more than two named, or a folder without a benchmark's files.
    """
    if not 1 <= len(runs) <= 2:
        raise UserError(f"audit takes one run or two, got {len(runs)}", "name RUN [RUN]")
    audits = [audit_run(Path(run)) for run in runs]
    for audit in audits:
        print(describe(audit))
    findings = [finding for audit in audits for finding in audit.findings]
    if len(audits) == 2:
        comparison = compare(audits[0], audits[1])
        print(describe_comparison(comparison))
        findings += comparison.findings
    if findings:
        print(f"{len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


def audit_run(run: Path) -> RunAudit:
    """Read, recompute, and check one run."""
    files = read_run(run)
    checks: list[Iterator[Finding]] = [
        *(check_prediction(row, number, files) for number, row in enumerate(files.predictions, start=1)),
        *(check_excluded(row, number, files) for number, row in enumerate(files.excluded, start=1)),
        check_places(files),
    ]
    recomputed = count_scores(files.predictions, files.excluded) if files.predictions else {}
    checks += [check_results(files, recomputed), check_audit(files), check_register(files), check_files(files)]
    findings = [*files.findings, *(finding for check in checks for finding in check)]
    notes = []
    if not files.audit.get("files"):
        notes.append("no file digests in score_audit.json: an edit that keeps the files consistent cannot be seen")
    if recomputed and not recomputed["complete"]:
        notes.append("rows that could not be read were left out: the score is not complete")
    return RunAudit(files, recomputed, list(dict.fromkeys(findings)), notes)


def read_run(run: Path) -> RunFiles:
    """The benchmark's files of a run folder, or of the benchmark folder itself.

    Raises:
        UserError: none of them is there.
    """
    folder = run / BENCHMARK_FOLDER if (run / BENCHMARK_FOLDER).is_dir() else run
    if not any((folder / name).is_file() for name in (RESULTS, PREDICTIONS, EXCLUDED, AUDIT)):
        raise UserError(f"{run} holds no benchmark results", "name a run folder that was scored with `benchmark`")
    findings: list[Finding] = []
    return RunFiles(
        folder=folder,
        results=_read_object(folder / RESULTS, ResultsShape, findings),
        audit=_read_object(folder / AUDIT, AuditShape, findings),
        predictions=_read_rows(folder / PREDICTIONS, PredictionShape, findings),
        excluded=_read_rows(folder / EXCLUDED, ExcludedShape, findings),
        findings=findings,
    )


def check_prediction(row: Row, number: int, files: RunFiles) -> Iterator[Finding]:
    """Everything about one scored row that follows from the row itself and the protocol."""
    where = f"{PREDICTIONS} line {number} ({row['sample_id']})"
    yield from _check_common(row, where, files)
    category = DISCIPLINE_OF.get(row["subject"], row["subject"])
    if row["category"] != category:
        yield Finding("category_differs", where, f"{row['category']!r}, subject {row['subject']} is {category!r}")
    if not is_letter(row["ground_truth"]):
        yield Finding("answer_not_a_letter", where, f"ground_truth {row['ground_truth']!r} is none of A-H")
        return
    status, valid = option_status(len(row["options"]), row["ground_truth"])
    if row["option_status"] != status:
        yield Finding("status_differs", where, f"option_status {row['option_status']!r}, its options make {status!r}")
    if "".join(row["valid_candidate_letters"]) != valid:
        yield Finding("valid_letters_differ", where, f"{row['valid_candidate_letters']}, its options make {valid!r}")
    scores = row["candidate_scores"]
    if list(scores) != list(LETTERS):
        yield Finding("scores_incomplete", where, f"candidate_scores holds {list(scores)}, A-H are needed")
        return
    if not all(math.isfinite(value) and value <= 0 for value in scores.values()) or (
        sum(math.exp(value) for value in scores.values()) > 1 + 1e-3
    ):
        yield Finding("score_impossible", where, "candidate_scores are no log-probabilities of one distribution")
    if row["choice_scores"] != {letter: scores[letter] for letter in valid}:
        yield Finding("choice_scores_differ", where, "choice_scores are not candidate_scores of the valid letters")
    prediction, margin = choose(scores, valid)
    if row["prediction"] != prediction:
        yield Finding("prediction_is_not_best", where, f"{row['prediction']!r}, its scores make {prediction!r}")
    if not _same_number(row["score_margin"], margin):
        yield Finding("margin_differs", where, f"score_margin {row['score_margin']}, its scores make {margin}")
    if row["correct"] != (row["prediction"] == row["ground_truth"]):
        yield Finding("correct_flag_differs", where, f"correct is {row['correct']}, {row['prediction']!r} is predicted")
    variant = _variant(row["protocol"])
    digest = prompt_digest(build_prompt(row["question"], row["options"], variant)) if variant else None
    if "prompt_sha256" in row and digest != row["prompt_sha256"]:
        yield Finding("prompt_differs", where, "question, options or protocol are not those of the prompt scored")


def check_excluded(row: Row, number: int, files: RunFiles) -> Iterator[Finding]:
    """Whether a row was left out for a reason that holds."""
    where = f"{EXCLUDED} line {number} ({row['sample_id']})"
    yield from _check_common(row, where, files)
    if "answer_raw" in row and row["normalized_answer"] != normalize_answer(row["answer_raw"]):
        yield Finding("normalized_answer_differs", where, f"{row['normalized_answer']!r} from {row['answer_raw']!r}")
    if row["reason"] not in {NON_LETTER_ANSWER, *INCOMPLETE_REASONS}:
        yield Finding("reason_unknown", where, f"reason {row['reason']!r} is none of the protocol's")
    elif (row["reason"] == NON_LETTER_ANSWER) == is_letter(row["normalized_answer"]):
        yield Finding("reason_does_not_hold", where, f"{row['reason']} with answer {row['normalized_answer']!r}")


def check_places(files: RunFiles) -> Iterator[Finding]:
    """Each row once, in one of the two files."""
    scored = Counter((row["subject"], row["sample_id"]) for row in files.predictions)
    left_out = Counter((row["subject"], row["sample_id"]) for row in files.excluded)
    for name, rows in ((PREDICTIONS, scored), (EXCLUDED, left_out)):
        for (_, sample_id), times in rows.items():
            if times > 1:
                yield Finding("row_doubled", f"{name} ({sample_id})", f"stands there {times} times")
    for _, sample_id in scored.keys() & left_out.keys():
        yield Finding("row_scored_and_excluded", f"{PREDICTIONS} ({sample_id})", f"stands in {EXCLUDED} too")


def check_results(files: RunFiles, recomputed: Mapping[str, Any]) -> Iterator[Finding]:
    """Every counted field of the results against the rows."""
    for name, value in recomputed.items():
        if name in files.results and files.results[name] != value:
            for place, there, should in _differences(name, files.results[name], value):
                yield Finding("total_differs", f"{RESULTS}, field `{place}`", f"{there}, the rows make {should}")
    if not files.results or not files.predictions:
        return
    seen = list(dict.fromkeys(row["subject"] for row in [*files.predictions, *files.excluded]))
    foreign = [subject for subject in seen if subject not in (files.results.get("subjects") or seen)]
    for subject in foreign:
        yield Finding("subject_not_asked_for", f"{RESULTS}, field `subjects`", f"rows of {subject} were scored")


def check_audit(files: RunFiles) -> Iterator[Finding]:
    """``score_audit.json`` against the rows, the results, and the known figures of the public split."""
    audit = files.audit
    letters = audit.get("candidate_token_info", {})
    ids = [info.get("first_token_id") for info in letters.values()]
    if letters and (list(letters) != list(LETTERS) or len(set(ids)) < len(ids)):
        yield Finding("letters_share_a_token", f"{AUDIT}, field `candidate_token_info`", f"first tokens are {ids}")
    for name in ("protocol", "split", "checkpoint", "dataset", "subjects"):
        if name in audit and name in files.results and audit[name] != files.results[name]:
            words = f"{audit[name]!r} there, {files.results[name]!r} in {RESULTS}"
            yield Finding("audit_differs", f"{AUDIT}, field `{name}`", words)
    rows = files.predictions
    found = {
        "option_status_counts": counted(row["option_status"] for row in rows),
        "prediction_counts": counted(row["prediction"] for row in rows),
        "answer_counts": counted(row["ground_truth"] for row in rows),
        "letter_bias": letter_bias(rows) if _all_letters_scored(rows) else None,
    }
    for name, value in found.items():
        if name in audit and value is not None and not _close(audit[name], value):
            yield Finding("audit_differs", f"{AUDIT}, field `{name}`", "not what the rows make")
    known = known_split(
        str(files.results.get("dataset")), str(files.results.get("split")), files.results.get("subjects") or (),
        audit.get("max_samples", 0),
    )  # fmt: skip
    if known:
        for name, expected, actual in (
            ("scored rows", known.scored, len(rows)),
            ("excluded rows", known.excluded, len(files.excluded)),
        ):
            if expected != actual:
                yield Finding("known_figure_differs", str(files.folder), f"{actual} {name}, the split has {expected}")


def check_register(files: RunFiles) -> Iterator[Finding]:
    """Rows against the digests taken when they were written: dropped, added, edited, out of order."""
    for name, rows, register in (
        (PREDICTIONS, files.predictions, files.audit.get("rows")),
        (EXCLUDED, files.excluded, files.audit.get("excluded_rows")),
    ):
        if register is None:
            continue
        written = {(entry["subject"], entry["sample_id"]): entry["sha256"] for entry in register}
        there = {(row["subject"], row["sample_id"]): row_digest(row) for row in rows}
        for key in written.keys() - there.keys():
            yield Finding("row_missing", f"{name} ({key[1]})", f"subject {key[0]}: was written and is not there")
        for key in there.keys() - written.keys():
            yield Finding("row_added", f"{name} ({key[1]})", f"subject {key[0]}: was not written by the run")
        for key in written.keys() & there.keys():
            if written[key] != there[key]:
                yield Finding("row_edited", f"{name} ({key[1]})", "is not the row that was written")
        common = [key for key in written if key in there]
        if [key for key in there if key in written] != common:
            yield Finding("rows_reordered", name, "rows stand in another order than they were written in")


def check_files(files: RunFiles) -> Iterator[Finding]:
    """Files against the digests taken when they were written."""
    digest = files.audit.get(DIGEST_FIELD)
    if digest is not None and digest != audit_digest(files.audit):
        yield Finding("audit_edited", AUDIT, "is not the audit that was written")
    for name, written in (files.audit.get("files") or {}).items():
        path = files.folder / name
        if not path.is_file():
            continue  # already a finding of reading
        now = file_digest(path)
        if now["bytes"] < written["bytes"] and not path.read_bytes().endswith(b"\n"):
            yield Finding("file_truncated", name, f"ends after {now['bytes']} of {written['bytes']} bytes")
        elif now != written:
            yield Finding("file_edited", name, f"{now['lines']} lines, not the {written['lines']} that were written")


def compare(first: RunAudit, second: RunAudit) -> Comparison:
    """Two runs row by row; rows only one of them scored, or asked differently, are findings."""
    a, b = ({(row["subject"], row["sample_id"]): row for row in audit.files.predictions} for audit in (first, second))
    findings = [
        Finding("row_only_in_one_run", f"{audit.files.folder} ({sample_id})", f"subject {subject}: the other has not")
        for audit, mine, other in ((first, a, b), (second, b, a))
        for subject, sample_id in mine.keys() - other.keys()
    ]
    common = [key for key in a if key in b]
    for key in common:
        for name in ("protocol", "question", "options", "ground_truth"):
            if a[key][name] != b[key][name]:
                findings.append(Finding("runs_not_comparable", f"{key[1]}, field `{name}`", "differs between the runs"))
    only_first = sum(a[key]["correct"] and not b[key]["correct"] for key in common)
    only_second = sum(b[key]["correct"] and not a[key]["correct"] for key in common)
    return Comparison(
        rows=len(common), both_right=sum(a[key]["correct"] and b[key]["correct"] for key in common),
        only_first=only_first, only_second=only_second,
        flips=[
            (key[1], a[key]["prediction"], b[key]["prediction"])
            for key in common
            if a[key]["prediction"] != b[key]["prediction"]
        ],
        p_value=mcnemar(only_first, only_second), findings=findings,
    )  # fmt: skip


def describe(audit: RunAudit) -> str:
    """The audit in lines for people."""
    lines = [f"{audit.files.folder}"]
    figures = audit.recomputed
    if figures:
        low, high = wilson_interval(figures["overall_correct"], figures["overall_total"])
        base = figures["baselines"]
        lines += [
            f"  recomputed accuracy {figures['overall_accuracy']:.2f}% "
            f"({figures['overall_correct']}/{figures['overall_total']}), "
            f"95% interval {100 * low:.2f} to {100 * high:.2f}; "
            f"chance {base['chance_over_valid_letters']:.2f}%, always A {base['always_A']:.2f}%",
            f"  rows seen {figures['total_rows_seen']}, excluded {figures['excluded_by_reason']}, "
            f"status {figures['option_status_counts']}",
        ]
    lines += [f"  note: {note}" for note in audit.notes]
    lines += [f"  {finding}" for finding in audit.findings] or ["  nothing found"]
    return "\n".join(lines)


def describe_comparison(comparison: Comparison) -> str:
    """The difference of two runs in lines for people."""
    lines = [
        f"{comparison.rows} rows in both: right in both {comparison.both_right}, only in the first "
        f"{comparison.only_first}, only in the second {comparison.only_second}; {len(comparison.flips)} predictions "
        f"differ; McNemar's exact p = {comparison.p_value:.3g}",
    ]
    lines += [f"  {name}: {first} -> {second}" for name, first, second in comparison.flips]
    lines += [f"  {finding}" for finding in comparison.findings]
    return "\n".join(lines)


def _check_common(row: Row, where: str, files: RunFiles) -> Iterator[Finding]:
    for name in ("protocol", "split"):
        expected = files.results.get(name)
        if expected is not None and row[name] != expected:
            yield Finding(f"{name}_differs", where, f"{row[name]!r}, the results say {expected!r}")
    named = _MMMU_ID.fullmatch(row["sample_id"])
    if named and named["subject"] in DISCIPLINE_OF and named["subject"] != row["subject"]:
        yield Finding("subject_differs", where, f"{row['subject']!r}, its id says {named['subject']!r}")


def _all_letters_scored(rows: Sequence[Row]) -> bool:
    return all(list(row["candidate_scores"]) == list(LETTERS) for row in rows)


def _variant(protocol: str) -> Any:
    return next((name for name in ("v1", "mmmu", "lmms-eval") if protocol_name(name) == protocol), None)


def _read_object(path: Path, shape: type[BaseModel], findings: list[Finding]) -> Mapping[str, Any]:
    value = _decoded(path.read_bytes(), path.name, findings) if _there(path, findings) else None
    return value if value is not None and _is_sound(value, path.name, shape, findings) else {}


def _read_rows(path: Path, shape: type[BaseModel], findings: list[Finding]) -> list[Row]:
    """Sound rows of a JSON-lines file; every other line is a finding."""
    rows: list[Row] = []
    lines = path.read_bytes().splitlines() if _there(path, findings) else []
    for number, line in enumerate(lines, start=1):
        where = f"{path.name} line {number}"
        row = _decoded(line, where, findings)
        if row is not None and _is_sound(row, where, shape, findings):
            rows.append(row)
    return rows


def _is_sound(value: Any, where: str, shape: type[BaseModel], findings: list[Finding]) -> bool:
    problem = shape_problem(value, shape)
    if problem:
        findings.append(Finding("shape_differs", where, problem))
    return not problem


def _there(path: Path, findings: list[Finding]) -> bool:
    if not path.is_file():
        findings.append(Finding("file_missing", path.name, "is not there"))
        return False
    return True


def _decoded(data: bytes, where: str, findings: list[Finding]) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except ValueError as error:
        findings.append(Finding("file_unreadable", where, f"is not JSON: {error}"))
        return None


def _same_number(there: float | None, should: float | None) -> bool:
    if there is None or should is None:
        return there is should
    return math.isclose(there, should, rel_tol=_CLOSE, abs_tol=_CLOSE)


def _close(there: Any, should: Any) -> bool:
    if isinstance(should, Mapping):
        return (
            isinstance(there, Mapping)
            and there.keys() == should.keys()
            and all(_close(there[name], value) for name, value in should.items())
        )
    if isinstance(should, float):
        return isinstance(there, (int, float)) and _same_number(there, should)
    return bool(there == should)


def _differences(place: str, there: Any, should: Any) -> Iterator[tuple[str, Any, Any]]:
    """Leaves in which two JSON values differ, with the path to each."""
    if isinstance(there, Mapping) and isinstance(should, Mapping):
        for name in sorted({*there, *should}):
            if there.get(name) != should.get(name):
                yield from _differences(f"{place}.{name}", there.get(name), should.get(name))
    else:
        yield place, there, should
