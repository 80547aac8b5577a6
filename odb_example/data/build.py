"""The data command: builds what the preset names."""

from __future__ import annotations

from pathlib import Path

from odb_example.data.build_report import BuildReport
from odb_example.data.miniature import build_miniature
from odb_example.data.recipe import build_public
from odb_example.errors import UserError
from odb_example.settings import Settings

ONLY_PUBLIC = ("sources", "caps", "revisions", "vqa_like")


def build_data(settings: Settings) -> BuildReport:
    """Build the store at ``settings.data``: the public mix, or the embedded one with its benchmark.

    A store made by the same plan is kept; another one is replaced with ``overwrite`` only.

    Raises:
        UserError: as the two builders.
    """
    if settings.preset == "miniature":
        for name in ONLY_PUBLIC:
            if getattr(settings, name) != Settings.model_fields[name].default:
                raise UserError(
                    f"{name} is set, and the miniature has no sources to choose from",
                    "leave it out, or give --preset public",
                )
        return build_miniature(
            Path(settings.data),
            records=settings.records,
            seed=settings.seed,
            benchmark_path=Path(settings.dataset),
            overwrite=settings.overwrite,
        )
    return build_public(settings)
