"""What a person reads when an expectation fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from odb_example.conformance.expect import (
    ConformanceError,
    expect,
    expect_close,
    expect_equal,
    expect_refused,
    nearest_cause,
)
from odb_example.errors import UserError

pytestmark = pytest.mark.unit

WORDS = {"claim": "labels changed", "likely": "look there"}


def words_of(attempt: Callable[[], None]) -> str:
    with pytest.raises(ConformanceError) as caught:
        attempt()
    return str(caught.value)


def test_a_failure_reads_claim_expected_came_first_difference_likely() -> None:
    expected, came = torch.tensor([-100, -100, 312, 45, 7]), torch.tensor([-100, -100, 312, 45, -100])
    assert words_of(lambda: expect_equal(came, expected, unit="token", **WORDS)).splitlines() == [
        "labels changed",
        "  expected  [-100, -100, 312, 45, 7]",
        "  came      [-100, -100, 312, 45, -100]",
        "  first difference at token 4 of 5",
        "likely: look there",
    ]


def test_a_long_sequence_is_shown_around_the_difference() -> None:
    expected, came = list(range(1000)), [*range(500), -1, *range(501, 1000)]
    message = words_of(lambda: expect_equal(came, expected, **WORDS))
    assert "[... 496, 497, 498, 499, -1, 501, 502, 503 ...]" in message
    assert "first difference at element 500 of 1000" in message


@pytest.mark.parametrize(
    ("came", "expected", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2), "tensor of shape [2, 3], float32"),
        (torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int64), "tensor of shape [3], int32"),
        (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]]), "first difference at [0, 1] of [1, 2], 1 of 2 differ"),
        ([1, 2], [1, 2, 3], "first difference at element 2 of 3; 2 came"),
        (None, torch.zeros(1), "NoneType None"),
        ("a", "b", "came      a"),
    ],
)
def test_unequal_things_are_told_apart_by_what_differs(came: object, expected: object, words: str) -> None:
    assert words in words_of(lambda: expect_equal(came, expected, **WORDS))


def test_equal_things_pass() -> None:
    expect_equal(torch.arange(3), torch.arange(3), **WORDS)
    expect_equal((1, 2), [1, 2], **WORDS)
    expect_close(1.0000001, 1.0, **WORDS)
    expect(True, **WORDS)


def test_nan_is_close_to_nothing() -> None:
    assert "came      nan" in words_of(lambda: expect_close(float("nan"), 1.0, **WORDS))


def test_numbers_apart_say_by_how_much() -> None:
    assert "off by +1.00%" in words_of(lambda: expect_close(1.01, 1.0, **WORDS))


def refuse(message: str) -> Callable[[], None]:
    def attempt() -> None:
        raise UserError(message)

    return attempt


def test_a_refusal_must_be_one_and_say_where() -> None:
    expect_refused(refuse("line 5 is broken"), mentions=("5",), by=UserError, **WORDS)
    silent = words_of(lambda: expect_refused(refuse("broken"), mentions=("5",), by=UserError, **WORDS))
    assert "does not say where" in silent
    assert "expected  a refusal" in words_of(lambda: expect_refused(lambda: 3, by=UserError, **WORDS))
    crash = words_of(lambda: expect_refused(lambda: [][1], by=UserError, **WORDS))
    assert "it crashed instead" in crash
    assert "IndexError" in crash


def test_the_cause_whose_wrong_value_came_is_named() -> None:
    causes = {"times two": 4.0, "halved": 1.0}
    assert nearest_cause(4.0001, causes, "unknown") == "times two"
    assert nearest_cause(3.0, causes, "unknown") == "unknown"
