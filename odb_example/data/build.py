"""The data command: builds what the preset names."""

from __future__ import annotations

from pathlib import Path

from odb_example.data.build_report import BuildReport
from odb_example.data.miniature import build_miniature
from odb_example.data.recipe import build_public
from odb_example.settings import Settings


def build_data(settings: Settings) -> BuildReport:
    """Build the store at ``settings.data``: the public mix, or the embedded one with its benchmark.

    A store made by the same plan is kept; another one is replaced with ``overwrite`` only.

    Raises:
        UserError: as the two builders.
    """
    if settings.preset == "miniature":
        return build_miniature(
            Path(settings.data),
            records=settings.records,
            seed=settings.seed,
            benchmark_path=Path(settings.dataset),
            overwrite=settings.overwrite,
        )
    return build_public(settings)
