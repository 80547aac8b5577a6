"""A rank that is slow keeps the others waiting for one batch, not for its share."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from odb_example import distributed
from odb_example.benchmarks.ranks import in_ranks
from odb_example.distributed import Ranks
from odb_example.evaluate.batching import Effort, score_samples

pytestmark = [pytest.mark.integration, pytest.mark.ranks]

ROWS = 40


class Ones:
    """Forty samples of ten tokens."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.full((10,), position)}

    def length(self, position: int) -> int:
        return 10


def stack(samples: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.stack([sample["input_ids"] for sample in samples])}


def score_with_a_slow_rank(rank: int, world_size: int, workers: int) -> tuple[int, dict[int, Any], int]:
    """Batches of this rank, all values, and the batches of a second evaluation in the same process group."""
    ranks = Ranks(rank, world_size, rank, torch.device("cpu"))

    def score(batch: dict[str, torch.Tensor]) -> list[int]:
        time.sleep(0.5 if rank == 0 else 0.0)
        return batch["input_ids"][:, 0].tolist()

    effort = Effort(token_budget=10, num_workers=workers, prefetch_factor=2 if workers else None)
    first = score_samples(Ones(), stack, score, ranks, effort)
    distributed.barrier()
    second = score_samples(Ones(), stack, lambda batch: [0] * len(batch["input_ids"]), ranks, effort)
    return first.batches, first.values, second.batches


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_rank_hands_over_what_it_has_not_begun(workers: int) -> None:
    slow, fast = (answer.value for answer in in_ranks(score_with_a_slow_rank, 2, workers, timeout_s=120))
    assert slow[1] == fast[1] == {place: place for place in range(ROWS)}
    assert slow[0] + fast[0] == slow[2] + fast[2] == ROWS
    assert slow[0] < ROWS // 2 < fast[0]
