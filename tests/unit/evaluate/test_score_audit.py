"""What the audit file says, and that it says it of these rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odb_example import schema
from odb_example.evaluate.folders import AUDIT, EXCLUDED, PREDICTIONS, RESULTS
from odb_example.evaluate.mmmu import LETTERS, read_row
from odb_example.evaluate.score_audit import batch_invariance, check_known, margins
from odb_example.evaluate.scores import count_scores, prediction_row
from odb_example.evaluate.subjects import MMMU_VALIDATION, SUBJECTS, known_split

pytestmark = pytest.mark.unit


def load(folder: Path, name: str) -> Any:
    text = (folder / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)


def test_files_hold_the_fields_people_read(written_run: Path) -> None:
    assert schema.missing(load(written_run, RESULTS), schema.BENCHMARK_RESULTS) == []
    assert schema.missing(load(written_run, PREDICTIONS), [schema.PREDICTION]) == []
    assert schema.missing(load(written_run, EXCLUDED), [schema.EXCLUDED]) == []
    assert schema.missing(load(written_run, AUDIT), schema.SCORE_AUDIT) == []
    assert len(load(written_run, AUDIT)["score_meta_examples"]) == 5


def test_rows_stand_in_the_order_of_the_data_set(written_run: Path) -> None:
    ids = [row["sample_id"] for row in load(written_run, PREDICTIONS)]
    subjects = [name.split("_")[1] for name in ids]
    assert subjects == sorted(subjects)
    assert ids[:3] == ["validation_Art_1", "validation_Art_2", "validation_Art_3"]


def test_every_oddity_of_the_set_is_counted(written_run: Path) -> None:
    audit = load(written_run, AUDIT)
    ids = {name.removeprefix("validation_") for name in audit["oddities"]["duplicate_options"]["sample_ids"]}
    assert ids == {"Economics_1"}
    assert {name: value["rows"] for name, value in audit["oddities"].items()} == {
        "duplicate_options": 1,
        "empty_options_dropped": 1,
        "images_in_options": 1,
        "malformed_options": 2,
        "no_image": 1,
        "open_row_with_letter_answer": 1,
        "options_beyond_H": 1,
        "padded_options": 1,
        "special_token_in_text": 1,
    }
    assert audit["alpha_dropped"] == ["validation_Pharmacy_21"]
    assert audit["option_status_counts"] == {
        "answer_outside_options_scored_all_letters": 1,
        "missing_options_scored_all_letters": 3,
        "options_valid": 16,
        "too_many_options_scored_AH": 1,
    }


def test_a_result_with_unread_rows_says_that_it_is_not_complete(written_run: Path) -> None:
    assert load(written_run, RESULTS)["complete"] is False
    assert load(written_run, RESULTS)["excluded_by_reason"]["undecodable_image"] == 2


def test_baselines_are_those_of_exactly_the_scored_rows(written_run: Path) -> None:
    rows = load(written_run, PREDICTIONS)
    base = load(written_run, RESULTS)["baselines"]
    chance = sum(1 / len(row["valid_candidate_letters"]) for row in rows) / len(rows)
    always = sum(row["ground_truth"] == "A" for row in rows) / len(rows)
    assert base == {"chance_over_valid_letters": round(100 * chance, 2), "always_A": round(100 * always, 2)}


def test_groups_partition_the_rows(written_run: Path) -> None:
    result = load(written_run, RESULTS)
    for name in ("per_subject", "by_option_count", "by_image_count"):
        assert sum(group["total"] for group in result[name].values()) == result["overall_total"]
        assert sum(group["correct"] for group in result[name].values()) == result["overall_correct"]
    assert list(result["by_image_count"]) == ["0", "1", "4", "7"]


def test_a_discipline_without_rows_has_no_accuracy(written_run: Path) -> None:
    humanities = load(written_run, RESULTS)["per_category"]["Humanities & Social Science"]
    assert humanities == {"accuracy": None, "total": 0, "correct": 0}


def row_with(scores: list[float], truth: str = "A") -> dict[str, Any]:
    options = str([f"o{place}" for place in range(len(scores))])
    read = read_row({"id": "r", "question": "?", "options": options, "answer": truth}, subject="Art", index=0, order=0)
    padded = [*scores, *[-30.0] * (8 - len(scores))]
    return prediction_row(read, padded, split="validation", variant="v1", prompt_tokens=4)  # type: ignore[arg-type]


def test_near_ties_are_rows_whose_lead_is_within_the_noise() -> None:
    rows = [row_with([-1.0, -1.0]), row_with([-1.0, -1.5]), row_with([-2.0])]
    assert margins(rows, noise=0.1) | {"near_tie_rows": None} == {
        "min": 0.0, "p01": 0.0, "p10": 0.0, "p50": 0.0, "p90": 0.5, "max": 0.5, "numeric_noise": 0.1,
        "near_ties": 1, "near_tie_rows": None,
    }  # fmt: skip


def test_a_flip_between_batched_and_alone_is_reported_with_its_lead() -> None:
    row = row_with([-1.0, -1.25, -3.0])
    alone = [-1.5, -1.25, -3.0, *[-30.0] * 5]
    found = batch_invariance([(row, alone)], seed=0)
    assert found["largest_difference"] == 0.5
    (flip,) = found["flips"]
    assert (flip["batched"], flip["alone"], flip["score_margin"]) == ("A", "B", 0.25)


def public_split() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with the public validation split's counts, made up to meet them."""
    known = MMMU_VALIDATION
    scored: list[dict[str, Any]] = []
    answers = [letter for letter, times in known.answers.items() for _ in range(times)]
    counts = [int(count) for count, times in known.option_counts.items() for _ in range(times)]
    counts.remove(9)
    counts = sorted(counts, reverse=True) + [0] * 4
    answers.sort(reverse=True)
    for number, (answer, count) in enumerate(zip(answers, counts, strict=True)):
        oddities = ["duplicate_options"] * (number < 6) + ["padded_options"] * (number < 14)
        scored.append({"sample_id": f"r{number}", "subject": "Art", "ground_truth": answer, "options": ["x"] * count,
                       "oddities": oddities + ["images_in_options"] * (number < 17)})  # fmt: skip
        scored[-1]["option_status"] = (
            "missing_options_scored_all_letters" if count == 0
            else "too_many_options_scored_AH" if count > 8 else "options_valid"
        )  # fmt: skip
    for row, name in zip(scored[-4:], sorted(known.open_rows_with_letter), strict=True):
        row |= {"sample_id": name, "oddities": [*row["oddities"], "open_row_with_letter_answer"]}
    excluded = [
        {"subject": subject, "sample_id": f"{subject}-{number}", "options": [], "answer_raw": "3.2"}
        for subject, times in known.excluded_by_subject.items()
        for number in range(times)
    ]
    lists = {name.split("_")[1]: name for name in known.list_answers}
    for row in excluded:
        if row["subject"] in lists:
            row |= {"sample_id": lists.pop(row["subject"]), "answer_raw": "['1', 'one']"}
    excluded[2] |= {"options": ["x"] * 9, "answer_raw": "I"}
    return scored, excluded


