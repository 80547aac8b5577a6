"""Checks as pytest tests: one a check, its failure in the check's own words, not applicable as a skip that says why."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from odb_example.conformance.check import Check, NotApplicable
from odb_example.conformance.expect import ConformanceError
from odb_example.conformance.pipeline import Pipeline, load_pipeline
from odb_example.errors import UserError
from odb_example.testing.deviations import NOT_APPLICABLE


@pytest.fixture(scope="session")
def pipeline(pytestconfig: pytest.Config) -> Pipeline:
    """The stack that ``--pipeline`` or ODB_PIPELINE names; this project's own without either.

    A pipeline that cannot be built ends the run.
    """
    try:
        return load_pipeline(pytestconfig.getoption("--pipeline"))
    except UserError as error:
        pytest.exit(str(error), returncode=2)


def parameters(checks: Iterable[Check]) -> list[object]:
    """One parameter set a check, called like the check, so that deviations and ``-k`` know it by its name."""
    return [
        pytest.param(check, id=check.name, marks=[pytest.mark.ranks] if check.processes else []) for check in checks
    ]


def hold(check: Check, pipeline: Pipeline) -> None:
    """Fail the running test where the check does not hold, skip it where it does not apply."""
    skipped = failed = ""
    try:
        check(pipeline)
    except NotApplicable as lack:
        skipped = f"{NOT_APPLICABLE}: provide {lack}"
    except ConformanceError as failure:
        failed = str(failure)
    # Outside the handlers, or pytest would print every message twice.
    if failed:
        pytest.fail(failed, pytrace=False)
    if skipped:
        pytest.skip(skipped)
