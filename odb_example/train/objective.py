"""The training objective as two values: a *sum* over one batch, and the *normaliser* of the whole optimizer step.

``token``: the mean over every label token of the step. ``sample``: the mean over the step's labelled samples of each
sample's own token mean. The step is everything between two weight updates: all ranks, all accumulated batches. A rank
divides its sum by the step's normaliser, so the gradients of all ranks and batches simply add up; who gathers the
normaliser and when is the trainer's matter. Rows without labels (padding of a window, repeats) weigh nothing.

A causal model predicts ``labels[:, t + 1]`` at position ``t``: the first column is never predicted and never counted.

Only positions that predict a label need the vocabulary projection. `LabelPositions` hands just those to the output
embedding, so logits are (label tokens, vocabulary) and not (rows, length, vocabulary); the float32 copy that the loss
needs shrinks alike. Measured in docs/experiments.md.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

IGNORE_INDEX = -100

ExactObjective = Literal["token", "sample"]


def predicts_label(labels: torch.Tensor) -> torch.Tensor:
    """True where a position's next token is a label: (rows, length) int64 -> (rows, length) bool."""
    following = torch.full_like(labels, IGNORE_INDEX)
    following[:, :-1] = labels[:, 1:]
    return following != IGNORE_INDEX


def normaliser(labels: torch.Tensor, objective: ExactObjective) -> int:
    """What one batch adds to the step's normaliser: its label tokens, or its rows with at least one label."""
    counted = predicts_label(labels)
    return int(counted.sum() if objective == "token" else counted.any(dim=1).sum())


def batch_sum(logits: torch.Tensor, labels: torch.Tensor, objective: ExactObjective) -> torch.Tensor:
    """Sum of the objective over one batch, in nats, differentiable; 0 for a batch without labels.

    Args:
        logits: (rows, length, vocabulary), or (label tokens, vocabulary) as `LabelPositions` leaves them.
        labels: (rows, length) int64, -100 where nothing is predicted.
    """
    counted = predicts_label(labels)
    if logits.dim() == 3:
        logits = logits[counted]
    targets = labels[:, 1:][counted[:, :-1]]
    losses = F.cross_entropy(logits.float(), targets, reduction="none")
    if objective == "token":
        return losses.sum()
    rows = counted.nonzero()[:, 0]
    return (losses / counted.sum(dim=1)[rows]).sum()


class LabelPositions:
    """Forward pre-hook of the output embedding that keeps the positions which predict a label.

    Register it once with ``model.get_output_embeddings().register_forward_pre_hook``, so that it works under any
    wrapper; call `expect` before a forward whose logits should be reduced. Without it logits come in full.
    """

    def __init__(self) -> None:
        self._kept: torch.Tensor | None = None

    def expect(self, labels: torch.Tensor) -> None:
        """Reduce the next forward to the positions that predict one of ``labels`` (rows, length)."""
        self._kept = predicts_label(labels)

    def __call__(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        hidden, *others = inputs
        return (hidden[kept], *others)
