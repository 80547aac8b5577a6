"""Finished samples to one padded batch, and back.

The collator pads per-token fields, stacks them, and concatenates what is counted in images, patches or samples. It
computes nothing that a sample did not hold: `unpad` gives every sample back, bit for bit. Padding is by position,
never by token id, so a real end token keeps its label even where it doubles as the pad token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from odb.constants import (
    LOCAL_BATCH_SIZE_KEY,
    LOCAL_TOKENS_KEY,
    ODB_STEP_INFO_KEY,
    TOTAL_BATCH_SIZE_KEY,
    TOTAL_TOKENS_KEY,
)

Batch = dict[str, Any]

PATCHES_KEY = "odb_n_patches"
INDEX_KEY = "sample_index"
# Step metadata is one value for the whole group: every sample carries the same one, and the batch carries it once.
STEP_KEYS = (TOTAL_BATCH_SIZE_KEY, LOCAL_BATCH_SIZE_KEY, TOTAL_TOKENS_KEY, LOCAL_TOKENS_KEY, ODB_STEP_INFO_KEY)
SEQUENCE_KEYS = ("input_ids", "attention_mask", "labels", "mm_token_type_ids", "token_type_ids")
_BESIDE = frozenset({*STEP_KEYS, PATCHES_KEY, INDEX_KEY})


@dataclass(frozen=True, slots=True)
class Collator:
    """Pads and stacks finished samples; picklable.

    Args:
        pad_token_id: what `input_ids` are padded with; attention and token types are padded with 0.
        padding_side: ``right`` for training, ``left`` where the last position of every row is read.
        ignore_index: what labels are padded with.
    """

    pad_token_id: int
    padding_side: Literal["right", "left"] = "right"
    ignore_index: int = -100

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        """Batch of ``len(samples)`` rows, ``L`` the longest sample's length.

        Returns:
            A plain dict: per-token fields (rows, L); `odb_n_patches` and `sample_index` (rows,); pixels, grids and
            any other tensor concatenated in the samples' order; ODB's step metadata as the samples carry it.

        Raises:
            ValueError: no samples, a per-token field that only some samples have, or one of another length.
        """
        if not samples:
            raise ValueError("no samples to collate")
        batch: Batch = {}
        for name in dict.fromkeys(name for sample in samples for name in sample):
            values = [sample[name] for sample in samples if name in sample]
            if name in SEQUENCE_KEYS:
                batch[name] = self._padded(name, values, samples)
            elif name in STEP_KEYS:
                batch[name] = values[0]
            elif not isinstance(values[0], torch.Tensor):
                raise ValueError(f"field {name!r} is no tensor, and no rule says how to batch it")
            elif values[0].ndim == 0:
                batch[name] = torch.stack(values)
            else:
                batch[name] = torch.cat(values)
        return batch

    def _padded(self, name: str, rows: Sequence[torch.Tensor], samples: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        lengths = [len(sample["input_ids"]) for sample in samples]
        if [len(row) for row in rows] != lengths:
            raise ValueError(f"field {name!r} has lengths {[len(row) for row in rows]}, input_ids {lengths}")
        fill = {"input_ids": self.pad_token_id, "labels": self.ignore_index}.get(name, 0)
        padded = rows[0].new_full((len(rows), max(lengths)), fill)
        for target, row in zip(padded, rows, strict=True):
            target[self._place(len(row), len(target))] = row
        return padded

    def _place(self, length: int, width: int) -> slice:
        return slice(0, length) if self.padding_side == "right" else slice(width - length, width)


def split_batch(batch: Mapping[str, Any]) -> tuple[Batch, Batch]:
    """(what the model is called with, what travels beside it: indices, patch counts, ODB's step metadata)."""
    inputs = {name: value for name, value in batch.items() if name not in _BESIDE}
    beside = {name: value for name, value in batch.items() if name in _BESIDE}
    return inputs, beside


def unpad(batch: Mapping[str, Any], row: int, name: str) -> Any:
    """Field ``name`` of sample ``row`` as it entered the batch; None where that sample had none (text only).

    Raises:
        KeyError: no such field in the batch.
    """
    value = batch[name]
    if name in SEQUENCE_KEYS:
        return value[row][batch["attention_mask"][row].bool()]
    if name in STEP_KEYS or name == PATCHES_KEY:
        return value if name in STEP_KEYS else value[row]
    if name == INDEX_KEY:
        return value[row : row + 1]
    patches = [int(count) for count in batch[PATCHES_KEY]]
    if not patches[row]:
        return None
    start, end = sum(patches[:row]), sum(patches[: row + 1])
    if name == "image_grid_thw":
        ends = value.prod(dim=1).cumsum(0)
        return value[(ends > start) & (ends <= end)]
    return value[start:end]
