"""Where a model comes from, asked before anything is loaded. Importing this costs no torch."""

from __future__ import annotations

from pathlib import Path

from odb_example.errors import UserError
from odb_example.settings import PRESETS, Settings


def is_the_miniature(settings: Settings) -> bool:
    """Whether the model is the miniature preset's own checkpoint, which is built where it is missing."""
    return settings.preset == "miniature" and settings.model == PRESETS["miniature"]["model"]


def require_model(model: str) -> None:
    """Refuse a path that is no checkpoint; it would otherwise be taken for a repository of the Hub.

    Raises:
        UserError: a folder that is not there, or holds no ``config.json``.
    """
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") != 1
    if Path(model).exists():
        if not (Path(model) / "config.json").is_file():
            raise UserError(f"{model} has no config.json", "name a checkpoint folder or a Hub id")
    elif looks_like_path:
        raise UserError(f"model folder {model} does not exist", "name a checkpoint folder or a Hub id")
