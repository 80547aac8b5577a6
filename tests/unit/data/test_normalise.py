"""Rows of the sources become records by stated rules, or are left out for a stated reason."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.hub_folders import llava_row, picture, text_row

from odb_example.data.images import open_image
from odb_example.data.normalise import Normalised, Skipped, normalise
from odb_example.data.sources import ANY, SOURCES, Source

pytestmark = pytest.mark.unit

LLAVA, CHINESE = SOURCES[0], SOURCES[-1]
VQA = Source(name="vqa_like", hub_id="any", columns=ANY, licence="any")


def normalised(source: Source, row: Any) -> Normalised:
    made = normalise(source, row, 3)
    assert isinstance(made, Normalised)
    return made


def values(made: Normalised) -> list[str]:
    return [turn.value for turn in made.record.conversations]


def test_a_sound_row_keeps_its_words_and_its_image_bytes() -> None:
    made = normalised(LLAVA, llava_row(3))
    assert values(made) == ["<image>\nWhat is number 3?", "It is 3."]
    assert made.image.data == picture(3)
    assert made.record.id == "aokvqa-0000003"
    assert made.record.images == (made.image.path,)
    assert made.record.upstream == {"id": "row-3"}


def test_a_missing_placeholder_is_prepended_to_the_first_question_only() -> None:
    row = llava_row(1, turns=[("human", "What?"), ("gpt", "This."), ("human", "And?"), ("gpt", "That.")])
    assert values(normalised(LLAVA, row)) == ["<image>\nWhat?", "This.", "And?", "That."]


def test_a_placeholder_in_a_later_question_stays_where_it_is() -> None:
    row = llava_row(1, turns=[("human", "Hello."), ("gpt", "Hello."), ("human", "See <image>?"), ("gpt", "Yes.")])
    assert values(normalised(LLAVA, row)) == ["Hello.", "Hello.", "See <image>?", "Yes."]


def test_a_placeholder_in_an_answer_is_no_placeholder() -> None:
    row = llava_row(1, turns=[("human", "Which tag?"), ("gpt", "<image>")])
    assert values(normalised(LLAVA, row)) == ["<image>\nWhich tag?", "<image>"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (llava_row(1, image=None), "no_image"),
        (llava_row(1, image=b""), "no_image"),
        (llava_row(1, image=b"no picture"), "undecodable_image"),
        (llava_row(1, image=picture(1)[:-30]), "undecodable_image"),
        (llava_row(1, image=picture(1, size=(402, 2))), "strip_beyond_ratio"),
        (llava_row(1, turns=[("system", "Be kind."), ("human", "What?"), ("gpt", "This.")]), "role_refused"),
        (llava_row(1, turns=[("human", "<image><image>"), ("gpt", "Two.")]), "too_many_placeholders"),
        (llava_row(1, turns=[("gpt", "Hello.")]), "no_question"),
        (llava_row(1, turns=[("human", "What?")]), "no_answer"),
        (llava_row(1, turns=[("human", "What?"), ("gpt", "  ")]), "no_answer"),
        ({**llava_row(1), "conversations": []}, "no_question"),
        ({**llava_row(1), "conversations": [{"from": "human", "value": None}]}, "empty_turn"),
    ],
)
def test_a_defect_has_a_reason_of_its_own(row: Any, reason: str) -> None:
    made = normalise(LLAVA, row, 0)
    assert isinstance(made, Skipped)
    assert made.reason == reason


def test_the_longest_strip_the_processors_take_is_kept() -> None:
    assert normalised(LLAVA, llava_row(1, image=picture(1, size=(400, 2)))).image.suffix == "jpg"


def test_a_text_row_asks_for_the_text() -> None:
    assert values(normalised(CHINESE, text_row(5))) == ["<image>\n图中的文字是什么？", "文字5"]
    empty = normalise(CHINESE, {**text_row(5), "text": " "}, 0)
    assert isinstance(empty, Skipped)
    assert empty.reason == "no_answer"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"answer": "red"}, "red"),
        ({"answer": None, "answers": ["blue", "red", "red"]}, "red"),
        ({"answers": [{"answer": "one"}, {"answer": "two"}]}, "one"),
    ],
)
def test_a_question_row_takes_the_answer_most_people_gave(answers: dict[str, Any], expected: str) -> None:
    row = {"image": llava_row(1)["image"], "question": "Which?", **answers}
    assert values(normalised(VQA, row)) == ["<image>\nWhich?", expected]


def test_a_question_source_may_come_as_conversations() -> None:
    assert values(normalised(VQA, llava_row(2)))[1] == "It is 2."


def test_a_file_of_an_uncommon_format_is_stored_as_the_png_of_what_it_shows() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 10, 10)).save(stream, "ICO")
    image = normalised(LLAVA, llava_row(1, image=stream.getvalue())).image
    assert image.suffix == "png"
    assert open_image(image.data).getpixel((0, 0)) == (200, 10, 10)


TURNS = st.lists(st.tuples(st.sampled_from(["human", "gpt", "system"]), st.text(max_size=12) | st.just("<image>")))


@given(TURNS)
def test_whatever_the_turns_a_row_becomes_a_sound_record_or_is_skipped(turns: Sequence[tuple[str, str]]) -> None:
    row = {**llava_row(1), "conversations": [{"from": role, "value": value} for role, value in turns]}
    made = normalise(LLAVA, row, 0)
    if isinstance(made, Normalised):
        assert sum(turn.value.count("<image>") for turn in made.record.conversations if turn.role == "human") == 1
    else:
        assert made.reason
