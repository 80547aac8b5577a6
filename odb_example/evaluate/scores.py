"""From scored rows to the benchmark's figures. Pure: the audit recomputes the same figures from the files alone.

In: rows of ``predictions.jsonl`` and ``excluded.jsonl``. Out: the counted fields of
``mmmu_mc_likelihood_results.json``. Accuracies are per cent with two decimals, as the reference prints them; a group
without rows has accuracy null rather than 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from odb_example.evaluate.mmmu import (
    INCOMPLETE_REASONS,
    LETTERS,
    Exclusion,
    Question,
    Variant,
    build_prompt,
    choose,
    prompt_digest,
    protocol_name,
)
from odb_example.evaluate.statistics import wilson_interval
from odb_example.evaluate.subjects import DISCIPLINES

Row = Mapping[str, Any]


def prediction_row(
    question: Question, log_probabilities: Sequence[float], *, split: str, variant: Variant, prompt_tokens: int
) -> dict[str, Any]:
    """One line of ``predictions.jsonl``.

    Args:
        log_probabilities: of the letters A-H, natural logarithm, in this order.
        prompt_tokens: length of the scored prompt, visual tokens included.
    """
    scores = dict(zip(LETTERS, (float(value) for value in log_probabilities), strict=True))
    prediction, margin = choose(scores, question.valid_letters)
    return {
        "protocol": protocol_name(variant),
        "split": split,
        "subject": question.subject,
        "category": question.category,
        "sample_id": question.sample_id,
        "question": question.question,
        "options": list(question.options),
        "valid_candidate_letters": list(question.valid_letters),
        "option_status": question.status,
        "ground_truth": question.answer,
        "candidate_scores": scores,
        "choice_scores": {letter: scores[letter] for letter in question.valid_letters},
        "prediction": prediction,
        "score_margin": margin,
        "correct": prediction == question.answer,
        "num_images": question.num_images,
        "prompt_tokens": prompt_tokens,
        "prompt_sha256": prompt_digest(build_prompt(question.question, question.options, variant)),
        "oddities": list(question.oddities),
    }


def excluded_row(exclusion: Exclusion, *, split: str, variant: Variant) -> dict[str, Any]:
    """One line of ``excluded.jsonl``."""
    row = {
        "protocol": protocol_name(variant),
        "split": split,
        "subject": exclusion.subject,
        "sample_id": exclusion.sample_id,
        "reason": exclusion.reason,
        "answer_raw": exclusion.answer_raw,
        "normalized_answer": exclusion.normalized_answer,
        "options": list(exclusion.options),
    }
    return row | {"detail": exclusion.detail} if exclusion.detail else row


def count_scores(predictions: Sequence[Row], excluded: Sequence[Row]) -> dict[str, Any]:
    """Every figure of the results file that follows from the rows alone."""
    overall = accuracy_of(predictions)
    per_category = {
        name: accuracy_of([row for row in predictions if row["category"] == name]) for name in DISCIPLINES
    } | {"Overall": overall}
    return {
        "evaluated_samples": len(predictions),
        "excluded_samples": len(excluded),
        "total_rows_seen": len(predictions) + len(excluded),
        "overall_accuracy": overall["accuracy"],
        "overall_correct": overall["correct"],
        "overall_total": overall["total"],
        "per_category": per_category,
        "excluded_by_reason": counted(row["reason"] for row in excluded),
        "prediction_counts": counted(row["prediction"] for row in predictions),
        "option_status_counts": counted(row["option_status"] for row in predictions),
        "total_images": sum(row["num_images"] for row in predictions),
        "accuracy_interval_95": interval(predictions),
        "baselines": baselines(predictions),
        "per_subject": grouped(predictions, lambda row: row["subject"]),
        "by_option_count": grouped(predictions, lambda row: len(row["options"])),
        "by_image_count": grouped(predictions, lambda row: row["num_images"]),
        "complete": not any(row["reason"] in INCOMPLETE_REASONS for row in excluded),
    }


def accuracy_of(rows: Sequence[Row]) -> dict[str, Any]:
    """``accuracy`` in per cent (null without rows), ``total`` and ``correct``."""
    correct = sum(bool(row["correct"]) for row in rows)
    return {"accuracy": percent(correct, len(rows)), "total": len(rows), "correct": correct}


def percent(part: float, whole: int) -> float | None:
    """Per cent with two decimals, null of nothing."""
    return round(100 * part / whole, 2) if whole else None


def interval(rows: Sequence[Row]) -> list[float] | None:
    """Wilson's 95% interval of the accuracy, in per cent."""
    if not rows:
        return None
    low, high = wilson_interval(sum(bool(row["correct"]) for row in rows), len(rows))
    return [round(100 * low, 2), round(100 * high, 2)]


def baselines(rows: Sequence[Row]) -> dict[str, Any]:
    """What a blind guesser gets on exactly these rows, in per cent: uniform over valid letters, and always A."""
    return {
        "chance_over_valid_letters": percent(sum(1 / len(row["valid_candidate_letters"]) for row in rows), len(rows)),
        "always_A": percent(sum(row["ground_truth"] == "A" for row in rows), len(rows)),
    }


def grouped(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[str, dict[str, Any]]:
    """Accuracy and its interval by a key, keys in order."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {str(name): accuracy_of(groups[name]) | {"interval_95": interval(groups[name])} for name in sorted(groups)}


def counted(values: Any) -> dict[str, int]:
    """How often each value stands there, values in order."""
    return dict(sorted(Counter(values).items()))
