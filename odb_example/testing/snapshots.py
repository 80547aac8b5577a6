"""Baselines through syrupy: where they lie, when a test is skipped for want of one, when they are written or stale.

A test takes the fixture ``baseline`` and calls it with what it measured. The file is
``baselines/<hardware>/<model>/<test>.json``: unit and integration always run on CPU with the tiny model and share
``cpu/tiny``; the gpu tier's key follows its options, and its files carry the number of ranks. No file: the test is
skipped with the command that records one. ``--snapshot-update`` writes at the end of the run, and only if the run went
well and the worktree is clean (``--baselines-force`` overrides); a number within its tolerance is not rewritten.
"""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.data import Snapshot, SnapshotCollection, SnapshotCollections
from syrupy.extensions.base import AbstractSyrupyExtension
from syrupy.location import PyTestLocation

from odb_example.errors import UserError
from odb_example.files import writing
from odb_example.testing import baselines, header
from odb_example.testing.baselines import Measured, Provenance, Stored
from odb_example.testing.plugin import TARGET
from odb_example.testing.repeat import repeat_line
from odb_example.testing.target import CPU, TINY, Target, describe_hardware
from odb_example.testing.tiers import tier_of, whole_tiers

FOLDER = "baselines"
REFERENCE = "reference"  # published records: compared within bands, never written by a run
_RANKS = re.compile(r"-\d+-ranks?$")

Check = Callable[[Measured], None]


@dataclass
class Ledger:
    """What one run did with baselines; workers of xdist send theirs to the controller."""

    pending: dict[str, str] = field(default_factory=dict)  # file -> new text
    claimed: set[str] = field(default_factory=set)  # file stems that collected tests own, rank count cut off
    deselected: set[str] = field(default_factory=set)  # tiers of which a test was left out
    lines: list[str] = field(default_factory=list)

    def merge(self, sent: dict[str, Any]) -> None:
        """Add what a worker sent."""
        self.pending |= sent["pending"]
        self.claimed |= set(sent["claimed"])
        self.deselected |= set(sent["deselected"])

    def to_send(self) -> dict[str, Any]:
        return {
            "pending": self.pending, "claimed": sorted(self.claimed), "deselected": sorted(self.deselected)
        }  # fmt: skip


LEDGER = pytest.StashKey[Ledger]()
EXTENSION = pytest.StashKey[type["BaselineExtension"]]()


class BaselineExtension(AbstractSyrupyExtension):
    """Syrupy's seam: how a measurement is serialized, found, compared and shown. Each run binds a ledger."""

    file_extension = "json"
    ledger: ClassVar[Ledger]

    def serialize(self, data: Any, **_: Any) -> str:
        return str(data)  # the fixture brings the file's text: its provenance needs the test

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        return str(folder_of(test_location.item))

    @classmethod
    def get_file_basename(cls, *, test_location: PyTestLocation, index: Any) -> str:
        return stem_of(test_location.item)

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        return True  # the folder says which hardware and model, not which module

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        return not baselines.compare(
            Stored.model_validate_json(snapshot_data), Stored.model_validate_json(serialized_data)
        )

    def diff_lines(self, serialized_data: Any, snapshot_data: Any) -> Iterator[str]:
        stored, now = Stored.model_validate_json(snapshot_data), Stored.model_validate_json(serialized_data)
        yield from baselines.as_table(baselines.compare(stored, now)).splitlines()

    def read_snapshot_data_from_location(
        self, *, snapshot_location: str, snapshot_name: str, session_id: str
    ) -> str | None:
        path = Path(snapshot_location)
        return path.read_text(encoding="utf-8") if path.exists() else None

    @classmethod
    def write_snapshot_collection(
        cls, *, snapshot_collection: SnapshotCollection, name_order: dict[str, int] | None = None
    ) -> None:
        """Called by syrupy when the run ends; kept until it is known that the whole run went well."""
        cls.ledger.pending[snapshot_collection.location] = str(next(iter(snapshot_collection)).data)

    def discover_snapshots(self, **_: Any) -> SnapshotCollections:
        return SnapshotCollections()  # stale files are found by tier (`_stale`), not by the folder a test lies in

    def read_snapshot_collection(self, *, snapshot_location: str) -> SnapshotCollection:
        collection = SnapshotCollection(location=snapshot_location)
        collection.add(Snapshot(name=Path(snapshot_location).stem))
        return collection

    def delete_snapshots(self, *, snapshot_location: str, snapshot_names: set[str]) -> None:
        Path(snapshot_location).unlink()


