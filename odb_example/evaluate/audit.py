"""Distrust a benchmark's files: recompute every figure from ``predictions.jsonl`` and ``excluded.jsonl`` alone.

In: one or two run folders (or benchmark folders). Out: findings, each naming file, row and field; for two runs, the
rows that flipped and McNemar's p-value. Files written by others are audited too; where there is no ``score_audit.json``
with digests, an edit that keeps the files consistent with each other cannot be seen, and that is said.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odb_example.errors import UserError
from odb_example.evaluate.audit_checks import (
    check_audit,
    check_excluded,
    check_files,
    check_places,
    check_prediction,
    check_register,
    check_results,
)
from odb_example.evaluate.audit_files import Finding, RunFiles, read_run
from odb_example.evaluate.scores import count_scores
from odb_example.evaluate.statistics import mcnemar, wilson_interval


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
