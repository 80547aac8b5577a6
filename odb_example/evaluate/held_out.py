"""Which records a checkpoint is evaluated on: its own training run says, and anything else is refused or marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from odb_example.data.splits import Indices, SplitMode, make_split
from odb_example.errors import UserError
from odb_example.settings import Settings

_FORCE = "leave the split flags out, or add --force-split to evaluate anyway and have the result marked"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Store indices in evaluation order, how they were chosen, and what a reader must know about them."""

    indices: Indices
    split_mode: SplitMode
    val_start: int | None
    val_size: float
    split_seed: int
    origin: str
    marks: tuple[str, ...]

    def describe(self) -> dict[str, Any]:
        """The split's fields of the results file."""
        return {
            "split_mode": self.split_mode,
            "val_start": self.val_start,
            "val_size": self.val_size,
            "split_seed": self.split_seed,
            "eval_indices_preview": self.indices[:10].tolist(),
            "split_origin": self.origin,
            "marks": list(self.marks),
        }


def choose_held_out(settings: Settings, num_records: int, fingerprint: str, summary: dict[str, Any] | None) -> HeldOut:
    """The checkpoint's own held-out records, or those the flags ask for.

    Args:
        fingerprint: of the store evaluated on.
        summary: the training run's; None for a model that was not trained here.

    Raises:
        UserError: a split or data other than the run's, or trained records, without ``force_split``; nothing held out.
    """
    trained = summary["split"] if summary else {}
    if trained.get("split_mode") == "prefix" and settings.eval_split_mode is None:
        raise UserError(
            "the checkpoint was trained with split mode prefix, which holds nothing out",
            "give --split-mode tail and --val-start",
        )
    mode: SplitMode = settings.eval_split_mode or trained.get("split_mode", "lf_val_size")
    val_size = _first(settings.eval_val_size, trained.get("val_size"), settings.val_size)
    seed = int(_first(settings.eval_split_seed, trained.get("split_seed"), settings.split_seed))
    val_start = settings.val_start if mode == "tail" else None
    split = make_split(num_records, mode=mode, val_size=val_size, split_seed=seed, val_start=val_start)
    problems = _problems(summary, num_records, fingerprint, (mode, val_size, seed), split.evaluation)
    if problems and not settings.force_split:
        raise UserError(problems[0], _FORCE)
    if summary is None:
        problems = ["no train summary beside the checkpoint: nothing shows that these records were not trained on"]
    return HeldOut(
        indices=split.evaluation, split_mode=mode, val_start=val_start, val_size=val_size, split_seed=seed,
        origin="checkpoint" if summary and not problems else "settings", marks=tuple(problems),
    )  # fmt: skip


def _problems(
    summary: dict[str, Any] | None,
    num_records: int,
    fingerprint: str,
    asked: tuple[SplitMode, float, int],
    evaluation: Indices,
) -> list[str]:
    if summary is None:
        return []
    own = summary["split"]
    found = []
    trained_on = summary.get("data_fingerprint")
    if trained_on is not None and trained_on != fingerprint:
        found.append(f"the checkpoint was trained on other data ({trained_on[:12]}) than these ({fingerprint[:12]})")
    if own["split_mode"] != "prefix" and asked != (own["split_mode"], own["val_size"], own["split_seed"]):
        found.append(
            f"the checkpoint's split is {own['split_mode']}, size {own['val_size']:g}, seed {own['split_seed']}; "
            f"asked for is {asked[0]}, size {asked[1]:g}, seed {asked[2]}"
        )
    training = make_split(
        num_records, mode=own["split_mode"], val_size=own["val_size"], split_seed=own["split_seed"],
        val_start=own.get("val_start"),
    ).train  # fmt: skip
    overlap = len(np.intersect1d(training[: own.get("train_size_arg") or None], evaluation))
    if overlap:
        found.append(f"{overlap} of {len(evaluation)} records to evaluate were trained on")
    return found


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
