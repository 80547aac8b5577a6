"""`train`: from settings to a trained and recorded run, inside one rank.

Reads top to bottom: join the ranks, open inputs, make loader, model and Trainer, claim the run folder, train, save,
write the records. This file and its neighbours `exact_trainer`, `callbacks` and `arguments` know transformers'
Trainer; a second trainer would be one more file beside them, on the same inputs, loaders, objective and recorder.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from odb.integrations.hf import configure_trainer, enable_odb
from transformers import PreTrainedModel, PrinterCallback, TrainingArguments
from transformers.trainer_pt_utils import get_model_param_count

from odb_example import distributed
from odb_example.distributed import Ranks
from odb_example.errors import UserError
from odb_example.files import write_json
from odb_example.models.loading import ensure_model, load_processor, save_checkpoint
from odb_example.settings import PRESETS, Settings
from odb_example.train.adapters import is_adapted, load_for_training
from odb_example.train.arguments import (
    Precision,
    build_arguments,
    deepspeed_config,
    precision,
    sharding_of,
    start_deepspeed,
)
from odb_example.train.callbacks import EpochFromSamples, Progress, SampleProgress, SaveAtTheEnd
from odb_example.train.exact_trainer import ExactTrainer, OdbExactTrainer
from odb_example.train.inputs import Inputs, open_inputs
from odb_example.train.loaders import Batch, OdbLoader, TrainLoader, apply_odb, build_loader
from odb_example.train.records import Recorder
from odb_example.train.resume import ResumePoint, TrainedSamples, find_resume_point
from odb_example.train.run_folder import (
    PARTIAL_CHECKPOINTS,
    RunIdentity,
    claim,
    forget_the_former_model,
    refuse_anothers,
    run_folder,
)
from odb_example.train.summary import opening, prefetch_factor, summary
from odb_example.train.text_only import BlankImage
from odb_example.train.trackers import tracker_callbacks

if TYPE_CHECKING:
    from peft import PeftModel

ODB_WEIGHTS: dict[str, Literal["none", "exact", "approx"]] = {"odb-exact": "exact", "odb-approx": "approx"}


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a finished run came to; the same on every rank.

    Attributes:
        folder: the run folder; it holds the model where ``saved``.
        summary: the content of ``train_summary_{loader}.json``.
    """

    folder: Path
    global_step: int
    emitted_samples: int
    train_loss: float
    saved: bool
    summary: dict[str, Any]


