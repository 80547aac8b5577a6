"""Every check that starts no process and trains nothing, over our stack or the one that ``--pipeline`` names."""

from __future__ import annotations

import pytest

from odb_example.conformance.catalogue import CHECKS
from odb_example.conformance.check import Check
from odb_example.conformance.holding import hold, parameters
from odb_example.conformance.pipeline import Pipeline

# On one worker: building the stack takes longer than most of the checks.
pytestmark = [pytest.mark.unit, pytest.mark.xdist_group("pipeline")]


@pytest.mark.parametrize("check", parameters(check for check in CHECKS if check.tier == "unit"))
def test_pipeline(check: Check, pipeline: Pipeline) -> None:
    hold(check, pipeline)
