"""The pytest plugin: options, tiers, header, repeat lines, deviations. Baselines are `odb_example.testing.snapshots`.

Registered by this repository's conftest; `odb_example.testing.entry` brings it into a run of the packaged checks
(``pytest --pyargs odb_example.conformance``) in any other repository.
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from odb_example.errors import UserError
from odb_example.testing import deviations, header
from odb_example.testing.repeat import repeat_line
from odb_example.testing.target import Target, target_of
from odb_example.testing.tiers import RANKS_GROUP, TIERS, chosen_tiers, tier_of, why_gpu_tier_cannot_run

TARGET = pytest.StashKey[Target]()
REMARKS = pytest.StashKey[list[str]]()  # for the summary
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")

MARKERS = (
    "unit: pure functions, no process started, no training; seconds",
    "integration: real processor, real ODB processes, real Trainer on the tiny model; minutes",
    "gpu: ODB against the standard loader on accelerators (or rehearsed with --device cpu)",
    "ranks: starts several processes that talk to each other; under xdist these tests share one worker",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("odb-example", "odb-example: what is tested, and on what")
    group.addoption(
        "--num-processes", type=_positive, metavar="N",
        help="ranks the gpu tier trains and evaluates with (default: the GPUs, or 2 on CPU). Not xdist's "
        "--numprocesses (-n), which is how many pytest workers run tests side by side.",
    )  # fmt: skip
    group.addoption("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where the gpu tier computes")
    group.addoption("--model", help="checkpoint of the gpu tier: a Hub id or a folder (default: a seeded tiny model)")
    group.addoption("--data", help="data folder of the gpu tier (default: the embedded miniature mix)")
    group.addoption("--benchmark", help="MMMU of the gpu tier: a Hub id or a folder (default: the miniature's own)")
    group.addoption(
        "--pipeline", default=os.environ.get("ODB_PIPELINE") or None, metavar="MODULE:BUILD",
        help="check this stack instead of ours: a function that returns a Pipeline (variable ODB_PIPELINE)",
    )  # fmt: skip
    group.addoption(
        "--deviations", metavar="FILE",
        help="known deviations of the pipeline: a check and the reason a line; each is a strict expected failure",
    )  # fmt: skip
    group.addoption(
        "--max-examples",
        type=_positive,
        metavar="N",
        help="hypothesis examples a property, over the profile's; the checks over a pipeline have none",
    )


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise ValueError(word)
    return number


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With xdist, tests that start ranks stay on one worker: two such tests at once would share the cores."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadgroup"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of xdist parses the command line anew: what was decided since has to be sent."""
    node.workerinput["odb_loadgroup"] = node.config.option.dist == "loadgroup"
    node.workerinput["odb_hypothesis_seed"] = getattr(node.config.option, "hypothesis_seed", None)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    sent = getattr(config, "workerinput", {})
    if sent:
        config.option.loadgroup = sent["odb_loadgroup"]
        config.option.hypothesis_seed = sent["odb_hypothesis_seed"]
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if config.pluginmanager.hasplugin("hypothesispytest"):
        _configure_hypothesis(config)
    config.stash[TARGET] = target_of(config)
    config.stash[REMARKS] = []


def _configure_hypothesis(config: pytest.Config) -> None:
    """Load a profile, and fix the run's seed so that a repeat line can name it."""
    from hypothesis import HealthCheck, settings

    patient = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("dev", patient, max_examples=20)
    settings.register_profile("ci", patient, max_examples=50, database=None)
    settings.register_profile("thorough", patient, max_examples=1000, database=None)
    option = config.option
    option.hypothesis_profile = option.hypothesis_profile or ("ci" if os.environ.get("CI") else "dev")
    if option.hypothesis_seed is None:
        option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Apply ``--max-examples`` over the profile, which hypothesis has loaded by now."""
    if session.config.option.max_examples and session.config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile("max-examples", settings(max_examples=session.config.option.max_examples))
        settings.load_profile("max-examples")


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = getattr(config.option, "hypothesis_seed", None) or "none"
    profile = getattr(config.option, "hypothesis_profile", None) or "none"
    return header.lines(config.stash[TARGET], os.environ, seed, profile)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Plain ``pytest`` leaves the gpu tier out; ``-m TIER`` imports that tier only."""
    tier = tier_of(collection_path, config.rootpath)
    return True if tier is not None and tier not in chosen_tiers(config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        tier = tier_of(item.path, config.rootpath)
        if tier is not None:
            item.add_marker(tier)
        if tier == "gpu":
            item.add_marker("ranks")
        if item.get_closest_marker("ranks") and config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(RANKS_GROUP))
    _skip_gpu_tier(config, items)
    if getattr(config.option, "loadgroup", False):
        _name_groups(items)
    if config.option.deviations:
        try:
            known = deviations.read(Path(config.option.deviations))
            config.stash[REMARKS] += deviations.mark(items, known)
        except UserError as error:
            raise pytest.UsageError(str(error)) from None


def _name_groups(items: list[pytest.Item]) -> None:
    """Put xdist's group behind each node id: xdist 3.8 writes an attribute that pytest 9.2 no longer reads."""
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        if groups and hasattr(item, "_id"):
            item._id = type(item._id).parse(f"{item.nodeid}@{'_'.join(groups)}")


def _skip_gpu_tier(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_tier = [item for item in items if item.get_closest_marker(TIERS[2])]
    reason = why_gpu_tier_cannot_run(config.stash[TARGET]) if in_tier else None
    if reason is not None:
        for item in in_tier:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Every failure ends with the command that repeats it."""
    report = yield
    reason = _known_deviation(item)
    if reason and report.skipped and deviations.NOT_APPLICABLE in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = deviations.words_of_mended(item.name, reason, deviations.NOT_APPLICABLE)
    if report.failed:
        add = getattr(report.longrepr, "addsection", None)
        if add is not None:
            add("to repeat", repeat_line(item))
        else:  # a missing fixture and the like: pytest's own text has no sections
            report.longrepr = f"{report.longrepr}\n{repeat_line(item)}"
    return report


def _known_deviation(item: pytest.Item) -> str:
    """The reason why this test may fail, if a line of the deviations file names it."""
    reasons = [str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("xfail")]
    return next((r.removeprefix(deviations.KNOWN) for r in reasons if r.startswith(deviations.KNOWN)), "")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run of checks none of which applies is an error, as in the `check` command: it would be green by mistake."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    narrowed = session.config.option.keyword or session.config.option.markexpr
    if reporter is None or hasattr(session.config, "workerinput") or narrowed:
        return
    reports = [report for group in OUTCOMES for report in reporter.stats.get(group, [])]
    if reports and all(deviations.NOT_APPLICABLE in str(report.longrepr) for report in reports):
        session.config.stash[REMARKS].append("no check applies: the pipeline has none of the parts they need")
        session.exitstatus = 2


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[REMARKS]:
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture(scope="session")
def target(pytestconfig: pytest.Config) -> Target:
    """Device, ranks, model and data this run is aimed at."""
    return pytestconfig.stash[TARGET]
