"""The exceptions a person is meant to read, each one line.

Raise `UserError` where a mistake is understood (exit status 2) and `CheckFailed` where what was checked does not hold
(exit status 1); `odb_example.cli` prints them.
"""

from __future__ import annotations


class UserError(Exception):
    """Bad input, in one line: what is wrong, where, and (``mend``) what to do about it."""

    def __init__(self, problem: str, mend: str = "") -> None:
        self.problem = " ".join(problem.split())
        self.mend = " ".join(mend.split())
        super().__init__(f"{self.problem}; {self.mend}" if self.mend else self.problem)


class CheckFailed(Exception):  # noqa: N818 - it reports a finding, the program itself did not fail
    """The command worked, and what it checked does not hold; one line."""
