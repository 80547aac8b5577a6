"""The line under a failure that runs exactly this test again."""

from __future__ import annotations

import shlex

import pytest

from odb_example.testing.target import target_of
from odb_example.testing.tiers import tier_of

# Options of ours that decide what a test sees: attribute -> flag. Only those given on the command line are repeated.
_REPEATED = {
    "device": "--device",
    "num_processes": "--num-processes",
    "model": "--model",
    "data": "--data",
    "benchmark": "--benchmark",
    "pipeline": "--pipeline",
    "deviations": "--deviations",
    "max_examples": "--max-examples",
}
_PACKAGED = "odb_example/conformance/"


def repeat_line(item: pytest.Item) -> str:
    """``repeat: pytest ...`` for one test, with the options and seeds of this run."""
    option = item.config.option
    words = ["pytest", *_where(item)]
    in_gpu_tier = tier_of(item.path, item.config.rootpath) == "gpu"
    target = target_of(item.config)
    for name, flag in _REPEATED.items():
        value = getattr(option, name, None)
        if in_gpu_tier and name in ("device", "num_processes"):  # resolved: another machine has other defaults
            value = target.device if name == "device" else target.ranks
        if value is not None and (name, value) != ("device", "auto"):
            words += [flag, str(value)]
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        words.append(f"--hypothesis-seed={option.hypothesis_seed}")
        if option.hypothesis_profile:
            words.append(f"--hypothesis-profile={option.hypothesis_profile}")
    if getattr(option, "randomly_seed", None) is not None and item.config.pluginmanager.hasplugin("randomly"):
        words.append(f"--randomly-seed={option.randomly_seed}")
    return "repeat: " + shlex.join(words)


def _where(item: pytest.Item) -> list[str]:
    grouped = getattr(item.config.option, "loadgroup", False) and item.get_closest_marker("xdist_group") is not None
    node = item.nodeid.rpartition("@")[0] if grouped else item.nodeid
    if _PACKAGED in item.path.as_posix() and not node.startswith("odb_example"):
        return ["--pyargs", "odb_example.conformance", "-k", item.name]
    return [node]
