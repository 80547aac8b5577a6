"""Step records and what is summed from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from odb_example.train.counts import StepCounts
from odb_example.train.records import Recorder, read_steps

pytestmark = pytest.mark.unit


def _recorded(steps: int = 3) -> Recorder:
    recorder = Recorder(num_train_samples=20)
    for step in range(steps):
        counts = StepCounts(
            samples=4, labelled_samples=4, label_tokens=8, input_tokens=40, padded_tokens=50, groups=2,
            largest_batch_tokens=30 + step,
        )  # fmt: skip
        recorder.add(counts, [counts], seconds=1.0, wait_seconds=0.25, loss=2.0, grad_norm=1.0, lr=0.1)
    return recorder


def test_emitted_samples_and_epochs_are_counted_from_samples_not_from_steps() -> None:
    last = _recorded().records[-1]
    assert (last.step, last.emitted_samples, last.epoch) == (3, 12, 0.6)


def test_totals_are_sums_with_the_largest_batch_of_any_step() -> None:
    totals = _recorded().totals
    assert (totals.steps, totals.emitted_samples, totals.input_tokens, totals.groups) == (3, 12, 120, 6)
    assert totals.largest_batch_tokens == 32
    assert totals.wait_seconds == pytest.approx(0.75)
    assert totals.padding_ratio == pytest.approx(0.2)
    assert totals.fill(40) == pytest.approx(0.5)


def test_a_resumed_recorder_goes_on_counting_but_rates_its_own_steps_only() -> None:
    recorder = Recorder(20, earlier=_recorded().records)
    counts = StepCounts(samples=5, label_tokens=1)
    assert recorder.add(counts, seconds=1.0, wait_seconds=0.0, loss=1.0, grad_norm=None, lr=0.1).emitted_samples == 17
    assert recorder.totals.steps == 4
    assert recorder.own_totals.emitted_samples == 5


def test_steps_read_back_as_they_were_written(tmp_path: Path) -> None:
    recorder = _recorded()
    recorder.write(tmp_path)
    assert read_steps(tmp_path, up_to=3) == recorder.records
    assert read_steps(tmp_path, up_to=2) == recorder.records[:2]


def test_a_step_without_labels_has_no_loss_and_a_nan_is_never_written(tmp_path: Path) -> None:
    recorder = Recorder(20)
    recorder.add(StepCounts(samples=1), seconds=1.0, wait_seconds=0.0, loss=0.0, grad_norm=0.0, lr=0.1)
    recorder.add(
        StepCounts(samples=1, label_tokens=3), seconds=1.0, wait_seconds=0.0, loss=float("nan"),
        grad_norm=float("inf"), lr=0.1,
    )  # fmt: skip
    assert [record.loss for record in recorder.records] == [None, None]
    recorder.write(tmp_path)
    assert "NaN" not in (tmp_path / "steps.jsonl").read_text()
