"""Rows that weigh nothing: a real sample with every label -100, known by ``sample_index`` -1.

Ranks must take the same number of batches, and an accumulation window must be full, also where the samples do not
divide. What is missing is made up by such copies, never by training on a sample twice. The exact objective and every
count pass over them; they cost their forward pass, at most one row a rank and epoch, and one batch per missing
accumulation step.

In a sampler's output a copy of position ``p`` is the index ``-(p + 1)``; `WithCopies` understands it.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol

import torch
from torch.utils.data import Dataset

from odb_example.errors import UserError
from odb_example.train.objective import IGNORE_INDEX

NO_SAMPLE = -1
Sample = dict[str, torch.Tensor]


class Samples(Protocol):
    """Finished samples by position, as `odb_example.data.samples.FinishedSamples` gives them."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> Sample: ...


def copy_of(position: int) -> int:
    """The index that stands for a weightless copy of ``position``."""
    return -(position + 1)


def weightless(sample: Sample) -> Sample:
    """``sample`` with no label and no identity; its tensors are shared where they do not differ."""
    return {
        **sample,
        "labels": torch.full_like(sample["labels"], IGNORE_INDEX),
        "sample_index": torch.full_like(sample["sample_index"], NO_SAMPLE),
    }


class WithCopies(Dataset):
    """A dataset that also gives weightless copies, and refuses items that ODB would drop or miscount."""

    odb_ready = True

    def __init__(self, samples: Samples, *, patches_counted: bool) -> None:
        """
        Args:
            patches_counted: whether the loader caps vision patches, so that every item with images must say how many
                it has in ``odb_n_patches``.
        """
        self.samples = samples
        self.patches_counted = patches_counted

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        """
        Raises:
            UserError: the item has no tokens (ODB would drop it in silence, and the epoch would never fill), or images
                without ``odb_n_patches`` under a patch cap (which would then cap nothing).
        """
        if index < 0:
            return weightless(self[copy_of(index)])
        sample = self.samples[index]
        if not len(sample["input_ids"]):
            raise UserError(f"sample {index} has no tokens", "leave its record out, e.g. by --on-bad-record skip")
        if self.patches_counted and "pixel_values" in sample and "odb_n_patches" not in sample:
            raise UserError(
                f"sample {index} has images but no odb_n_patches", "let the dataset emit it, or drop --max-patches"
            )
        return sample


def identities(samples: Sized) -> list[int]:
    """The ``sample_index`` of each position: the dataset's own ``indices`` if it is a selection, else the position."""
    return [int(index) for index in getattr(samples, "indices", range(len(samples)))]
