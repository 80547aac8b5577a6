"""`TrainingArguments` from `Settings`: one place that knows both sets of names.

Sharding, precision and trackers are resolved here. ``--trainer.NAME VALUE`` passes on whatever else TrainingArguments
offers, parsed by transformers' own argument parser; names that this project decides itself are refused with the option
that sets them.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed
from transformers import HfArgumentParser, TrainingArguments

from odb_example import distributed
from odb_example.errors import UserError
from odb_example.settings import Settings

# What would contradict an option of ours, or our way of training, and the option to use instead.
DECIDED_HERE = {
    "output_dir": "--output-dir", "per_device_train_batch_size": "--fixed-batch-size", "max_steps": "--max-steps",
    "num_train_epochs": "--num-train-epochs", "gradient_accumulation_steps": "--gradient-accumulation-steps",
    "learning_rate": "--lr", "lr_scheduler_type": "--lr-scheduler-type", "warmup_ratio": "--warmup-ratio",
    "warmup_steps": "--warmup-ratio", "max_grad_norm": "--max-grad-norm", "seed": "--seed", "bf16": "--bf16",
    "fp16": "--fp16", "gradient_checkpointing": "--gradient-checkpointing", "deepspeed": "--deepspeed",
    "fsdp": "--fsdp", "report_to": "--report-to", "save_strategy": "--save-strategy", "save_steps": "--save-steps",
    "save_total_limit": "--save-total-limit", "logging_steps": "--logging-steps", "eval_steps": "--eval-steps",
    "eval_strategy": "--eval-steps", "ddp_timeout": "--ddp-timeout", "use_cpu": "--device",
    "dataloader_num_workers": "--num-workers", "dataloader_prefetch_factor": "--prefetch-factor",
    "train_sampling_strategy": "--loader", "resume_from_checkpoint": "--resume",
    "average_tokens_across_devices": "--loss-scaling", "load_best_model_at_end": "--save-strategy",
    "push_to_hub": "--save-final-model", "auto_find_batch_size": "--token-budget",
}  # fmt: skip

Sharding = Literal["none", "zero", "zero3", "fsdp"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats of a run: of the weights as they are loaded, and of the computation."""

    weights: torch.dtype
    bf16: bool
    fp16: bool

    @property
    def name(self) -> str:
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"


def precision(settings: Settings, device: torch.device, sharding: Sharding) -> Precision:
    """fp32 on CPU, bf16 on GPUs unless told otherwise; weights stay fp32 under autocast.

    DeepSpeed keeps its own fp32 copy of the weights, so they are loaded in the format it computes in.
    """
    wanted = device.type == "cuda" and not settings.fp16 if settings.bf16 is None else settings.bf16
    computed = torch.bfloat16 if wanted else torch.float16 if settings.fp16 else torch.float32
    return Precision(computed if sharding.startswith("zero") else torch.float32, wanted, settings.fp16)


