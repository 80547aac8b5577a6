"""Numbers with tolerances: what holds, what differs, and in which words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from odb_example.errors import UserError
from odb_example.testing.baselines import (
    Number,
    Provenance,
    Stored,
    absolute,
    as_table,
    compare,
    exact,
    parse,
    relative,
)

pytestmark = pytest.mark.unit


def stored(numbers: dict[str, Number], **provenance: object) -> Stored:
    base = {
        "test": "tests/unit/test_x.py::test_x", "tier": "unit", "recorded": "2026-01-01", "commit": "abc1234",
        "hardware": {"cores": 2}, "versions": {"torch": "2.14.1"}, "settings": {},
    }  # fmt: skip
    return Stored(numbers=numbers, provenance=Provenance.model_validate(base | provenance))


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.dictionaries(st.text(min_size=1), (VALUES | st.lists(VALUES)).map(exact)))
def test_a_written_baseline_reads_back_as_the_same_numbers(numbers: dict[str, Number]) -> None:
    written = stored(numbers)
    assert parse(written.to_text(), "file") == written
    assert compare(written, written) == []


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 10), st.floats(-3, 3))
def test_an_absolute_tolerance_holds_up_to_its_bound_and_no_further(value: float, bound: float, by: float) -> None:
    now = value + by * bound
    differs = bool(compare(stored({"x": absolute(value, bound)}), stored({"x": absolute(now, bound)})))
    assert differs == (abs(now - value) > bound)


def test_a_relative_tolerance_is_a_share_of_the_stored_value() -> None:
    def differs(before: float, now: float) -> bool:
        return bool(compare(stored({"x": relative(before, 0.01)}), stored({"x": relative(now, 0.01)})))

    assert [differs(100, 101), differs(100, 101.1), differs(-100, -99), differs(-100, -98.9), differs(0, 0.001)] == [
        False, True, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now"), [(12, 13), (1, True), ("v1", "v2"), ([1, 2], [1, 3]), ([1, 2], [1, 2, 3]), ([1], 1), (0, None)]
)
def test_an_exact_number_allows_no_change_of_value_type_or_length(before: object, now: object) -> None:
    assert len(compare(stored({"x": exact(before)}), stored({"x": exact(now)}))) == 1  # type: ignore[arg-type]


def test_a_list_names_each_place_that_differs() -> None:
    fields = [d.field for d in compare(stored({"q": exact([1, 2, 3])}), stored({"q": exact([0, 2, 4])}))]
    assert fields == ["q[0]", "q[2]"]


def test_a_field_that_comes_or_goes_is_a_difference() -> None:
    differences = compare(stored({"old": exact(1), "both": exact(2)}), stored({"both": exact(2), "new": exact(3)}))
    assert [(d.field, d.stored, d.now) for d in differences] == [
        ("new", "not stored", "3"),
        ("old", "1", "not measured"),
    ]


def test_a_loosened_tolerance_is_a_difference_even_where_the_value_holds() -> None:
    (difference,) = compare(stored({"loss": relative(1.0, 1e-4)}), stored({"loss": relative(1.0, 1e-1)}))
    assert (difference.field, difference.stored, difference.now) == (
        "loss (tolerance)",
        "relative 0.0001",
        "relative 0.1",
    )


def test_another_setting_is_named_before_any_number() -> None:
    before = stored({"x": exact(1)}, settings={"ranks": 2, "seed": 0})
    now = stored({"x": exact(2)}, settings={"ranks": 4, "seed": 0})
    assert [(d.field, d.stored, d.now) for d in compare(before, now)] == [("settings.ranks", "2", "4"), ("x", "1", "2")]


@pytest.mark.parametrize(
    ("versions", "hint", "cause"),
    [
        ({"torch": "2.15.0"}, "", "torch 2.14.1 -> 2.15.0"),
        ({"torch": "2.15.0"}, "the objective", "the objective; torch 2.14.1 -> 2.15.0"),
        ({"torch": "2.14.1"}, "the objective", "the objective"),
        ({"torch": "2.14.1"}, "", "the code: no version or setting changed since commit abc1234"),
        ({}, "", "torch 2.14.1 -> absent"),
    ],
)
def test_the_likely_cause_is_the_hint_and_what_changed_since(versions: dict[str, str], hint: str, cause: str) -> None:
    (difference,) = compare(stored({"x": exact(1)}), stored({"x": exact(2, likely=hint)}, versions=versions))
    assert difference.cause == cause


def test_the_table_shows_field_both_values_tolerance_and_cause() -> None:
    table = as_table(compare(stored({"loss": relative(1.25, 0.01)}), stored({"loss": relative(1.5, 0.01, "the mix")})))
    header, row = table.splitlines()[0], table.splitlines()[2]
    assert header.split("  ")[0] == "field"
    assert row.split() == "loss 1.25 1.5 relative 0.01 (off by +0.25, +20%) the mix".split()


def test_hints_are_not_stored_and_exact_numbers_carry_no_bound() -> None:
    numbers = json.loads(stored({"n": exact(3, "hint"), "x": absolute(1.0, 0.5)}).to_text())["numbers"]
    assert numbers == {
        "n": {"value": 3, "tolerance": "exact"},
        "x": {"value": 1.0, "tolerance": "absolute", "bound": 0.5},
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: exact(float("nan")), lambda: exact([1.0, float("inf")]), lambda: absolute(1.0, 0.0),
        lambda: relative(1.0, -0.1), lambda: Number(value=1, tolerance="exact", bound=0.5),
    ],
)  # fmt: skip
def test_numbers_that_could_not_be_compared_are_refused(make: object) -> None:
    with pytest.raises(ValidationError):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Invalid JSON"),
        ("{}", "numbers: Field required"),
        (stored({"x": exact(1)}).to_text().replace('"exact"', '"roughly"'), "numbers.x.tolerance"),
        (stored({"x": exact(1)}).to_text().replace('"tier"', '"tire"'), "provenance.tier: Field required"),
    ],
)
def test_a_baseline_edited_into_nonsense_is_one_line_that_names_file_and_field(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "baselines/cpu/tiny/test_x.json")
    assert "baselines/cpu/tiny/test_x.json" in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
