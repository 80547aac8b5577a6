"""A run in one JSON object: what it prints at its start, and what stands in ``train_summary_{loader}.json``."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch

from odb_example import __version__
from odb_example.distributed import Ranks
from odb_example.settings import Settings
from odb_example.train.arguments import Precision
from odb_example.train.inputs import Inputs
from odb_example.train.records import Recorder

RECORDED_PACKAGES = ("online-dynamic-batching", "torch", "transformers", "accelerate")


def prefetch_factor(settings: Settings) -> int:
    """Samples (ODB) or batches (the others) that each worker prepares ahead."""
    own = settings.odb_prefetch_factor if settings.loader == "odb" else settings.standard_prefetch_factor
    return settings.prefetch_factor or own


def opening(
    settings: Settings, ranks: Ranks, inputs: Inputs, trainable_parameters: int, number_format: Precision
) -> dict[str, Any]:
    """The settings of a run as it prints them before its first step."""
    return {
        "loader": settings.loader,
        "objective": settings.loss_scaling,
        "data": str(inputs.store.path),
        "data_fingerprint": inputs.store.fingerprint,
        "raw_records": len(inputs.store),
        "records": len(inputs.training),
        "eval_records": len(inputs.evaluation),
        "split": inputs.split.describe(),
        "model": settings.model,
        "trainable_parameters": trainable_parameters,
        "world_size": ranks.world_size,
        "device": str(ranks.device.type),
        "precision": number_format.name,
        "config": _config(settings, number_format),
    }


def summary(
    settings: Settings,
    ranks: Ranks,
    inputs: Inputs,
    recorder: Recorder,
    *,
    trainer_metrics: dict[str, float],
    trainable_parameters: int,
    number_format: Precision,
) -> dict[str, Any]:
    """The finished run. Rates rest on this process's own steps and wall time, counts on the whole run."""
    totals, own = recorder.totals, recorder.own_totals
    runtime = trainer_metrics["train_runtime"]
    budgeted = settings.loader in ("odb", "oracle")
    return {
        "loader": settings.loader,
        "objective": settings.loss_scaling,
        "global_step": totals.steps,
        "emitted_samples": totals.emitted_samples,
        "mean_emitted_samples_per_step": totals.emitted_samples / max(totals.steps, 1),
        "effective_emitted_samples_per_second": own.emitted_samples / runtime,
        "tokens_per_second": own.input_tokens / runtime,
        "label_tokens_per_second": own.label_tokens / runtime,
        "padding_ratio": totals.padding_ratio,
        "fill": totals.fill(settings.token_budget) if budgeted else None,
        "steps": totals.steps,
        "repeated_rows": totals.repeated_rows,
        "totals": asdict(totals),
        "resumed_after_step": recorder.resumed_after or None,
        "trainer_metrics": trainer_metrics,
        "world_size": ranks.world_size,
        "split": inputs.split.describe(),
        "config": _config(settings, number_format),
        "model": settings.model,
        "trainable_parameters": trainable_parameters,
        "data": {
            "path": str(inputs.store.path),
            "fingerprint": inputs.store.fingerprint,
            "raw_records": len(inputs.store),
            "train_samples": len(inputs.training),
            "eval_samples": len(inputs.evaluation),
        },
        "seed": settings.seed,
        "hardware": hardware(ranks.device),
        "versions": {"odb-example": __version__, **{package: version(package) for package in RECORDED_PACKAGES}},
    }


def _config(settings: Settings, number_format: Precision) -> dict[str, Any]:
    odb = settings.loader == "odb"
    return {
        "max_length": settings.max_length,
        "image_max_pixels": settings.image_max_pixels,
        "processor_backend": settings.processor_backend,
        "num_workers": settings.num_workers,
        "prefetch_factor": prefetch_factor(settings),
        "fixed_batch_size": None if odb else settings.fixed_batch_size,
        "token_budget": settings.token_budget if settings.loader in ("odb", "oracle") else None,
        "buffer_size": settings.buffer_size if odb else None,
        "loss_scaling": settings.loss_scaling,
        "join": settings.join if odb else None,
        "deepspeed": settings.deepspeed,
        "fsdp": settings.fsdp,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "use_cache": False,
        "trainable_keywords": settings.trainable_keywords,
        "precision": number_format.name,
        "odb_integration": settings.odb_integration if odb else None,
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine, as far as results depend on it."""
    cuda = device.type == "cuda"
    return {
        "device": device.type,
        "gpu_type": torch.cuda.get_device_name(device) if cuda else None,
        "gpus": torch.cuda.device_count() if cuda else 0,
        "cpu": platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count(),
        "platform": platform.platform(),
    }
