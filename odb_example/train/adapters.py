"""The model as it is trained: loaded, its trainable part chosen, with LoRA where it is asked for."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from odb_example.errors import UserError
from odb_example.models.loading import load_model, select_trainable
from odb_example.settings import Settings

if TYPE_CHECKING:
    from peft import PeftModel


def load_for_training(model: str, settings: Settings, dtype: torch.dtype) -> PreTrainedModel | PeftModel:
    """Load ``model`` and leave trainable what the settings name; a PEFT model with ``--lora-r``.

    Raises:
        UserError: no such model, nothing left to train, PEFT missing, or LoRA targets it does not know.
    """
    loaded = load_model(
        model,
        dtype=dtype,
        attn_implementation=settings.attn_implementation,
        trust_remote_code=settings.trust_remote_code,
    )
    if settings.lora_r:
        return _with_lora(loaded, settings)
    select_trainable(
        loaded,
        keywords=[word.strip() for word in settings.trainable_keywords.split(",") if word.strip()],
        freeze_vision_tower=settings.freeze_vision_tower,
        freeze_multimodal_projector=settings.freeze_multimodal_projector,
        freeze_language_model=settings.freeze_language_model,
    )
    return loaded


def _with_lora(model: PreTrainedModel, settings: Settings) -> PeftModel:
    if importlib.util.find_spec("peft") is None:
        raise UserError("--lora-r needs the package peft", "pip install peft")
    from peft import LoraConfig, get_peft_model

    words = [word.strip() for word in settings.lora_target_modules.split(",") if word.strip()]
    config = LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=words[0] if words == ["all-linear"] else words,
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(
            f"--lora-target-modules {settings.lora_target_modules}: {error}", "name modules of the model"
        ) from error


def is_adapted(model: torch.nn.Module) -> bool:
    """Whether ``model`` is a PEFT model, whose adapters must be merged before it can be saved whole."""
    return hasattr(model, "merge_and_unload")