def deepspeed_config(settings: Settings, device: torch.device, world_size: int) -> dict[str, Any] | None:
    """The DeepSpeed configuration in force: shipped ZeRO-2 on several GPUs by default, None where it is off.

    On one GPU there is nothing to spread, so it must be asked for there.

    Raises:
        UserError: DeepSpeed asked for but not installed, or a file that cannot be read.
    """
    named = settings.deepspeed
    if named is None:
        wanted = device.type == "cuda" and world_size > 1 and not settings.fsdp and _installed("deepspeed")
        named = "zero2" if wanted else "none"
    if named in ("none", ""):
        return None
    if not _installed("deepspeed"):
        raise UserError("--deepspeed needs the package deepspeed", "pip install deepspeed, or give --deepspeed none")
    if named in ("zero2", "zero3"):
        text = resources.files("odb_example.train").joinpath("configs", f"{named}.json").read_text(encoding="utf-8")
        return dict(json.loads(text))
    try:
        return dict(json.loads(Path(named).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read DeepSpeed config {named}: {error}", "give zero2, zero3, none or a file") from None


def start_deepspeed(device: torch.device) -> None:
    """Join DeepSpeed's communication: loading under ZeRO-3 needs it, and TrainingArguments start it on GPUs only.

    A process that no launcher started becomes the one rank of a job of its own.
    """
    import deepspeed

    if device.type == "cpu":
        # DeepSpeed would compile its own CPU all-reduce here, in minutes, behind a lock that a killed run leaves for
        # ever; gloo does the same work.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not torch.distributed.is_initialized():
        distributed.join(
            "nccl" if device.type == "cuda" else "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        os.environ.setdefault(name, value)
    deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), auto_mpi_discovery=False)


def sharding_of(deepspeed: Mapping[str, Any] | None, fsdp: str | None) -> Sharding:
    """How parameters and gradients are spread over ranks."""
    if deepspeed is not None:
        return "zero3" if deepspeed.get("zero_optimization", {}).get("stage") == 3 else "zero"
    return "fsdp" if fsdp else "none"


def build_arguments(
    settings: Settings,
    *,
    device: torch.device,
    checkpoints: Path,
    deepspeed: dict[str, Any] | None,
    precision: Precision,
    total_progress: int,
) -> TrainingArguments:
    """`TrainingArguments` of one run.

    Args:
        checkpoints: folder the Trainer writes ``checkpoint-N`` into.
        total_progress: length of the learning-rate schedule, in samples or, with ``--max-steps``, in steps; the
            Trainer calls it ``max_steps``.

    Raises:
        UserError: an unknown or refused ``--trainer`` name, or a value TrainingArguments does not take.
    """
    values: dict[str, Any] = {
        "output_dir": str(checkpoints),
        "per_device_train_batch_size": 1 if settings.loader == "odb" else settings.fixed_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "max_steps": total_progress,
        "num_train_epochs": settings.num_train_epochs,
        "learning_rate": settings.lr,
        "lr_scheduler_type": settings.lr_scheduler_type,
        "warmup_steps": settings.warmup_ratio,
        "max_grad_norm": settings.max_grad_norm,
        "seed": settings.seed,
        "bf16": precision.bf16,
        "fp16": precision.fp16,
        "use_cpu": device.type == "cpu",
        "gradient_checkpointing": settings.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if settings.gradient_checkpointing else None,
        "logging_steps": 1,  # every step reaches the recorder; ExactTrainer.log thins what is kept and shown
        "save_strategy": settings.save_strategy,
        "save_steps": settings.save_steps,
        "eval_strategy": "steps" if settings.eval_steps else "no",
        "eval_steps": settings.eval_steps or None,
        "report_to": [],
        "ddp_timeout": settings.ddp_timeout,
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "ignore_data_skip": True,  # the loader itself knows what was trained on
        "average_tokens_across_devices": True,
        "dataloader_num_workers": settings.num_workers,
        # Every batch carries an image, blank if need be, so that nothing stays unused that the optimizer knows.
        "ddp_find_unused_parameters": False,
    }
    if deepspeed is not None:
        values["deepspeed"] = deepspeed
    if settings.fsdp:
        values |= {"fsdp": True, "fsdp_config": _fsdp_config(settings.fsdp)}
    values |= _further(settings.trainer)
    try:
        with warnings.catch_warnings():
            # The new name of this argument is younger than the oldest transformers we support.
            warnings.filterwarnings("ignore", "`gradient_checkpointing", FutureWarning)
            return TrainingArguments(**values)
    except (ValueError, TypeError) as error:
        raise UserError(f"TrainingArguments: {error}", "change the option it names") from error


def _fsdp_config(words: str) -> dict[str, Any]:
    known = {
        "full_shard": {"reshard_after_forward": True}, "shard_grad_op": {"reshard_after_forward": False},
        "offload": {"cpu_offload": True}, "auto_wrap": {},
    }  # fmt: skip
    config: dict[str, Any] = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    for word in words.replace(",", " ").split():
        if word not in known:
            raise UserError(f"--fsdp {words!r}: {word!r} is unknown", f"choose from {', '.join(known)}")
        config |= known[word]
    return config


def _further(given: Mapping[str, str]) -> dict[str, Any]:
    names = [f.name for f in fields(TrainingArguments) if f.init]
    parsed: dict[str, Any] = {}
    parser = HfArgumentParser(cast(Any, TrainingArguments), exit_on_error=False, allow_abbrev=False)
    for name, word in given.items():
        if name in DECIDED_HERE:
            raise UserError(f"--trainer.{name} is decided by this project", f"use {DECIDED_HERE[name]}")
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            raise UserError(
                f"--trainer.{name}: TrainingArguments has no such name", f"did you mean {close[0]}?" if close else ""
            )
        try:
            parsed[name] = getattr(parser.parse_args([f"--{name}", str(word)]), name)
        except argparse.ArgumentError as error:
            raise UserError(f"--trainer.{name} {word!r}: {error.message}") from error
    return parsed


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
