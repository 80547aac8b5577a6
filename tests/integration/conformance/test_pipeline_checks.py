"""The checks that start processes, train or score a benchmark, over our stack or the one that ``--pipeline`` names."""

from __future__ import annotations

import pytest

from odb_example.conformance.catalogue import CHECKS
from odb_example.conformance.check import Check
from odb_example.conformance.holding import hold, parameters
from odb_example.conformance.pipeline import Pipeline

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("check", parameters(check for check in CHECKS if check.tier == "integration"))
def test_pipeline(check: Check, pipeline: Pipeline) -> None:
    hold(check, pipeline)
