"""Every check over the pipeline under test: ``pytest --pyargs odb_example.conformance --pipeline module:build``."""

from __future__ import annotations

import pytest

from odb_example.conformance.catalogue import CHECKS
from odb_example.conformance.check import Check
from odb_example.conformance.holding import hold, parameters
from odb_example.conformance.pipeline import Pipeline


@pytest.mark.parametrize("check", parameters(CHECKS))
def test_conformance(check: Check, pipeline: Pipeline) -> None:
    hold(check, pipeline)
