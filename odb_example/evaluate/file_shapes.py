"""The shapes an audit relies on: what a benchmark's files must hold before anything is computed from them.

Only fields that the audit reads are named; files may hold more, and files written by others may lack the digests.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class PredictionShape(_Shape):
    """A line of ``predictions.jsonl``."""

    protocol: str
    split: str
    subject: str
    category: str
    sample_id: str
    question: str
    options: list[str]
    valid_candidate_letters: list[str]
    option_status: str
    ground_truth: str
    candidate_scores: dict[str, float]
    choice_scores: dict[str, float]
    prediction: str
    score_margin: float | None
    correct: bool
    num_images: int


class ExcludedShape(_Shape):
    """A line of ``excluded.jsonl``."""

    protocol: str
    split: str
    subject: str
    sample_id: str
    reason: str
    normalized_answer: str
    options: list[str]


class ResultsShape(_Shape):
    """``mmmu_mc_likelihood_results.json``."""

    protocol: str
    split: str
    dataset: str
    subjects: list[str]


class _Letter(_Shape):
    first_token_id: int


class _Entry(_Shape):
    subject: str
    sample_id: str
    sha256: str


class _File(_Shape):
    sha256: str
    bytes: int
    lines: int


class AuditShape(_Shape):
    """``score_audit.json``."""

    protocol: str
    candidate_token_info: dict[str, _Letter] = {}
    max_samples: int = 0
    rows: list[_Entry] | None = None
    excluded_rows: list[_Entry] | None = None
    files: dict[str, _File] | None = None


def shape_problem(value: Any, shape: type[BaseModel]) -> str:
    """The first field of ``value`` that is not as the shape has it, or nothing."""
    try:
        shape.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return f"field `{field}`: {first['msg']}" if field else "holds no JSON object"
    return ""
