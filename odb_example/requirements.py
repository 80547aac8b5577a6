"""Which of this project's requirements the running interpreter lacks.

Runs before anything is installed (``python odb_example/requirements.py [EXTRA ...]``: prints what is missing, exit
status 1 if something is), so it imports nothing of the project and reads ``pyproject.toml`` where there is one.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

PROJECT = "odb-example"


def declared(extras: tuple[str, ...] = ()) -> list[str]:
    """Requirement lines of the project, from the checkout's pyproject.toml or the installed wheel."""
    source = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if source.is_file():
        project = _toml()(source.read_text(encoding="utf-8"))["project"]
        lines = list(project["dependencies"])
        for extra in extras:
            lines += project["optional-dependencies"][extra]
        return [line for line in lines if not line.startswith(PROJECT)]
    from packaging.requirements import Requirement

    wanted = [Requirement(line) for line in metadata.requires(PROJECT) or []]
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [str(r) for r in wanted if r.marker is None or any(r.marker.evaluate(e) for e in environments)]


def missing(extras: tuple[str, ...] = ()) -> list[str]:
    """Requirement lines that this interpreter does not satisfy, in their declared order."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return declared(extras)
    lacking = []
    for line in declared(extras):
        requirement = Requirement(line)
        try:
            satisfied = requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
        except metadata.PackageNotFoundError:
            satisfied = False
        if not satisfied:
            lacking.append(line)
    return lacking


def _toml():  # type: ignore[no-untyped-def]
    try:
        import tomllib
    except ImportError:  # Python 3.10
        from pip._vendor import tomli as tomllib  # type: ignore[no-redef]
    return tomllib.loads


if __name__ == "__main__":
    lacking = missing(tuple(sys.argv[1:]))
    print("\n".join(lacking))
    sys.exit(1 if lacking else 0)
