"""Known deviations of a pipeline: a file a user brings, one check a line, with the reason.

    # what we know about and live with
    collator_only_pads       labels are masked in the collator until v2
    test_resume[2-ranks]     no resume yet

Each becomes a strict expected failure: a deviation that is mended fails the run until its line is taken out.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odb_example.errors import UserError

if TYPE_CHECKING:
    import pytest


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
        name, _, reason = line.strip().partition(" ")
        if not reason.strip():
            raise UserError(f"{path} line {number}: {name} has no reason", "write: NAME why it is known and accepted")
        if name in found:
            raise UserError(f"{path} line {number}: {name} stands on line {found[name].line} already", "delete one")
        found[name] = Deviation(name, reason.strip(), number)
    return list(found.values())


def names_of(item: pytest.Item) -> set[str]:
    """What a line may call this test: its node id, its name, its function's name, or its parameters' id."""
    names = {item.nodeid, item.name, getattr(item, "originalname", None) or item.name}
    callspec = getattr(item, "callspec", None)
    return names | ({callspec.id} if callspec is not None else set())


def mark(items: list[pytest.Item], deviations: list[Deviation]) -> list[str]:
    """Mark the named tests as strict expected failures; one sentence for each line that names no test here."""
    import pytest  # here, because the `check` command reads such files where no pytest is installed

    lost = []
    names = {item: names_of(item) for item in items}
    for deviation in deviations:
        named = [item for item in items if deviation.name in names[item]]
        for item in named:
            item.add_marker(pytest.mark.xfail(reason=f"known deviation: {deviation.reason}", strict=True))
        if not named:
            close = difflib.get_close_matches(deviation.name, sorted(set().union(*names.values())), n=1)
            hint = f"did you mean {close[0]}?" if close else "no test of this run is called so"
            lost.append(f"deviations line {deviation.line}: {deviation.name}: {hint}")
    return lost
