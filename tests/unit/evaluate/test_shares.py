"""Who scores what: groups of every rank together."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from odb_example.data.packing import padded_tokens
from odb_example.distributed import Ranks
from odb_example.errors import UserError
from odb_example.evaluate.batching import Effort, measure_lengths, prepared_batches, score_samples, share_groups

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
Lengths = st.lists(st.integers(1, 500), max_size=80)


class Numbers:
    """Samples of ones; a length below zero cannot be measured, position 7 cannot be made."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        if position == 7:
            raise UserError("seven is not made")
        return {"input_ids": torch.full((self.lengths[position],), position)}

    def length(self, position: int) -> int:
        if self.lengths[position] < 0:
            raise UserError("no length")
        return self.lengths[position]


def pad(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    rows = [sample["input_ids"] for sample in samples]
    return {"input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)}


@given(lengths=Lengths, budget=st.integers(1, 2000), world=st.integers(1, 5))
def test_every_sample_has_one_group_on_one_rank_within_the_budget(lengths: list[int], budget: int, world: int) -> None:
    shares = share_groups(lengths, budget, world)
    assert sorted(chain.from_iterable(chain.from_iterable(shares))) == list(range(len(lengths)))
    for group in chain.from_iterable(shares):
        assert padded_tokens(lengths, group) <= budget or len(group) == 1


@given(lengths=Lengths, world=st.integers(2, 5))
def test_no_rank_has_more_than_one_group_above_another(lengths: list[int], world: int) -> None:
    loads = [[padded_tokens(lengths, group) for group in share] for share in share_groups(lengths, 600, world)]
    largest = max(chain.from_iterable(loads), default=0)
    assert max(map(sum, loads)) - min(map(sum, loads)) <= largest


@pytest.mark.parametrize("budget", [1, 20, 10_000])
def test_values_come_back_by_place_whatever_the_budget(budget: int) -> None:
    samples = Numbers([5, 1, 9, 3, 3, 7])
    scored = score_samples(
        samples, pad, lambda batch: batch["input_ids"][:, 0].tolist(), Ranks(0, 1, 0, CPU), Effort(token_budget=budget)
    )
    assert scored.values == {place: place for place in range(6)}
    assert scored.refused == {}


def test_samples_that_cannot_be_measured_or_made_come_back_with_their_reason() -> None:
    samples = Numbers([3, 3, -1, 3, 3, 3, 3, 3, 3])
    scored = score_samples(
        samples, pad, lambda batch: batch["input_ids"][:, 0].tolist(), Ranks(0, 1, 0, CPU), Effort(token_budget=12)
    )
    assert scored.refused == {2: "no length", 7: "seven is not made"}
    assert sorted(scored.values) == [0, 1, 3, 4, 5, 6, 8]


def test_a_group_of_refused_samples_only_is_no_batch() -> None:
    samples = Numbers([1] * 8)
    (prepared,) = prepared_batches(samples, [[7]], pad, Effort(token_budget=1), CPU)
    assert prepared.batch is None
    assert prepared.refused == {7: "seven is not made"}


def test_lengths_are_measured_for_the_places_asked_for() -> None:
    lengths, refused = measure_lengths(Numbers([4, -1, 6, 8]), [0, 1, 3], Ranks(0, 1, 0, CPU))
    assert (lengths, refused) == ({0: 4, 3: 8}, {1: "no length"})


def test_nothing_to_score_is_nothing_scored() -> None:
    scored = score_samples(Numbers([]), pad, lambda batch: [], Ranks(0, 1, 0, CPU), Effort(token_budget=5))
    assert (scored.values, scored.refused, scored.batches) == ({}, {}, 0)
