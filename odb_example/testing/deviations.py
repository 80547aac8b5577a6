"""Known deviations of a pipeline: a file a user brings, one check a line, with the reason.

    # what we know about and live with
    collator_only_pads       labels are masked in the collator until v2
    test_resume[2-ranks]     no resume yet

Each becomes a strict expected failure: a deviation that is mended fails the run until its line is taken out.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odb_example.errors import UserError

if TYPE_CHECKING:
    import pytest


KNOWN = "known deviation: "
PACKAGED_TEST = "test_conformance"  # in `odb_example.conformance`, one a check
NOT_APPLICABLE = "not applicable"  # how a check without its parts is skipped


@dataclass(frozen=True, slots=True)
class Deviation:
    """One line of the file."""

    name: str
    reason: str
    line: int


def read(path: Path) -> list[Deviation]:
    """The deviations of a file; blank lines and ``#`` comments are skipped.

    Raises:
        UserError: unreadable file, a line without a reason, or a name twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read deviations file {path}: {error}", "name an existing text file") from error
    found: dict[str, Deviation] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *rest = line.split(maxsplit=1)
        if not rest:
            raise UserError(f"{path} line {number}: {name} has no reason", "write: NAME why it is known and accepted")
        if name in found:
            raise UserError(f"{path} line {number}: {name} stands on line {found[name].line} already", "delete one")
        found[name] = Deviation(name, rest[0].strip(), number)
    return list(found.values())


def unknown(name: str, checks: Collection[str]) -> UserError:
    """What is said of a line that names no check."""
    close = difflib.get_close_matches(name, checks, n=1)
    mend = f"did you mean {close[0]}?" if close else "run `check` to see the names"
    return UserError(f"deviations file: no check is called {name}", mend)


def words_of_mended(name: str, reason: str, now: str) -> str:
    """What is said of a check that is listed and does not fail."""
    return f"{name} is listed as a known deviation ({reason}) and is now {now}; remove its line"


def names_of(item: pytest.Item) -> set[str]:
    """What a line may call this test: its node id, its name, its function's name, or its parameters' id."""
    names = {item.nodeid, item.name, getattr(item, "originalname", None) or item.name}
    callspec = getattr(item, "callspec", None)
    return names | ({callspec.id} if callspec is not None else set())


def mark(items: list[pytest.Item], deviations: list[Deviation]) -> list[str]:
    """Mark the named tests as strict expected failures; one sentence for each line whose test this run leaves out.

    Raises:
        UserError: a line that names no check, in a run of the packaged checks: such a run holds them all.
    """
    import pytest  # here, because the `check` command reads such files where no pytest is installed

    functions = [item for item in items if isinstance(item, pytest.Function)]
    checks = {item.callspec.id for item in functions if item.originalname == PACKAGED_TEST}
    lost = []
    names = {item: names_of(item) for item in items}
    for deviation in deviations:
        named = [item for item in items if deviation.name in names[item]]
        for item in named:
            item.add_marker(pytest.mark.xfail(reason=f"{KNOWN}{deviation.reason}", strict=True))
        if not named and checks:
            raise unknown(deviation.name, checks)
        if not named:
            close = difflib.get_close_matches(deviation.name, sorted(set().union(*names.values())), n=1)
            hint = f"did you mean {close[0]}?" if close else "no test of this run is called so"
            lost.append(f"deviations line {deviation.line}: {deviation.name}: {hint}")
    return lost
