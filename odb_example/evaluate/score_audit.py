"""What is needed to distrust a benchmark score, gathered while it is made and written as ``score_audit.json``.

In: scored and excluded rows, facts about letters, prompts and the data set, the batch-invariance check. Out: one JSON
object: the reference's four fields, and ours: letters in context, a digest a row and a file, counts against the known
ones, biases, margins against numeric noise, duplicates. `odb_example.evaluate.audit` reads it back.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from odb_example.evaluate.mmmu import LETTERS, choose
from odb_example.evaluate.scores import Row, counted
from odb_example.evaluate.statistics import quantile
from odb_example.evaluate.subjects import KnownSplit

DIGEST_FIELD = "audit_sha256"


def canonical(value: Any) -> bytes:
    """One spelling of a JSON value, so that equal values have equal digests."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass")


def row_digest(row: Row) -> str:
    """SHA-256 of one line's value."""
    return hashlib.sha256(canonical(row)).hexdigest()


def audit_digest(audit: Mapping[str, Any]) -> str:
    """SHA-256 of the audit itself, without the field that holds it."""
    return hashlib.sha256(canonical({name: value for name, value in audit.items() if name != DIGEST_FIELD})).hexdigest()


def file_digest(path: Path) -> dict[str, Any]:
    """SHA-256, bytes and lines of a result file."""
    content = path.read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "lines": content.count(b"\n")}


def row_register(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Who the rows are, in order, each with its digest."""
    return [{"subject": row["subject"], "sample_id": row["sample_id"], "sha256": row_digest(row)} for row in rows]


def letter_bias(predictions: Sequence[Row]) -> dict[str, dict[str, float]]:
    """How often each letter is predicted and is right, and its mean log-probability over all rows."""
    total = len(predictions)
    predicted = Counter(row["prediction"] for row in predictions)
    right = Counter(row["ground_truth"] for row in predictions)
    return {
        letter: {
            "predicted_share": predicted[letter] / total,
            "answer_share": right[letter] / total,
            "mean_log_probability": sum(row["candidate_scores"][letter] for row in predictions) / total,
        }
        for letter in LETTERS
        if total
    }


def margins(predictions: Sequence[Row], noise: float) -> dict[str, Any]:
    """Leads of the best letter over the second, and the rows whose lead is within the run's numeric noise."""
    leads = [row["score_margin"] for row in predictions if row["score_margin"] is not None]
    near = [row["sample_id"] for row in predictions if row["score_margin"] is not None and row["score_margin"] <= noise]
    shares = {"min": 0.0, "p01": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
    return {
        **{name: quantile(leads, share) if leads else None for name, share in shares.items()},
        "numeric_noise": noise,
        "near_ties": len(near),
        "near_tie_rows": near,
    }


def batch_invariance(again: Sequence[tuple[Row, Sequence[float]]], seed: int) -> dict[str, Any]:
    """Rows scored again one at a time, against what they got in their batch.

    Args:
        again: row and the log-probabilities of A-H it gets alone.
    """
    largest, flips = 0.0, []
    for row, scores in again:
        alone = dict(zip(LETTERS, scores, strict=True))
        largest = max(largest, *(abs(alone[letter] - row["candidate_scores"][letter]) for letter in LETTERS))
        prediction, _ = choose(alone, "".join(row["valid_candidate_letters"]))
        if prediction != row["prediction"]:
            flips.append(
                {
                    "subject": row["subject"],
                    "sample_id": row["sample_id"],
                    "batched": row["prediction"],
                    "alone": prediction,
                    "score_margin": row["score_margin"],
                }
            )
    return {"rows": len(again), "seed": seed, "largest_difference": largest, "flips": flips}


def duplicates(predictions: Sequence[Row], pictures: Sequence[str]) -> dict[str, Any]:
    """Row ids that occur twice, and groups of rows with the same prompt and the same images.

    Args:
        pictures: digest of each row's images.
    """
    ids = Counter(row["sample_id"] for row in predictions)
    same: dict[tuple[str, str], list[str]] = {}
    for row, picture in zip(predictions, pictures, strict=True):
        same.setdefault((row["prompt_sha256"], picture), []).append(row["sample_id"])
    return {
        "sample_ids": sorted(name for name, times in ids.items() if times > 1),
        "same_prompt_and_images": [names for names in same.values() if len(names) > 1],
    }


def oddity_counts(predictions: Sequence[Row]) -> dict[str, Any]:
    """How many scored rows have each oddity of the data or the protocol, and which."""
    rows: dict[str, list[str]] = {}
    for row in predictions:
        for name in row["oddities"]:
            rows.setdefault(name, []).append(row["sample_id"])
    return {name: {"rows": len(rows[name]), "sample_ids": rows[name]} for name in sorted(rows)}


def check_known(known: KnownSplit, predictions: Sequence[Row], excluded: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Each known figure of a full split: expected, found, and whether it holds."""
    option_counts = counted(str(len(row["options"])) for row in predictions if row["options"])
    for row in excluded:  # a nine-option row answered I is not scored, and is multiple choice all the same
        if len(row["options"]) > 1:
            option_counts[str(len(row["options"]))] = option_counts.get(str(len(row["options"])), 0) + 1
    odd = {name: value["rows"] for name, value in oddity_counts(predictions).items()}
    open_rows = {row["sample_id"] for row in predictions if "open_row_with_letter_answer" in row["oddities"]}
    lists = {row["sample_id"] for row in excluded if str(row["answer_raw"]).strip().startswith("[")}
    found: dict[str, tuple[Any, Any]] = {
        "total_rows": (known.total_rows, len(predictions) + len(excluded)),
        "scored": (known.scored, len(predictions)),
        "excluded": (known.excluded, len(excluded)),
        "excluded_by_subject": (dict(known.excluded_by_subject), counted(row["subject"] for row in excluded)),
        "option_status": (dict(known.option_status), counted(row["option_status"] for row in predictions)),
        "answers": (dict(known.answers), counted(row["ground_truth"] for row in predictions)),
        "option_counts": (dict(known.option_counts), dict(sorted(option_counts.items()))),
        "open_rows_with_letter": (sorted(known.open_rows_with_letter), sorted(open_rows)),
        "list_answers": (sorted(known.list_answers), sorted(lists)),
        "duplicate_options": (known.duplicate_options, odd.get("duplicate_options", 0)),
        "padded_options": (known.padded_options, odd.get("padded_options", 0)),
    }
    checked = {
        name: {"expected": expected, "found": actual, "holds": expected == actual}
        for name, (expected, actual) in found.items()
    }
    pictured = odd.get("images_in_options", 0)
    checked["images_in_options"] = {
        "expected": list(known.images_in_options),
        "found": pictured,
        "holds": pictured in known.images_in_options,
    }
    return checked
