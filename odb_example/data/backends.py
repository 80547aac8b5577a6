"""Which backend makes the samples of a processor: asked for by name, or found by trying."""

from __future__ import annotations

from typing import Any

from odb_example.data.generic import GenericBackend
from odb_example.data.qwen import QwenBackend
from odb_example.data.samples import Backend
from odb_example.errors import UserError


def choose_backend(processor: Any, name: str) -> Backend:
    """The backend called ``qwen_vl`` or ``generic``; ``auto`` is the first of them that fits.

    Raises:
        UserError: unknown name, or the processor does not fit.
    """
    if name == "qwen_vl":
        return QwenBackend(processor)
    if name == "generic":
        return GenericBackend(processor)
    if name != "auto":
        raise UserError(f"no processor backend {name!r}", "use auto, qwen_vl or generic")
    try:
        return QwenBackend(processor)
    except UserError:
        return GenericBackend(processor)
