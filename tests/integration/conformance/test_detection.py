"""Detection power: every planted fault is caught by the check that names it."""

from __future__ import annotations

import pytest

from odb_example.conformance import ours
from odb_example.conformance.catalogue import CHECKS
from odb_example.conformance.detection import detect
from odb_example.conformance.faults import FAULTS, Fault

pytestmark = pytest.mark.integration

STARTS_PROCESSES = {check.name for check in CHECKS if check.processes}


def planted(fault: Fault) -> object:
    marks = [pytest.mark.ranks] if fault.caught_by in STARTS_PROCESSES else []
    return pytest.param(fault, id=f"{fault.part}-{fault.name}", marks=marks)


@pytest.mark.parametrize("fault", [planted(fault) for fault in FAULTS])
def test_a_planted_fault_is_caught_and_its_cause_named(fault: Fault) -> None:
    found = detect(fault, ours.build())
    assert found.caught, f"{fault.caught_by} passes although {fault.wrong}; failed instead: {found.also or 'nothing'}"
    assert found.named, f"the message lacks one of {fault.mentions}:\n{found.message}"
