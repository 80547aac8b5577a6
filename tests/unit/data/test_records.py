"""A `Record` that exists is sound."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_example.data.records import Record, RecordError, Turn, path_problem

pytestmark = pytest.mark.unit

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAME = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)


def sound(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a-1",
        "source": "a",
        "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "That."}],
        "images": ["images/one.png"],
        "upstream": {},
    } | changes


@st.composite
def records(draw: st.DrawFn) -> Record:
    images = tuple(draw(st.lists(NAME.map(lambda name: f"images/{name}.png"), max_size=3)))
    turns = draw(st.lists(st.builds(Turn, st.sampled_from(["human", "gpt"]), TEXT), min_size=1, max_size=6))
    if images:
        cleaned = [Turn(turn.role, turn.value.replace("<image>", "")) for turn in turns]
        turns = [Turn("human", "<image>" * len(images)), *cleaned]
    upstream = draw(st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=2))
    return Record(draw(TEXT.filter(bool)), draw(TEXT.filter(bool)), tuple(turns), images, upstream)


@given(records())
def test_every_record_reads_back_equal_from_its_json(record: Record) -> None:
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": 7}, "id"),
        ({"id": ""}, "id"),
        ({"source": None}, "source"),
        ({"source": "half \ud800"}, "source"),
        ({"conversations": {}}, "conversations"),
        ({"conversations": []}, "conversations"),
        ({"conversations": ["hello"]}, "conversations[0]"),
        ({"conversations": [{"from": "system", "value": "be kind"}]}, "conversations[0].from"),
        ({"conversations": [{"from": ["human"], "value": "x"}]}, "conversations[0].from"),
        ({"conversations": [{"from": "human", "value": None}]}, "conversations[0].value"),
        ({"conversations": [{"from": "human", "value": "half \udc00"}]}, "conversations[0].value"),
        ({"images": "images/one.png"}, "images"),
        ({"images": [1]}, "images[0]"),
        ({"images": ["/etc/passwd"]}, "images[0]"),
        ({"images": ["images/../../x.png"]}, "images[0]"),
        ({"images": ["C:/x.png"]}, "images[0]"),
        ({"images": ["images\\x.png"]}, "images[0]"),
        ({"images": [""]}, "images[0]"),
        ({"images": ["images/\0.png"]}, "images[0]"),
        ({"images": ["images/one.png", "images/two.png"]}, "images"),
        ({"upstream": []}, "upstream"),
    ],
)
def test_a_broken_field_is_named_with_its_record(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RecordError) as raised:
        Record.from_json(sound(**changes), "file line 3")
    error = raised.value
    assert error.field == field
    assert error.record_id == ("" if "id" in changes else "a-1")
    assert str(error).startswith("file line 3: ")
    assert f"`{field}`" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["id", "source", "conversations", "images"])
def test_a_missing_field_is_named(name: str) -> None:
    value = sound()
    del value[name]
    with pytest.raises(RecordError, match=rf"field `{name}`: is missing"):
        Record.from_json(value)


@pytest.mark.parametrize("value", [None, 3, "text", [], True])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(RecordError, match="a JSON object is needed"):
        Record.from_json(value)


def test_without_images_the_placeholder_is_ordinary_text() -> None:
    turns = [{"from": "human", "value": "What does <image> mean? <image>"}, {"from": "gpt", "value": "A tag."}]
    record = Record.from_json(sound(conversations=turns, images=[]))
    assert record.conversations[0].value == "What does <image> mean? <image>"


def test_in_an_answer_the_placeholder_is_ordinary_text() -> None:
    turns = [{"from": "human", "value": "<image> Which tag?"}, {"from": "gpt", "value": "<image><image>"}]
    assert Record.from_json(sound(conversations=turns)).images == ("images/one.png",)


@given(st.lists(NAME, min_size=1, max_size=4).map("/".join))
def test_ordinary_relative_paths_are_accepted(path: str) -> None:
    assert path_problem(path) == ""


@given(st.lists(NAME, max_size=3), st.lists(NAME, max_size=3))
def test_a_path_with_a_step_upwards_is_refused_wherever_it_stands(before: list[str], after: list[str]) -> None:
    assert path_problem("/".join([*before, "..", *after]))
