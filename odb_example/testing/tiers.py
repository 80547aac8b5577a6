"""Which tier a test belongs to, whether the gpu tier was asked for, and why it cannot run here.

A test's tier is its directory: ``tests/unit``, ``tests/integration``, ``tests/gpu``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from odb_example.testing.target import CPU, Target, gpu_count

TIERS = ("unit", "integration", "gpu")
RANKS_GROUP = "ranks"


def tier_of(path: Path, root: Path) -> str | None:
    """The tier of a test file or folder, None outside the tiers."""
    if not path.is_relative_to(root / "tests"):
        return None
    parts = path.relative_to(root / "tests").parts
    return parts[0] if parts and parts[0] in TIERS else None


def gpu_tier_asked(config: pytest.Config) -> bool:
    """Whether ``-m`` names the gpu tier, or a path inside it was given. Plain ``pytest`` runs the other two."""
    if re.search(r"(?<!not )\bgpu\b", config.getoption("markexpr")):
        return True
    return any(tier_of(path, config.rootpath) == "gpu" for path in argument_paths(config))


def chosen_tiers(config: pytest.Config) -> tuple[str, ...]:
    """Tiers that this run imports at all: the one that ``-m`` names, or all (the gpu tier only if asked for)."""
    only = config.getoption("markexpr")
    if only in TIERS:
        return (only,)
    return TIERS if gpu_tier_asked(config) else tuple(tier for tier in TIERS if tier != "gpu")


def argument_paths(config: pytest.Config) -> list[Path]:
    """The files and folders named on the command line (or by ``testpaths``), test names cut off."""
    folder = config.invocation_params.dir
    return [Path(folder, argument.split("::")[0]).resolve() for argument in config.args]


def whole_tiers(config: pytest.Config, deselected: Iterable[str], ended_early: bool) -> set[str]:
    """Tiers of which this run collected and ran everything.

    Args:
        deselected: tiers some test of which was left out by ``-k``, ``-m`` or ``--deselect``.
        ended_early: ``-x``, an interrupt, or a module that could not be collected.
    """
    option = config.option
    narrowed = option.keyword or option.ignore or option.ignore_glob or getattr(option, "lf", False)
    if narrowed or ended_early or any("::" in argument for argument in config.args):
        return set()
    named = argument_paths(config)
    return {
        tier
        for tier in chosen_tiers(config)
        if any((config.rootpath / "tests" / tier).is_relative_to(path) for path in named) and tier not in deselected
    }


def why_gpu_tier_cannot_run(target: Target) -> str | None:
    """The reason, with the commands that would run it; None where it can."""
    if target.device == CPU and target.asked_for_cpu:
        return None
    here = gpu_count()
    if here >= target.ranks:
        return None
    needed = "1 GPU" if target.ranks == 1 else f"{target.ranks} GPUs"
    return (
        f"the gpu tier needs {needed}, this machine shows {here or 'none'}; there: pytest -m gpu --num-processes "
        f"{target.ranks}; rehearsal here: pytest -m gpu --device cpu --num-processes {target.ranks}"
    )
