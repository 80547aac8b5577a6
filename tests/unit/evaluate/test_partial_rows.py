"""Rows of a stopped evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from odb_example.distributed import Ranks
from odb_example.evaluate.partial import PartialRows, discard_partial, read_partial

pytestmark = pytest.mark.unit

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
KEY = {"protocol": "v1", "data": "abc"}


def keep(folder: Path, key: dict[str, str], rows: dict[int, float]) -> None:
    with PartialRows(folder, key, ALONE) as partial:
        partial.add(rows)


def test_rows_come_back_under_the_same_key(tmp_path: Path) -> None:
    keep(tmp_path / "p", KEY, {3: 0.1, 1: 2.5})
    with PartialRows(tmp_path / "p", dict(reversed(KEY.items())), ALONE) as partial:
        assert partial.done == {3: 0.1, 1: 2.5}


@pytest.mark.parametrize("name", KEY)
def test_nothing_is_taken_over_under_another_key(tmp_path: Path, name: str) -> None:
    keep(tmp_path / "p", KEY, {3: 0.1})
    with PartialRows(tmp_path / "p", KEY | {name: "changed"}, ALONE) as partial:
        assert partial.done == {}
    assert read_partial(tmp_path / "p", KEY) == {}


def test_a_line_cut_off_by_the_stop_is_dropped(tmp_path: Path) -> None:
    keep(tmp_path / "p", KEY, {1: 0.5, 2: 0.25})
    file = tmp_path / "p" / "rank-0.jsonl"
    file.write_bytes(file.read_bytes()[:-3])
    assert read_partial(tmp_path / "p", KEY) == {1: 0.5}


def test_rows_of_every_rank_are_taken_over_by_fewer_ranks_and_survive_a_second_stop(tmp_path: Path) -> None:
    keep(tmp_path / "p", KEY, {1: 0.5})
    (tmp_path / "p" / "rank-0.jsonl").rename(tmp_path / "p" / "rank-1.jsonl")
    keep(tmp_path / "p", KEY, {2: 0.25})
    keep(tmp_path / "p", KEY, {})
    assert read_partial(tmp_path / "p", KEY) == {1: 0.5, 2: 0.25}


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    keep(tmp_path / "p", KEY, {0: 0.1 + 0.2})
    assert read_partial(tmp_path / "p", KEY)[0] == 0.1 + 0.2


def test_rows_are_gone_once_discarded(tmp_path: Path) -> None:
    keep(tmp_path / "p", KEY, {0: 1.0})
    discard_partial(tmp_path / "p")
    assert not (tmp_path / "p").exists()
