"""A benchmark's files for the audit: what cannot be read, or has another shape, is a finding, not an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from odb_example.errors import UserError
from odb_example.evaluate.file_shapes import AuditShape, ExcludedShape, PredictionShape, ResultsShape, shape_problem
from odb_example.evaluate.folders import AUDIT, BENCHMARK_FOLDER, EXCLUDED, PREDICTIONS, RESULTS
from odb_example.evaluate.scores import Row


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