def folder_of(item: pytest.Item) -> Path:
    """``baselines/<hardware>/<model>`` of a test."""
    target = item.config.stash[TARGET]
    in_gpu_tier = tier_of(item.path, item.config.rootpath) == "gpu"
    hardware, model = (target.hardware_key, target.model_key) if in_gpu_tier else (CPU, TINY)
    return item.config.rootpath / FOLDER / hardware / model


def stem_of(item: pytest.Item) -> str:
    """File name of a test's baseline: its name, and in the gpu tier the number of ranks."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", item.name).strip("-")
    if tier_of(item.path, item.config.rootpath) != "gpu":
        return name
    ranks = item.config.stash[TARGET].ranks
    return f"{name}-{ranks}-rank{'' if ranks == 1 else 's'}"


def record_command(item: pytest.Item) -> str:
    """The command that records this test's baseline."""
    words = [word for word in repeat_line(item).removeprefix("repeat: ").split(" ") if "-seed=" not in word]
    return " ".join([*words, "--snapshot-update"])


def provenance_of(item: pytest.Item, settings: dict[str, Any]) -> Provenance:
    """Where numbers measured by this test, now, come from."""
    tier = tier_of(item.path, item.config.rootpath) or "none"
    target = item.config.stash[TARGET]
    where = target if tier == "gpu" else Target(CPU, 1, None, None, None, None)
    return Provenance(
        test=item.nodeid.split("@")[0],
        tier=tier,
        recorded=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        commit=_commit(item.config.rootpath),
        hardware=describe_hardware(where),
        versions=header.versions(),
        settings=settings,
    )


@pytest.fixture
def baseline(request: pytest.FixtureRequest, snapshot: SnapshotAssertion) -> Check:
    """Compare a `Measured` with what is stored for this hardware and model.

    Skips, with the command that records one, where nothing is stored; fails with a table of what differs.
    """
    item: pytest.Item = request.node
    path = folder_of(item) / f"{stem_of(item)}.json"
    shown = path.relative_to(item.config.rootpath)
    updating = item.config.option.update_snapshots or item.config.option.update_new_snapshots_only
    if not path.exists() and not updating:
        pytest.skip(f"no baseline {shown}; record one: {record_command(item)}")
    stored = _read(path, str(shown)) if path.exists() else None
    assertion = snapshot.use_extension(item.config.stash[EXTENSION])

    def check(measured: Measured) -> None:
        now = Stored(numbers=dict(measured.numbers), provenance=provenance_of(item, dict(measured.settings)))
        if not assertion == now.to_text() and stored is not None:  # noqa: SIM201 - syrupy compares in ==
            pytest.fail(_explain(shown, stored, now, item), pytrace=False)

    return check


def _read(path: Path, shown: str) -> Stored:
    try:
        return baselines.parse(path.read_text(encoding="utf-8"), shown)
    except UserError as error:
        pytest.fail(str(error), pytrace=False)


def _explain(shown: Path, stored: Stored, now: Stored, item: pytest.Item) -> str:
    differences = baselines.compare(stored, now)
    origin = stored.provenance
    return "\n".join(
        [
            f"{shown}: {len(differences)} of {len(now.numbers)} numbers differ from the stored baseline"
            if len(differences) <= len(now.numbers)
            else f"{shown}: {len(differences)} differences from the stored baseline",
            "",
            baselines.as_table(differences),
            "",
            f"stored {origin.recorded} at commit {origin.commit}, "
            + ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
            f"if the change is meant: {record_command(item)}",
        ]
    )


# --- the run as a whole -------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("syrupy").addoption(
        "--baselines-force", action="store_true",
        help="with --snapshot-update: write baselines although the worktree has changes or a test of the run failed",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    ledger = Ledger()
    config.stash[LEDGER] = ledger
    config.stash[EXTENSION] = type("BoundExtension", (BaselineExtension,), {"ledger": ledger})
    if config.option.update_snapshots and not config.option.baselines_force and not _is_worker(config):
        changed = uncommitted(config.rootpath)
        if changed:
            raise pytest.UsageError(
                f"--snapshot-update refused: {len(changed)} uncommitted changes ({', '.join(changed[:3])}"
                f"{', ...' if len(changed) > 3 else ''}), so nobody could tell which code made the baselines; "
                "commit first, or give --baselines-force"
            )


