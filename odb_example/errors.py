"""The exceptions a person is meant to read, each one line.

Raise `UserError` where a mistake is understood (exit status 2) and `CheckFailed` where what was checked does not hold
(exit status 1); `odb_example.cli` prints them.
"""

from __future__ import annotations

import re
from pkgutil import resolve_name

_OF_OURS = re.compile(r".* (?P<kind>odb_example(?:\.\w+)+Error): (?P<line>.+)")


class UserError(Exception):
    """Bad input, in one line: what is wrong, where, and (``mend``) what to do about it."""

    def __init__(self, problem: str, mend: str = "") -> None:
        self.problem = " ".join(problem.split())
        self.mend = " ".join(mend.split())
        super().__init__(f"{self.problem}; {self.mend}" if self.mend else self.problem)


def line_of(error: BaseException) -> str | None:
    """The one line of a `UserError`, also of one that a loader process raised; None for any other exception.

    Between processes torch hands on an exception's traceback as text, in a `RuntimeError` where the exception's own
    class does not take a text alone.
    """
    words = " ".join(str(error).split())
    told = _OF_OURS.match(words) if words.startswith("Caught ") else None
    if told and issubclass(resolve_name(told["kind"]), UserError):
        return told["line"]
    return str(error) if isinstance(error, UserError) else None


class CheckFailed(Exception):  # noqa: N818 - it reports a finding, the program itself did not fail
    """The command worked, and what it checked does not hold; one line."""
