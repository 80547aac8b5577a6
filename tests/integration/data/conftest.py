"""Each Qwen-VL family in turn, built once a session."""

from __future__ import annotations

import pytest
from support.families import BUILDERS, Family, build_family


@pytest.fixture(scope="session", params=list(BUILDERS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """One family's tiny checkpoint with its processor."""
    return build_family(request.param, tmp_path_factory.mktemp("family"))
