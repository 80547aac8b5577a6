"""Finished samples of random lengths, and a collator for them: what a loader sees, without model and images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from odb.constants import TOTAL_BATCH_SIZE_KEY, TOTAL_TOKENS_KEY
from torch.nn.functional import pad

LengthMix = Literal["equal", "uniform", "long_tail", "over_budget"]
LENGTH_MIXES: tuple[LengthMix, ...] = get_args(LengthMix)


def random_lengths(mix: LengthMix, count: int, token_budget: int, seed: int) -> list[int]:
    """``count`` lengths of a kind, most of them below ``token_budget``; ``over_budget`` has some that exceed it."""
    random = np.random.default_rng([seed, count])
    drawn: np.ndarray
    if mix == "equal":
        drawn = np.full(count, max(1, token_budget // 5))
    elif mix == "uniform":
        drawn = random.integers(1, max(2, token_budget // 2), count)
    else:
        drawn = np.exp(random.normal(np.log(token_budget / 12), 1.0, count))
        if mix == "long_tail":
            drawn = np.minimum(drawn, token_budget)
        else:
            drawn[:: max(2, count // 5)] = token_budget * 1.5
    return np.maximum(drawn.astype(int), 1).tolist()


class SyntheticSamples(torch.utils.data.Dataset):
    """One sample a length. A sample's every value follows from its identity, so that a batch can be checked."""

    odb_ready = True

    def __init__(self, lengths: Sequence[int], first_identity: int = 0) -> None:
        self.lengths = list(lengths)
        self.indices = range(first_identity, first_identity + len(self.lengths))

    def __len__(self) -> int:
        return len(self.lengths)

    def length(self, position: int) -> int:
        return self.lengths[position]

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        if not 0 <= position < len(self):
            raise IndexError(position)
        identity, length = self.indices[position], self.lengths[position]
        ids = torch.full((length,), identity % 1000)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": ids.clone(),
            "odb_n_patches": torch.tensor(0),
            "sample_index": torch.tensor([identity]),
        }


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Right-padded batch; ODB's counts carried over."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    batch: dict[str, Any] = {
        name: torch.stack([pad(sample[name], (0, longest - len(sample[name])), value=value) for sample in samples])
        for name, value in fill.items()
    }
    batch["sample_index"] = torch.cat([sample["sample_index"] for sample in samples])
    for key in (TOTAL_BATCH_SIZE_KEY, TOTAL_TOKENS_KEY):
        if key in samples[0]:
            batch[key] = samples[0][key]
    return batch
