"""The one exception a person is meant to read.

Raise `UserError` where a mistake is understood; `odb_example.run` prints it as one line and exits 2.
"""

from __future__ import annotations


class UserError(Exception):
    """Bad input, in one line: what is wrong, where, and (``mend``) what to do about it."""

    def __init__(self, problem: str, mend: str = "") -> None:
        self.problem = " ".join(problem.split())
        self.mend = " ".join(mend.split())
        super().__init__(f"{self.problem}; {self.mend}" if self.mend else self.problem)