def uncommitted(root: Path) -> list[str]:
    """Changed and untracked files of the worktree, baselines themselves left out; none outside a worktree."""
    listed = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", f":(exclude){FOLDER}")
    return [line[3:] for line in listed.splitlines()]


def _commit(root: Path) -> str:
    """The commit that is checked out, ``-dirty`` behind it where the worktree has changes; ``unknown`` without git."""
    commit = _git(root, "rev-parse", "--short", "HEAD").strip()
    return (commit + "-dirty" * bool(uncommitted(root))) if commit else "unknown"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return ""
    return done.stdout if done.returncode == 0 else ""


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        tier = tier_of(item.path, item.config.rootpath)
        if tier is not None:
            item.config.stash[LEDGER].deselected.add(tier)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note which baselines the collected tests own; two tests of one file name would overwrite each other."""
    owners: dict[Path, str] = {}
    for item in items:
        if "baseline" not in getattr(item, "fixturenames", ()):
            continue
        path = folder_of(item) / stem_of(item)
        if path in owners:
            raise pytest.UsageError(f"two tests share the baseline {path.name}: {owners[path]} and {item.nodeid}")
        owners[path] = item.nodeid
        config.stash[LEDGER].claimed.add(_RANKS.sub("", path.name))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """xdist's controller hears from a worker that has finished."""
    sent = getattr(node, "workeroutput", {}).get("odb_baselines")
    if sent is not None:
        node.config.stash[LEDGER].merge(sent)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """After syrupy's own hook: write what changed, or refuse; then look for stale files."""
    config, ledger = session.config, session.config.stash[LEDGER]
    if _is_worker(config):
        config.workeroutput["odb_baselines"] = ledger.to_send()  # type: ignore[attr-defined]
        return
    if ledger.pending:
        _settle(session, ledger)
    try:
        stale = list(_stale(config, ledger, whole_tiers(config, ledger.deselected, _ended_early(session))))
    except UserError as error:
        ledger.lines.append(str(error))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return
    if stale and config.option.update_snapshots and not session.testsfailed:
        for path in stale:
            path.unlink()
        ledger.lines += [f"deleted {path.relative_to(config.rootpath)}: no test reads it" for path in stale]
    elif stale:
        shown = [path.relative_to(config.rootpath) for path in stale]
        ledger.lines += [f"STALE {path}: no test reads it any more; delete it: git rm {path}" for path in shown]
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _ended_early(session: pytest.Session) -> bool:
    went_through = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    lenient = session.config.option.continue_on_collection_errors
    return not went_through or lenient or bool(session.shouldstop or session.shouldfail)


def _settle(session: pytest.Session, ledger: Ledger) -> None:
    root = session.config.rootpath
    refused = ""
    if not session.config.option.baselines_force:
        refused = "the run ended early" if _ended_early(session) else ""
        refused = f"{session.testsfailed} failed" if session.testsfailed else refused
    if refused:
        ledger.lines.append(
            f"NOT WRITTEN: {refused}, and a baseline from a failing run is no baseline; mend it, or give "
            "--baselines-force"
        )
    for location, text in sorted(ledger.pending.items()):
        path, now = Path(location), Stored.model_validate_json(text)
        before = baselines.parse(path.read_text(encoding="utf-8"), location) if path.exists() else None
        shown = path.relative_to(root)
        if refused:
            ledger.lines.append(f"  would change {shown}")
            continue
        with writing(path) as stream:
            stream.write(text)
        if before is None:
            ledger.lines.append(f"recorded {shown}: {len(now.numbers)} numbers")
        else:
            ledger.lines += [f"rewrote {shown}:", baselines.as_table(baselines.compare(before, now)), ""]


def _stale(config: pytest.Config, ledger: Ledger, whole: set[str]) -> Iterator[Path]:
    for path in sorted((config.rootpath / FOLDER).glob("*/*/*.json")):
        shown = str(path.relative_to(config.rootpath))
        if path.parts[-3] == REFERENCE or _RANKS.sub("", path.stem) in ledger.claimed:
            continue
        if baselines.parse(path.read_text(encoding="utf-8"), shown).provenance.tier in whole:
            yield path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[LEDGER].lines
    if lines and not _is_worker(config):
        terminalreporter.section("baselines")
        for line in lines:
            terminalreporter.write_line(line)
