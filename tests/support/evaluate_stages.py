"""Both evaluations, as a stage that every rank calls."""

from __future__ import annotations

from odb_example.evaluate.likelihood import evaluate_benchmark
from odb_example.evaluate.validation_loss import evaluate_validation_loss
from odb_example.settings import Settings


def evaluate_both(settings: Settings) -> None:
    evaluate_validation_loss(settings)
    evaluate_benchmark(settings)
