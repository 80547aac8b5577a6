"""Trainer callbacks: the run's length and schedule in samples, and what the person watching sees."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from odb_example.train.records import Recorder, StepRecord

LINE_EVERY_S = 10.0


class SampleProgress(TrainerCallback):
    """Ends a run when its samples are trained on, and moves the learning rate by samples.

    For ODB too: its own callback counts weightless rows as well, and asks to stop at the very batch that reaches its
    budget, whose accumulation window would then be counted and never applied. So both loaders have one schedule, and a
    run goes on in it on another number of ranks.
    """

    def __init__(self, recorder: Recorder, step_samples: Callable[[], int], total_samples: int) -> None:
        """
        Args:
            step_samples: samples of the optimizer step that just ended, over all ranks.
            total_samples: samples of the whole run.
        """
        self._recorder, self._step_samples, self._total = recorder, step_samples, total_samples

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        scheduler = kwargs["lr_scheduler"]
        emitted = self._recorder.emitted_samples + self._step_samples()
        for _ in range(emitted - scheduler.last_epoch):  # the Trainer itself made one step
            scheduler.step()
        if emitted >= self._total:
            control.should_training_stop = True


class EpochFromSamples(TrainerCallback):
    """Keeps ``state.epoch`` the share of samples seen, whatever the schedule is measured in."""

    def __init__(self, epoch: Callable[[], float]) -> None:
        self._epoch = epoch

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        state.epoch = self._epoch()


class SaveAtTheEnd(TrainerCallback):
    """Writes a checkpoint at the last step too, which the Trainer does only where steps are capped."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if control.should_training_stop and args.save_strategy == "steps":
            control.should_save = True


class Progress:
    """Shows samples done, their rate, fill and time left: a bar on a terminal, else a plain line now and then."""

    def __init__(self, total_samples: int | None, token_budget: int | None, stream: TextIO | None = None) -> None:
        """
        Args:
            total_samples: of the whole run; None where a step cap ends it.
            token_budget: of one group, for the fill; None for loaders without one.
        """
        self._total, self._token_budget = total_samples, token_budget
        self._stream = stream or sys.stderr
        self._done = self._started_with = self._tokens = self._groups = 0
        self._begin = self._said = time.monotonic()
        self._bar: tqdm[Any] | None = None

    def start(self, done: int) -> None:
        """Begin with ``done`` samples already trained on by the run that is resumed."""
        self._done = self._started_with = done
        self._begin = self._said = time.monotonic()
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._total, initial=done, unit=" samples", file=self._stream, dynamic_ncols=True, smoothing=0.05
            )

    def show(self, record: StepRecord) -> None:
        """Show the step that just ended."""
        self._done += record.samples
        self._tokens += record.input_tokens
        self._groups += record.groups
        if self._bar is not None:
            self._bar.set_postfix_str(self._words(record), refresh=False)
            self._bar.update(record.samples)
        elif time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            self._line(record)

    def end(self, record: StepRecord | None) -> None:
        """Leave the last state standing."""
        if self._bar is not None:
            self._bar.close()
        elif record is not None:
            self._line(record)

    def _line(self, record: StepRecord) -> None:
        seconds = max(time.monotonic() - self._begin, 1e-9)
        rate = (self._done - self._started_with) / seconds
        known = self._total is not None and rate > 0
        of = f"/{self._total}" if self._total is not None else ""
        left = f", {_clock((self._total - self._done) / rate)} left" if known and self._total is not None else ""
        print(
            f"{self._done}{of} samples, {rate:.1f}/s, {self._words(record)}, {_clock(seconds)} passed{left}",
            file=self._stream, flush=True,
        )  # fmt: skip

    def _words(self, record: StepRecord) -> str:
        loss = "-" if record.loss is None else f"{record.loss:.4f}"
        filled = self._token_budget and self._groups and self._tokens / (self._groups * self._token_budget)
        return f"step {record.step}, loss {loss}" + (f", fill {filled:.2f}" if filled else "")


def _clock(seconds: float) -> str:
    minutes, second = divmod(max(int(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
