"""Which records train and which are held out: three rules, all functions of the number of records.

``lf_val_size`` is the public example's split (and LLaMA-Factory's ``val_size``): one permutation by seed, its first
share held out, the rest trained on in the permutation's order. ``prefix`` trains on the first records and holds none
out; ``tail`` holds out everything from one index on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from odb_example.errors import UserError

SplitMode = Literal["lf_val_size", "prefix", "tail"]
Indices = npt.NDArray[np.int64]
PREVIEW = 10


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Store indices to train on and to hold out, with the rule that chose them.

    Attributes:
        train: shape (T,), in training order before shuffling.
        evaluation: shape (E,), in evaluation order; empty where the rule holds none out.
        train_size_arg: the cap asked for (0 = none).
        val_start: first held-out index of ``tail``, else None.
    """

    mode: SplitMode
    train: Indices
    evaluation: Indices
    val_size: float
    split_seed: int
    train_size_arg: int
    val_start: int | None = None

    def describe(self) -> dict[str, Any]:
        """The split as run summaries carry it: the rule and the first indices of either side."""
        return {
            "split_mode": self.mode,
            "train_size_arg": self.train_size_arg,
            "val_size": self.val_size,
            "split_seed": self.split_seed,
            "val_start": self.val_start,
            "train_indices_preview": self.train[:PREVIEW].tolist(),
            "eval_indices_preview": self.evaluation[:PREVIEW].tolist() if len(self.evaluation) else None,
        }


def make_split(
    num_records: int,
    *,
    mode: SplitMode,
    val_size: float,
    split_seed: int,
    train_size: int = 0,
    val_start: int | None = None,
) -> Split:
    """Split ``num_records`` records.

    Args:
        val_size: held-out share below 1, a count from 1 on (``lf_val_size`` only).
        train_size: keep the first so many of the training side; 0 keeps all.
        val_start: first held-out record (``tail`` only).

    Raises:
        UserError: an unknown mode, or sizes the records cannot satisfy.
    """
    if mode not in get_args(SplitMode):
        raise UserError(f"split mode {mode!r} is unknown", f"choose from {', '.join(get_args(SplitMode))}")
    if num_records < 1:
        raise UserError("a store without records cannot be split")
    if mode == "lf_val_size":
        train, evaluation = _held_out_share(num_records, val_size, split_seed)
    elif mode == "prefix":
        train, evaluation = np.arange(num_records, dtype=np.int64), np.empty(0, np.int64)
    else:
        train, evaluation = _tail(num_records, val_start)
    return Split(
        mode=mode,
        train=_capped(train, train_size),
        evaluation=evaluation,
        val_size=val_size,
        split_seed=split_seed,
        train_size_arg=train_size,
        val_start=val_start if mode == "tail" else None,
    )


def _held_out_share(num_records: int, val_size: float, seed: int) -> tuple[Indices, Indices]:
    if num_records < 2:
        raise UserError("one record cannot be split into training and validation", "use split mode prefix")
    if not val_size > 0:
        raise UserError(f"val_size {val_size:g} holds nothing out", "give a share below 1 or a count")
    # The public rule: a value of exactly 1 is a share of everything, which then leaves one record to train on.
    asked = int(val_size) if val_size > 1 else int(num_records * val_size)
    count = min(max(asked, 1), num_records - 1)
    order = np.random.default_rng(seed).permutation(num_records).astype(np.int64)
    return order[count:], order[:count]


def _tail(num_records: int, val_start: int | None) -> tuple[Indices, Indices]:
    if val_start is None or not 0 < val_start < num_records:
        raise UserError(
            f"tail split starts at {val_start}, the store has {num_records} records",
            f"give a start between 1 and {num_records - 1}",
        )
    everything = np.arange(num_records, dtype=np.int64)
    return everything[:val_start], everything[val_start:]


def _capped(train: Indices, train_size: int) -> Indices:
    if train_size < 0 or train_size > len(train):
        raise UserError(
            f"train_size {train_size} is more than the {len(train)} training records"
            if train_size > 0
            else f"train_size {train_size} is negative",
            "lower it, or give 0 for all",
        )
    return train[:train_size] if train_size else train