def test_the_known_figures_hold_for_a_split_that_has_them() -> None:
    checked = check_known(MMMU_VALIDATION, *public_split())
    assert {name for name, value in checked.items() if not value["holds"]} == set()


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (
            lambda scored, excluded: scored.pop(500),
            {"total_rows", "scored", "answers", "option_counts", "option_status"},
        ),
        (lambda scored, excluded: excluded[0].update(subject="Art"), {"excluded_by_subject"}),
        (lambda scored, excluded: scored[-1].update(sample_id="validation_Art_1"), {"open_rows_with_letter"}),
        (
            lambda scored, excluded: scored[0].update(oddities=["images_in_options"]),
            {"duplicate_options", "padded_options"},
        ),
    ],
)
def test_a_split_that_differs_is_named_by_figure(spoil: Callable[..., Any], broken: set[str]) -> None:
    scored, excluded = public_split()
    spoil(scored, excluded)
    checked = check_known(MMMU_VALIDATION, scored, excluded)
    assert {name for name, value in checked.items() if not value["holds"]} == broken


def test_known_figures_belong_to_the_full_public_validation_split_only() -> None:
    assert known_split("MMMU/MMMU", "validation", SUBJECTS, 0) is MMMU_VALIDATION
    assert sum(MMMU_VALIDATION.answers.values()) == MMMU_VALIDATION.scored == 850
    assert sum(MMMU_VALIDATION.excluded_by_subject.values()) == MMMU_VALIDATION.excluded == 50
    for changed in (
        known_split("other/MMMU", "validation", SUBJECTS, 0),
        known_split("MMMU/MMMU", "dev", SUBJECTS, 0),
        known_split("MMMU/MMMU", "validation", SUBJECTS[1:], 0),
        known_split("MMMU/MMMU", "validation", SUBJECTS, 10),
    ):
        assert changed is None


def test_counts_of_no_rows_are_no_accuracy() -> None:
    counted = count_scores([], [])
    assert (counted["overall_accuracy"], counted["overall_total"], counted["accuracy_interval_95"]) == (None, 0, None)
    assert LETTERS == "ABCDEFGH"