def train(settings: Settings) -> TrainResult:
    """Train as ``settings`` say and leave the run's files; called once in each rank.

    Raises:
        UserError: whatever is wrong with settings, data, model, folder or machine, before the first step.
    """
    ranks = distributed.start(settings.device, settings.ddp_timeout)
    _refuse_what_cannot_be(settings, ranks)
    folder = run_folder(settings)
    model_name = model_of(settings, ranks)
    processor = load_processor(
        model_name, image_max_pixels=settings.image_max_pixels, trust_remote_code=settings.trust_remote_code
    )
    inputs = open_inputs(settings, processor, ranks)
    identity = _identity(settings, inputs)
    refuse_anothers(folder, identity, settings)  # before a large model is loaded for nothing
    resumed = find_resume_point(folder, identity, settings)

    recorder = Recorder(len(inputs.training), earlier=resumed.steps if resumed else ())
    progress = _progress(settings, ranks, recorder)
    run = assemble(settings, ranks, inputs, model_name, processor, recorder, progress=progress, resumed=resumed)
    if ranks.is_main:  # only now that nothing in settings, data or model can stop the run: an earlier run stays whole
        claim(folder, identity, settings)
    distributed.barrier()
    run.trainer.add_callback(TrainedSamples(run.trainer, run.loader, recorder, identity, settings, folder))
    trainable = get_model_param_count(run.trainer.model, trainable_only=True)
    if ranks.is_main:
        start = opening(settings, ranks, inputs, trainable, run.number_format)
        print(json.dumps(start, ensure_ascii=False), flush=True)
        if settings.train_size:
            print(
                f"note: training on {len(inputs.split.train):,} of {len(inputs.store):,} records (--train-size);"
                " 0 takes all that are not held out",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    outcome = run.trainer.train(resume_from_checkpoint=str(resumed.checkpoint) if resumed else None)
    run.loader.close()
    if progress:
        progress.end(recorder.records[-1] if recorder.records else None)

    if ranks.is_main:
        forget_the_former_model(folder, another_is_saved=settings.save_final_model)
    if settings.save_final_model:
        _save(run.trainer, processor, folder, ranks)
    result = summary(
        settings,
        ranks,
        inputs,
        recorder,
        trainer_metrics=outcome.metrics,
        trainable_parameters=trainable,
        number_format=run.number_format,
    )
    if ranks.is_main:
        recorder.write(folder)
        write_json(folder / f"train_metrics_{settings.loader}.json", run.trainer.state.log_history)
        write_json(folder / f"train_summary_{settings.loader}.json", result)
        shutil.rmtree(folder / PARTIAL_CHECKPOINTS, ignore_errors=True)
        print(f"[odb-mm-mix-summary] {json.dumps(result, ensure_ascii=False)}", flush=True)
    distributed.barrier()
    return TrainResult(
        folder=folder,
        global_step=result["global_step"],
        emitted_samples=result["emitted_samples"],
        train_loss=outcome.training_loss,
        saved=settings.save_final_model,
        summary=result,
    )


@dataclass(frozen=True, slots=True)
class Assembled:
    """Everything that trains, ready for ``trainer.train()``."""

    trainer: ExactTrainer
    loader: TrainLoader
    number_format: Precision


def assemble(
    settings: Settings,
    ranks: Ranks,
    inputs: Inputs,
    model_name: str,
    processor: Any,
    recorder: Recorder,
    *,
    progress: Progress | None = None,
    resumed: ResumePoint | None = None,
) -> Assembled:
    """Loader, TrainingArguments, model and Trainer, in the order in which they need each other.

    TrainingArguments come before the model: under ZeRO-3 they make loading shard it.
    """
    loader = _build_loader(settings, ranks, inputs)
    if resumed:
        loader.load_state_dict(resumed.loader)
    # The run's length and how much of it is done: in steps where they are capped, else in samples.
    total = settings.max_steps or total_samples(settings, recorder.num_train_samples)
    done = len(recorder.records) if settings.max_steps else recorder.emitted_samples
    deepspeed = deepspeed_config(settings, ranks.device, ranks.world_size)
    if deepspeed is not None:
        start_deepspeed(ranks.device)
    number_format = precision(settings, ranks.device, sharding_of(deepspeed, settings.fsdp))
    arguments = build_arguments(
        settings,
        device=ranks.device,
        checkpoints=run_folder(settings) / PARTIAL_CHECKPOINTS,
        deepspeed=deepspeed,
        precision=number_format,
        total_progress=total,
    )
    model = load_for_training(model_name, settings, number_format.weights)
    batches = loader if done < total else ()  # a finished run that is resumed takes no step more
    trainer = _build_trainer(settings, ranks, model, processor, arguments, batches, inputs, recorder, progress)
    if isinstance(loader, OdbLoader):
        _attach_odb(trainer, loader, settings)
    if not settings.max_steps:
        trainer.add_callback(SampleProgress(recorder, lambda: trainer.step_counts.samples, total))
    trainer.add_callback(EpochFromSamples(lambda: trainer.epoch_now))
    trainer.add_callback(SaveAtTheEnd())
    return Assembled(trainer, loader, number_format)


def _refuse_what_cannot_be(settings: Settings, ranks: Ranks) -> None:
    if ranks.device.type == "cuda" and ranks.world_size == 1 and torch.cuda.device_count() > 1:
        raise UserError(
            f"one process, but {torch.cuda.device_count()} GPUs are visible",
            "set CUDA_VISIBLE_DEVICES to one of them, or give --num-processes",
        )
    if settings.loader != "odb" and settings.loss_scaling in ODB_WEIGHTS:
        raise UserError(
            f"--loss-scaling {settings.loss_scaling} needs ODB's metadata, which loader {settings.loader} has not",
            "give token, sample or none",
        )
    rows_by_default = (1, PRESETS[settings.preset or "public"].get("fixed_batch_size"))
    if settings.loader == "odb" and settings.fixed_batch_size not in rows_by_default:
        raise UserError(
            f"--fixed-batch-size {settings.fixed_batch_size} has no meaning for ODB", "give --token-budget instead"
        )
    if settings.fsdp and ranks.world_size == 1:
        raise UserError("--fsdp needs more than one rank", "give --num-processes 2 or more, or leave it out")


def model_of(settings: Settings, ranks: Ranks) -> str:
    """The model to load; where it must be built first, one rank builds and the others wait."""
    if ranks.is_main:
        ensure_model(settings)
    distributed.barrier()
    return ensure_model(settings)


def _identity(settings: Settings, inputs: Inputs) -> RunIdentity:
    split = {name: value for name, value in inputs.split.describe().items() if not name.endswith("preview")}
    return RunIdentity(
        model=settings.model,
        data=str(inputs.store.path),
        data_fingerprint=inputs.store.fingerprint,
        split=json.dumps(split),
        objective=settings.loss_scaling,
        loader=settings.loader,
    )


def _build_loader(settings: Settings, ranks: Ranks, inputs: Inputs) -> TrainLoader:
    return build_loader(
        settings.loader,
        inputs.training,
        inputs.collate,
        rank=ranks.rank,
        world_size=ranks.world_size,
        seed=settings.seed,
        token_budget=settings.token_budget,
        buffer_size=settings.buffer_size,
        max_patches=settings.max_patches,
        fixed_batch_size=settings.fixed_batch_size,
        num_workers=settings.num_workers,
        prefetch_factor=prefetch_factor(settings),
        join=settings.join,
        group_order_flip=settings.group_order_flip,
        no_warmup=settings.no_warmup,
        accumulation_steps=settings.gradient_accumulation_steps,
        loss_scaling=ODB_WEIGHTS.get(settings.loss_scaling, "none"),
        timeout_s=settings.ddp_timeout,
    )


def total_samples(settings: Settings, num_train_samples: int) -> int:
    """Samples of the whole run."""
    return math.ceil(num_train_samples * settings.num_train_epochs)


def _progress(settings: Settings, ranks: Ranks, recorder: Recorder) -> Progress | None:
    if not ranks.is_main:
        return None
    progress = Progress(
        None if settings.max_steps else total_samples(settings, recorder.num_train_samples),
        settings.token_budget if settings.loader in ("odb", "oracle") else None,
    )
    progress.start(recorder.emitted_samples)
    return progress


def _build_trainer(
    settings: Settings,
    ranks: Ranks,
    model: PreTrainedModel | PeftModel,
    processor: Any,
    arguments: TrainingArguments,
    batches: Iterable[Batch],
    inputs: Inputs,
    recorder: Recorder,
    progress: Progress | None,
) -> ExactTrainer:
    trainer = (OdbExactTrainer if settings.loader == "odb" else ExactTrainer)(
        model=model,
        args=arguments,
        processor=processor,
        callbacks=tracker_callbacks(settings, ranks.is_main),
        objective=settings.loss_scaling,
        batches=batches,
        evaluation=_evaluation_batches(settings, ranks, inputs) if settings.eval_steps else None,
        recorder=recorder,
        progress=progress,
        blank_image=BlankImage.of(model.config),
        log_every=settings.logging_steps,
    )
    trainer.remove_callback(PrinterCallback)  # it prints to stdout, which is for markers and JSON
    return trainer


def _evaluation_batches(settings: Settings, ranks: Ranks, inputs: Inputs) -> TrainLoader:
    """Held-out rows in token-budget groups; every sample once whenever it is iterated."""
    if not len(inputs.evaluation):
        raise UserError("--eval-steps, but the split holds nothing out", "give --split-mode lf_val_size")
    return build_loader(
        "oracle",
        inputs.evaluation,
        inputs.collate,
        rank=ranks.rank,
        world_size=ranks.world_size,
        seed=settings.seed,
        token_budget=settings.token_budget,
        buffer_size=settings.buffer_size,
        max_patches=0,
        fixed_batch_size=1,
        num_workers=settings.num_workers,
        prefetch_factor=settings.standard_prefetch_factor,
        join=True,
        group_order_flip="none",
        no_warmup=False,
        accumulation_steps=1,
    )


def _attach_odb(trainer: ExactTrainer, loader: OdbLoader, settings: Settings) -> None:
    """ODB by one call or by its parts. Its callback then counts only: the run's length and schedule are ours (B1)."""
    common: dict[str, Any] = {
        "sample_budget": sys.maxsize,
        "scheduler_progress": "optimizer_steps",
        "max_steps_policy": "preserve",
        "replace_train_dataloader": False,
    }
    if settings.odb_integration == "enable":
        enable_odb(
            trainer,
            train_dataloader=loader,
            train_dataset=loader.dataset,
            **common,
            **loader.options.arguments(),
        )
    else:
        configure_trainer(trainer, dataloader=loader, handle=apply_odb(loader), **common)


def _save(trainer: ExactTrainer, processor: Any, folder: Path, ranks: Ranks) -> None:
    """Write the whole trained model, gathered from all ranks where it is sharded; adapters are merged into it."""
    state = trainer.whole_state_dict()
    if ranks.is_main:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if is_adapted(model):
            model.save_pretrained(folder / "adapter")
            model, state = model.merge_and_unload(), None
        save_checkpoint(model, processor, folder, state)
    distributed.barrier()
