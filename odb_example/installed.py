"""Data files of installed packages, found without importing the package: scikit-learn's takes more than a second."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def installed(package: str, *parts: str) -> Path:
    """The file or folder at ``parts`` below the top-level ``package``.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.submodule_search_locations[0], *parts)
