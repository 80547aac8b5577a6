"""What made a result: versions, device, precision, and what it took. Every result file carries it."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch
from transformers import PreTrainedModel

from odb_example import __version__
from odb_example.distributed import Ranks
from odb_example.evaluate.batching import Effort, Scored

PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "online-dynamic-batching", "pillow", "torchvision")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions of the packages that move figures, and the hardware they ran on."""
    return {
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "odb_example": __version__,
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
    }


def describe_model(model: PreTrainedModel) -> dict[str, Any]:
    """Precision, device and attention kernel the model computes with."""
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "attn_implementation": model.config._attn_implementation,
    }


def describe_effort(effort: Effort, scored: Scored, ranks: Ranks) -> dict[str, Any]:
    """How the figures were reached and how fast; ``seconds`` runs from the first length to the last row."""
    return {
        "token_budget": effort.token_budget,
        "world_size": ranks.world_size,
        "num_workers": effort.num_workers,
        "seconds": round(scored.seconds, 3),
        "batches_rank_0": scored.batches,
        "padding_rank_0": round(1 - scored.tokens / scored.padded_tokens, 4) if scored.padded_tokens else 0.0,
    }
