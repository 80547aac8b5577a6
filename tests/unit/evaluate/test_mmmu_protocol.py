"""The scoring protocol's reading of a row, to the letter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_example.evaluate.mmmu import (
    LETTERS,
    Exclusion,
    Question,
    build_prompt,
    choose,
    normalize_answer,
    not_comparable_with,
    option_status,
    protocol_name,
    read_options,
    read_row,
    row_id,
)

pytestmark = pytest.mark.unit

MakeRow = Callable[..., dict[str, Any]]


def question(row: dict[str, Any], subject: str = "Art") -> Question:
    read = read_row(row, subject=subject, index=0, order=0)
    assert isinstance(read, Question)
    return read


def exclusion(row: dict[str, Any], subject: str = "Art") -> Exclusion:
    read = read_row(row, subject=subject, index=0, order=0)
    assert isinstance(read, Exclusion)
    return read


def test_a_sound_row_is_scored_over_its_own_letters(make_mmmu_row: MakeRow) -> None:
    read = question(make_mmmu_row("Art", 1))
    assert (read.status, read.valid_letters, read.answer, read.num_images) == ("options_valid", "ABCD", "B", 1)
    assert (read.category, read.oddities) == ("Art & Design", ())


def test_the_prompt_is_question_options_suffix_line_by_line() -> None:
    assert build_prompt("Why <image 1>?", ["x", "y"]) == (
        "Why <image 1>?\n(A) x\n(B) y\nAnswer with the option letter only."
    )


def test_without_options_an_empty_line_stays_in_the_prompt() -> None:
    assert build_prompt("Why?", []) == "Why?\n\nAnswer with the option letter only."


def test_nine_options_show_the_letter_i() -> None:
    assert "\n(H) 7\n(I) 8\nAnswer" in build_prompt("Q", [str(number) for number in range(9)])


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("mmmu", "Q\n(A) x\n(B) y\n\nAnswer with the option's letter from the given choices directly."),
        ("lmms-eval", "Q\nA. x\nB. y\n\nAnswer with the option's letter from the given choices directly."),
    ],
)
def test_other_wordings_are_other_protocols(variant: Any, expected: str) -> None:
    assert build_prompt("Q", ["x", "y"], variant) == expected
    assert protocol_name(variant) != protocol_name("v1") == "MMMU-MC-choice-likelihood-v1"
    assert any(protocol_name("v1") in words for words in not_comparable_with(variant))


@pytest.mark.parametrize("answer", [" b ", "b", "B\n"])
def test_answers_are_stripped_and_upper_case(make_mmmu_row: MakeRow, answer: str) -> None:
    assert question(make_mmmu_row("Art", 1, answer=answer)).answer == "B"


@pytest.mark.parametrize("answer", ["['A', 'B']", "I", "AB", "", "12", None, "[]", "Ⓐ"])
def test_answers_that_are_no_letter_are_excluded_with_the_answer_as_it_was(
    make_mmmu_row: MakeRow, answer: str | None
) -> None:
    read = exclusion(make_mmmu_row("Art", 1, answer=answer))
    assert (read.reason, read.answer_raw, read.normalized_answer) == (
        "non_letter_answer", answer, normalize_answer(answer),
    )  # fmt: skip
    assert read.options == ("a lever", "a pulley", "a wedge", "a screw")


def test_an_answer_given_as_a_list_is_excluded(make_mmmu_row: MakeRow) -> None:
    assert exclusion(make_mmmu_row("Art", 1, answer=["A"])).reason == "non_letter_answer"


@given(count=st.integers(0, 12), answer=st.sampled_from(LETTERS))
def test_status_checks_come_in_the_protocols_order(count: int, answer: str) -> None:
    expected = (
        ("missing_options_scored_all_letters", LETTERS)
        if count == 0
        else ("too_many_options_scored_AH", LETTERS)
        if count > 8
        else ("answer_outside_options_scored_all_letters", LETTERS)
        if LETTERS.index(answer) >= count
        else ("options_valid", LETTERS[:count])
    )
    assert option_status(count, answer) == expected


def test_nine_options_answered_with_a_letter_are_scored_over_a_to_h(make_mmmu_row: MakeRow) -> None:
    read = question(make_mmmu_row("Biology", 8, options=str(list("abcdefghi")), answer="H"))
    assert (read.status, read.valid_letters) == ("too_many_options_scored_AH", LETTERS)
    assert "options_beyond_H" in read.oddities


def test_an_open_row_with_a_letter_answer_is_scored_over_all_letters(make_mmmu_row: MakeRow) -> None:
    read = question(make_mmmu_row("Pharmacy", 19, options="[]", answer="B", question_type="open"))
    assert (read.status, read.valid_letters) == ("missing_options_scored_all_letters", LETTERS)
    assert read.oddities == ("open_row_with_letter_answer",)


def test_empty_options_are_dropped_and_letters_shift(make_mmmu_row: MakeRow) -> None:
    read = question(make_mmmu_row("Economics", 2, options="['', ' up', '  ', 'down']", answer="B"))
    assert read.options == ("up", "down")
    assert read.oddities == ("empty_options_dropped", "padded_options")


def test_duplicate_options_and_images_in_options_are_named(make_mmmu_row: MakeRow) -> None:
    read = question(make_mmmu_row("Chemistry", 2, options="['<image 2>', '<image 2>']", answer="A"))
    assert read.oddities == ("duplicate_options", "images_in_options")


@pytest.mark.parametrize("raw", ["['unclosed", "{'A': 'x'}", "4", "a, b", "[" * 5000, "None", "\x00", "['x'] + ['y']"])
def test_malformed_options_leave_none_and_are_named(make_mmmu_row: MakeRow, raw: str) -> None:
    read = question(make_mmmu_row("Economics", 5, options=raw, answer="B"))
    assert (read.options, read.status) == ((), "missing_options_scored_all_letters")
    assert "malformed_options" in read.oddities


def test_options_are_never_run_as_code(make_mmmu_row: MakeRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    question(make_mmmu_row("Economics", 4, options="__import__('pathlib').Path('ran').touch()", answer="A"))
    assert not list(tmp_path.iterdir())


def test_option_fields_stand_in_for_a_missing_list_and_null_reads_as_the_word_none(make_mmmu_row: MakeRow) -> None:
    row = make_mmmu_row("Art", 1, options=None, answer="B") | {"option_A": None, "option_B": " two ", "option_C": ""}
    read = question(row)
    assert read.options == ("None", "two")
    assert "null_option_read_as_text" in read.oddities


def test_options_already_parsed_are_taken_as_they_are() -> None:
    assert read_options({"options": ["x", 4, " y "]}) == ("x", "4", "y")


def test_control_tokens_in_a_question_are_named(make_mmmu_row: MakeRow) -> None:
    read = question(make_mmmu_row("Art", 1, question="Is <|im_end|> a word?"))
    assert read.oddities == ("special_token_in_text",)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": "x", "sample_id": "y"}, "x"),
        ({"id": "", "sample_id": "y"}, "y"),
        ({"id": None, "question_id": 7}, "7"),
        ({}, "Art:3"),
    ],
)
def test_row_ids_fall_back_in_order(fields: dict[str, Any], expected: str) -> None:
    assert row_id(fields, subject="Art", index=3) == expected


def test_images_are_counted_over_all_seven_fields(make_mmmu_row: MakeRow) -> None:
    row = make_mmmu_row("Math", 2) | {f"image_{place}": b"x" for place in range(1, 8)}
    assert question(row).num_images == 7
    assert "no_image" in question(make_mmmu_row("Math", 1, image_1=None)).oddities


@given(st.lists(st.floats(-20, 0, allow_nan=False), min_size=8, max_size=8), st.integers(1, 8))
def test_the_best_valid_letter_wins_and_ties_go_to_the_earlier_one(values: list[float], count: int) -> None:
    scores = dict(zip(LETTERS, values, strict=True))
    letter, margin = choose(scores, LETTERS[:count])
    best = max(values[:count])
    assert LETTERS.index(letter) == values.index(best)
    others = sorted(values[:count])[:-1]
    assert margin == (best - others[-1] if others else None)
