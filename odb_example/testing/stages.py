"""Stages of the gpu tier: the commands' own functions, two in one launch where that saves starting the ranks again."""

from __future__ import annotations

from odb_example.evaluate.likelihood import evaluate_benchmark
from odb_example.evaluate.validation_loss import evaluate_validation_loss
from odb_example.settings import Settings


def evaluate_both(settings: Settings) -> None:
    """Validation loss and benchmark of ``settings.checkpoint``, as ``eval-odb`` runs them."""
    evaluate_validation_loss(settings)
    evaluate_benchmark(settings)
