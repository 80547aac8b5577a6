"""transformers' Trainer with the exact objective, on any loader of `odb_example.train.loaders`.

Public hooks carry all of it: ``get_train_dataloader`` gives our loader, ``get_batch_samples`` the step's normaliser
over all ranks and accumulated batches, ``compute_loss_func`` the batch's sum over it, ``compute_loss`` parts model
inputs from what travels beside them, ``log`` sees every step's figures, ``evaluate`` sums what the Trainer would
average. The Trainer multiplies the loss by the number of ranks and DDP, ZeRO and FSDP divide the gradient by it again,
so the reported mean over ranks is the objective itself.

ODB's own weights (``odb-exact``, ``odb-approx``, ``none``) are kept for comparison: the rank's own mean, times
whatever scale ODB finds.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.distributed as dist
from odb.integrations.hf import ODBTrainerMixin
from safetensors import SafetensorError
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from odb_example.data.collate import split_batch
from odb_example.models.loading import cannot_write
from odb_example.settings import LossScaling
from odb_example.train.callbacks import Progress
from odb_example.train.counts import StepCounts, count_batch, merged, over_ranks
from odb_example.train.objective import ExactObjective, LabelPositions, batch_sum, normaliser
from odb_example.train.records import Recorder
from odb_example.train.text_only import BlankImage

if TYPE_CHECKING:
    from peft import PeftModel

logger = logging.getLogger(__name__)


class ExactTrainer(Trainer):
    """See the module. ``recorder`` gets every step; ``progress`` shows it where there is one."""

    def __init__(
        self,
        *,
        model: PreTrainedModel | PeftModel,
        args: TrainingArguments,
        processor: Any,
        callbacks: list[TrainerCallback],
        objective: LossScaling,
        batches: Iterable[dict[str, Any]],
        evaluation: Iterable[dict[str, Any]] | None,
        recorder: Recorder,
        progress: Progress | None,
        blank_image: BlankImage | None,
        log_every: int,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            eval_dataset=cast(Any, evaluation),  # only its presence is looked at: `evaluate` is ours
            processing_class=processor,
            callbacks=callbacks,
            compute_loss_func=self._loss,
        )
        self.loss_is_scaled_for_ga = objective in ("token", "sample")
        self.step_counts = StepCounts()
        self.trained: list[int] = []
        self._rank_counts: tuple[StepCounts, ...] = ()
        self._objective = objective
        self._batches, self._evaluation = batches, evaluation
        self._recorder, self._progress = recorder, progress
        self._blank_image = blank_image
        self._log_every = log_every
        self._unlogged_loss: list[float] = []
        self._step_began = time.perf_counter()
        self._waited = 0.0
        self._positions = LabelPositions()
        cast(torch.nn.Module, model.get_output_embeddings()).register_forward_pre_hook(self._positions)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """
        Raises:
            UserError: the disk is full or cannot be written to; the half checkpoint is removed, whole ones stay.
        """
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, SafetensorError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "inline_container" not in str(error):  # torch.save's writer
                raise
            half_written = Path(str(self.args.output_dir))
            shutil.rmtree(half_written, ignore_errors=True)
            raise cannot_write(half_written.parent, error) from error

    def get_train_dataloader(self) -> Any:
        self._step_began = time.perf_counter()
        return _Epochs(self._batches)

    @property
    def epoch_now(self) -> float:
        """Passes over the training split, the step that is just ending included."""
        return (self._recorder.emitted_samples + self.step_counts.samples) / self._recorder.num_train_samples

    def whole_state_dict(self) -> dict[str, torch.Tensor] | None:
        """The whole weights on the main rank where parameters are sharded, else None. Every rank must call it."""
        if not self._sharded:
            return None
        state: dict[str, torch.Tensor] = self.accelerator.get_state_dict(self.model_wrapped) or {}  # None elsewhere
        # Gathered copies share no memory, so that tied weights would be written twice.
        tied = getattr(self.accelerator.unwrap_model(self.model), "all_tied_weights_keys", None) or {}
        return {name: tensor for name, tensor in state.items() if name not in tied or tied[name] not in state}

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Any]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], torch.Tensor | None]:
        """The next window of batches and the step's normaliser, () on ``device``; None for ODB's own weights."""
        began = time.perf_counter()
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        self._waited += time.perf_counter() - began
        if not batches:
            self.control.should_epoch_stop = True  # else the Trainer would ask again until its step count is full
            return batches, None
        self._rank_counts = over_ranks(merged(map(count_batch, batches)), device)
        self.step_counts = merged(self._rank_counts)
        self.trained += [index for batch in batches for index in batch["sample_index"].tolist() if index >= 0]
        if not self.step_counts.label_tokens:
            logger.warning("step %d has no label on any rank: its loss is 0 and teaches nothing", self._next_step)
        if self._objective == "token":
            return batches, torch.tensor(max(self.step_counts.label_tokens, 1), device=device)
        if self._objective == "sample":
            return batches, torch.tensor(max(self.step_counts.labelled_samples, 1), device=device)
        return batches, None

    @property
    def _next_step(self) -> int:
        return self.state.global_step + 1

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        model_inputs, _ = split_batch(inputs)
        if self._blank_image is not None and "pixel_values" not in model_inputs:
            model_inputs = self._blank_image.behind(model_inputs)
        self._positions.expect(model_inputs["labels"])
        return super().compute_loss(model, model_inputs, *args, **kwargs)

    def _loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | None = None) -> torch.Tensor:
        if num_items_in_batch is not None:
            return batch_sum(outputs.logits, labels, cast(ExactObjective, self._objective)) / num_items_in_batch
        return batch_sum(outputs.logits, labels, "token") / max(normaliser(labels, "token"), 1)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Record a step's figures; pass on every ``log_every``-th, with the mean loss since the one before."""
        if "loss" not in logs:
            super().log(logs, start_time)
            return
        now = time.perf_counter()
        record = self._recorder.add(
            self.step_counts,
            self._rank_counts,
            seconds=now - self._step_began,
            wait_seconds=self._waited,
            loss=logs["loss"],
            grad_norm=logs.get("grad_norm"),
            lr=logs["learning_rate"],
        )
        self._step_began, self._waited = now, 0.0
        if self._progress is not None:
            self._progress.show(record)
        self._unlogged_loss.append(logs["loss"])
        if record.step % self._log_every == 0 or self.control.should_training_stop:
            logs["loss"] = sum(self._unlogged_loss) / len(self._unlogged_loss)
            self._unlogged_loss.clear()
            super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Validation loss of both objectives, as sums over sums: the same for any grouping and number of ranks."""
        began = time.perf_counter()
        metrics = evaluate_loss(self.model_wrapped, self._evaluation or (), self.args.device, self._evaluation_inputs)
        named = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        named[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - began, 4)
        self.log(dict(named))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        self._step_began += time.perf_counter() - began
        return named

    def _evaluation_inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        inputs, _ = split_batch(self._prepare_inputs(dict(batch)))
        # Sharded modules gather their parameters as they run: every rank must run the same ones in evaluation too.
        if self._sharded and self._blank_image is not None and "pixel_values" not in inputs:
            return self._blank_image.behind(inputs)
        return inputs

    @property
    def _sharded(self) -> bool:
        """Whether each rank holds a part of the parameters only: ZeRO-3 or FSDP."""
        stage = self.accelerator.deepspeed_config["zero_optimization"]["stage"] if self.is_deepspeed_enabled else 0
        return self.is_fsdp_enabled or stage == 3


class _Epochs:
    """A loader as the Trainer should see it: without length or epoch, both of which a resumed run would get wrong."""

    def __init__(self, loader: Iterable[dict[str, Any]]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._loader)


class OdbExactTrainer(ODBTrainerMixin, ExactTrainer):
    """`ExactTrainer` that hands ODB's step metadata to ODB's callback before the model sees the batch."""


def evaluate_loss(
    model: torch.nn.Module,
    batches: Iterable[Mapping[str, Any]],
    device: torch.device,
    prepare: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> dict[str, float]:
    """Mean loss per sample (``loss``) and per label token (``token_weighted_loss``) over all ranks' batches.

    Args:
        prepare: model inputs of a batch, on ``device``.
    """
    was_training = model.training
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    with torch.no_grad():
        for batch in batches:
            inputs = prepare(batch)
            labels = inputs.pop("labels")
            logits = model(**inputs).logits
            objectives: tuple[Literal["sample", "token"], ...] = ("sample", "token")
            for place, objective in enumerate(objectives):
                sums[2 * place] += batch_sum(logits, labels, objective).double()
                sums[2 * place + 1] += normaliser(labels, objective)
    if dist.is_initialized():
        dist.all_reduce(sums)
    model.train(was_training)
    sample_sum, samples, token_sum, tokens = sums.tolist()
    return {"loss": sample_sum / max(samples, 1), "token_weighted_loss": token_sum / max(tokens, 1), "samples": samples}
