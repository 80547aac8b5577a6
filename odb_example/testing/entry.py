"""Entry point in every pytest run of an environment with this package: it stays out of all runs but one kind.

``pytest --pyargs odb_example.conformance --pipeline mine:build`` works in any repository; a run that does not name the
packaged checks sees none of our options.
"""

from __future__ import annotations

import pytest

PACKAGED = "odb_example.conformance"


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    if "--pyargs" in args and any(word.split("::")[0].startswith(PACKAGED) for word in args):
        early_config.pluginmanager.import_plugin("odb_example.testing.plugin")
