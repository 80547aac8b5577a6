"""Checkpoints in and out: processor with its image cap, model, trainable parts, a whole saved folder.

The cap goes through the image processor's ``size``: its ``max_pixels`` attribute is not read when it counts patches,
so that count and pixels would disagree. What is saved is what was trained with: weights, generation config,
tokenizer, chat template and the image processor with the cap in force.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedModel

from odb_example.errors import UserError
from odb_example.models.miniature import build_tiny_checkpoint
from odb_example.models.source import is_the_miniature, require_model
from odb_example.settings import Settings

logger = logging.getLogger(__name__)

_PROBE_SIDE = 4096  # an image no sensible cap leaves alone
EVERYTHING = frozenset({"*", "all", "full"})
_TOWER = ("visual", "vision_tower", "vision_model")
_PROJECTOR = ("merger", "multi_modal_projector", "connector")


def ensure_model(settings: Settings) -> str:
    """The model to load; the miniature preset's own checkpoint is built where it is missing."""
    if is_the_miniature(settings):
        return str(build_tiny_checkpoint(Path(settings.model), seed=0))
    return settings.model


def resolve_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is one.

    Raises:
        UserError: CUDA is asked for and missing.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, and torch sees no CUDA device", "use --device cpu")
    return torch.device(device)


def load_processor(model: str, *, image_max_pixels: int, trust_remote_code: bool = False) -> Any:
    """The checkpoint's own processor, no image larger than ``image_max_pixels`` pixels (0 = the checkpoint's cap).

    Raises:
        UserError: no such checkpoint, no processor or chat template in it, or a cap below its smallest image.
    """
    require_model(model)
    try:
        processor = AutoProcessor.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the processor of {model}: {_first_line(error)}", _mend(model)) from error
    for part in ("image_processor", "tokenizer"):
        if getattr(processor, part, None) is None:
            raise UserError(f"{model} has no {part}", "name an image-text checkpoint whose folder is complete")
    if not processor.chat_template:
        raise UserError(f"{model} has no chat template", "copy chat_template.jinja from the base model into it")
    if image_max_pixels:
        cap_images(processor.image_processor, image_max_pixels)
    return processor


def cap_images(image_processor: Any, max_pixels: int) -> None:
    """Let no image exceed ``max_pixels`` pixels after resizing, and prove it on a large one.

    A processor with a fixed image size cannot be capped: that is logged, and nothing is changed.

    Raises:
        UserError: the cap is below the processor's smallest image, or has no effect.
    """
    size = dict(image_processor.size)
    if "longest_edge" not in size or not hasattr(image_processor, "get_number_of_image_patches"):
        logger.warning("image cap of %d pixels not applied: this processor resizes to %s", max_pixels, size)
        return
    smallest = size.get("shortest_edge") or 0
    if max_pixels < smallest:
        raise UserError(
            f"image cap {max_pixels} is below the smallest image of this processor, {smallest} pixels",
            f"use --image-max-pixels {smallest} or more, or 0 for the checkpoint's own cap",
        )
    # The checkpoint's own cap stays where it is the lower one: a cap never enlarges an image.
    image_processor.size = {**size, "longest_edge": min(max_pixels, size["longest_edge"])}
    patches = image_processor.get_number_of_image_patches(_PROBE_SIDE, _PROBE_SIDE, {})
    pixels = patches * image_processor.patch_size**2
    if pixels > max_pixels:
        raise UserError(
            f"image cap {max_pixels} has no effect: a {_PROBE_SIDE}x{_PROBE_SIDE} image still gets {pixels} pixels"
        )


def load_model(
    model: str, *, dtype: torch.dtype, attn_implementation: str | None = None, trust_remote_code: bool = False
) -> PreTrainedModel:
    """The checkpoint's image-text model in ``dtype``, on the CPU.

    Raises:
        UserError: no such checkpoint, or not an image-text one.
    """
    require_model(model)
    try:
        return AutoModelForImageTextToText.from_pretrained(
            model, dtype=dtype, attn_implementation=attn_implementation, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise UserError(f"cannot load the model of {model}: {_first_line(error)}", _mend(model)) from error


def load_for_scoring(model: str, settings: Settings, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The checkpoint's model on the device, in evaluation mode.

    Raises:
        UserError: as `load_model`.
    """
    loaded = load_model(
        model,
        dtype=dtype,
        attn_implementation=settings.attn_implementation,
        trust_remote_code=settings.trust_remote_code,
    )
    return loaded.to(device).eval()  # type: ignore[arg-type]


def select_trainable(
    model: PreTrainedModel,
    *,
    keywords: Sequence[str] = ("full",),
    freeze_vision_tower: bool = False,
    freeze_multimodal_projector: bool = False,
    freeze_language_model: bool = False,
) -> int:
    """Leave only the wanted parameters trainable; returns how many numbers they hold.

    ``keywords`` are parts of parameter names (``*``, ``all`` and ``full``: everything); the three freezes take away
    from what they select.

    Raises:
        UserError: nothing is left to train.
    """
    everything = bool(EVERYTHING & set(keywords))
    for name, parameter in model.named_parameters():
        wanted = everything or any(keyword in name for keyword in keywords)
        part = _part_of(name)
        frozen = (
            (part == "tower" and freeze_vision_tower)
            or (part == "projector" and freeze_multimodal_projector)
            or (part == "language" and freeze_language_model)
        )
        parameter.requires_grad_(wanted and not frozen)
    # Under ZeRO-3 a parameter is empty between uses; DeepSpeed notes its true size beside it.
    trainable = sum(
        getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters() if parameter.requires_grad
    )
    if not trainable:
        raise UserError(
            f"no parameter is left to train with keywords {', '.join(keywords)} and the chosen freezes",
            f"parameter names look like {next(iter(dict(model.named_parameters())))}",
        )
    return trainable


def save_checkpoint(
    model: PreTrainedModel, processor: Any, folder: Path, state_dict: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Write model and processor so that ``folder`` alone loads again, with the image cap in force.

    The files are written in a folder of their own and moved in with ``config.json`` last: without it the folder does
    not load, so a run that dies here leaves no half checkpoint that does.

    Args:
        state_dict: the whole weights, where the model itself holds a shard of them.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=".saving.", dir=folder))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}", "name another folder") from error
    try:
        model.save_pretrained(workshop, state_dict=dict(state_dict) if state_dict is not None else None)
        processor.save_pretrained(workshop)
        for stale in [folder / "config.json", *folder.glob("model*.safetensors*"), *folder.glob("pytorch_model*.bin*")]:
            stale.unlink(missing_ok=True)
        for path in sorted(workshop.iterdir(), key=lambda path: path.name == "config.json"):
            if path.is_file():
                path.chmod(0o644)
            os.replace(path, folder / path.name)
    except (OSError, SafetensorError) as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def cannot_write(folder: Path, error: Exception) -> UserError:
    """The one line for a checkpoint that did not fit or could not be written; safetensors has an error of its own."""
    words = getattr(error, "strerror", None) or _first_line(error)
    return UserError(f"cannot write {folder}: {words}", "free some space, or name another folder")


def _part_of(name: str) -> str:
    if any(word in name for word in _PROJECTOR):
        return "projector"
    if any(word in name.split(".") for word in _TOWER):
        return "tower"
    return "language"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def _mend(model: str) -> str:
    if Path(model).exists():
        return "the folder must hold a whole image-text checkpoint"
    return "name a folder, or check the Hub id and the network (offline, only cached models load)"
