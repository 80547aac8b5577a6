"""The report header: what is tested, on what, and every variable that looks like one of ours.

A variable that does nothing is listed too, with its nearest known name, so that a typo is seen before the results are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from odb_example.resolve import SIBLING_NAMES
from odb_example.settings import Settings, option_of
from odb_example.testing.target import Target

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "online-dynamic-batching", "numpy")
OWN_VARIABLES = frozenset({"ODB_PIPELINE", "ODB_EXAMPLE_FAILURES"})
ODB_PREFIXES = ("ODB_GROUP_", "ODB_LOG_", "ODB_GLOO_", "ODB_PROFILE_", "ODB_ITERATOR_")


@cache
def versions() -> dict[str, str]:
    """Installed versions of what decides a number; a package that is not installed is left out."""
    return {name: metadata.version(name) for name in PACKAGES if any(metadata.distributions(name=name))}


def lines(target: Target, environ: Mapping[str, str], seed: str, profile: str) -> list[str]:
    """The header's lines."""
    model = "the seeded tiny model" if target.model is None else target.model
    data = "the miniature mix" if target.data is None else target.data
    shown = [
        f"testing: pipeline {target.pipeline or 'of this project'}",
        f"gpu tier: {model} on {data}, {target.device}, {_count(target.ranks, 'rank')}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()),
        f"hypothesis: profile {profile}, seed {seed}",
    ]
    looks_ours = [describe_variable(name, value) for name, value in sorted(environ.items()) if looks_like_ours(name)]
    return shown + [f"variable: {line}" for line in looks_ours]


def looks_like_ours(name: str) -> bool:
    """Whether someone who typed this variable probably meant this project."""
    return bool(re.match(r"_?ODB", name, re.IGNORECASE)) or name in SIBLING_NAMES or name == "HF_DATASETS_CACHE"


def describe_variable(name: str, value: str) -> str:
    """``NAME=value``, and what is the matter with it if it has no effect."""
    known = OWN_VARIABLES | {env for field in Settings.model_fields if (env := option_of(field).env)}
    if name in known:
        return f"{name}={value}"
    if name.startswith(ODB_PREFIXES):
        return f"{name}={value}  (read by ODB itself)"
    if name in SIBLING_NAMES or name.removeprefix("ODB_MM_MIX_") in SIBLING_NAMES:
        return f"{name}={value}  (of a sibling example: no effect here)"
    close = difflib.get_close_matches(name.upper(), sorted(known), n=1)
    return f"{name}={value}  (UNKNOWN, no effect{f'; did you mean {close[0]}?' if close else ''})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
