"""What an upstream version makes necessary; each entry says when it can go.

`install` puts every workaround that applies in place, once a process. It is called where ODB is imported for use
(`odb_example.train.odb_loader`), so that every process that groups samples has it: a rank that was spawned imports that
module afresh. Nothing of ODB or torch is copied or forked: names are replaced in `odb.core` alone, and everything else
is read from the live modules (a *copy* of torch's module would freeze its ``python_exit_status``, and a process that
ends on an error would then never exit).
"""

from __future__ import annotations

import inspect
import os
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

from packaging.version import Version

LAST_ODB_WITH_THESE_FAULTS = Version("0.1.2")
PARENT_CHECK_S = 1.0


@dataclass(frozen=True, slots=True)
class Workaround:
    """One upstream fault that is contained: ``install`` is called, once, where ``applies`` says so."""

    name: str
    applies: Callable[[], bool]
    why: str
    install: Callable[[], None]


def active_workarounds() -> list[Workaround]:
    """The entries that these versions of ODB and torch need."""
    return [workaround for workaround in WORKAROUNDS if workaround.applies()]


@cache
def install() -> None:
    """Put every workaround that applies in place. Later calls do nothing."""
    for workaround in active_workarounds():
        workaround.install()


def odb_has_these_faults() -> bool:
    return Version(metadata.version("online-dynamic-batching")) <= LAST_ODB_WITH_THESE_FAULTS


def torch_pops_a_dataset_holder() -> bool:
    """From 2.14 on, torch's worker loop takes a list that holds the dataset; before, the dataset itself."""
    from torch.utils.data._utils import worker

    return "dataset_holder" in inspect.signature(worker._worker_loop).parameters


# --- workers: the dataset in a list ---------------------------------------------------------------------------------


class _Live(types.ModuleType):
    """A module seen through: every attribute is read from ``module`` at the time of use, but for ``replaced``."""

    def __init__(self, module: types.ModuleType, **replaced: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(replaced, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


def worker_loop(dataset_kind: int, dataset: Any, *others: Any) -> None:
    """torch's worker loop, called as ODB calls it. At module level, so that a spawned worker finds it."""
    from torch.utils.data._utils import worker

    worker._worker_loop(dataset_kind, [dataset], *others)


def _hand_the_dataset_in_a_list() -> None:
    import odb.core
    from torch.utils.data import _utils

    odb.core._utils = _Live(_utils, worker=_Live(_utils.worker, _worker_loop=worker_loop))


# --- collate process: what happens before and after ODB's own loop --------------------------------------------------

_before_grouping: list[Callable[[], None]] = []
_iterations = 0


def next_iteration() -> None:
    """Count an iteration of an ODB loader, on every rank, before its processes start (they inherit the count)."""
    global _iterations
    _iterations += 1


def collate_loop(*arguments: Any, **named: Any) -> None:
    """ODB's collate loop between our preparations and its end. At module level, as `worker_loop`."""
    from odb.collate import collate_loop_odb

    install()  # a spawned process comes here without having imported a loader
    for prepare in _before_grouping:
        prepare()
    collate_loop_odb(*arguments, **named)
    batches, done = arguments[1], arguments[5]
    if done.is_set():  # the rank has stopped reading: what it left in the queue must not keep this process
        batches.cancel_join_thread()


def _before_the_collate_loop(prepare: Callable[[], None]) -> Callable[[], None]:
    def put_in_place() -> None:
        import odb.core

        _before_grouping.append(prepare)
        odb.core.collate_loop_odb = collate_loop

    return put_in_place


def use_own_store() -> None:
    """Give this forked process its own connection to the rendezvous store, under keys of this iteration alone.

    The inherited socket is the trainer's: two processes on one socket read each other's answers. The prefix keeps the
    addresses of an earlier iteration, which ended half-way, from being taken for this one's.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    groups = dist.distributed_c10d._world.pg_map
    default = dist.distributed_c10d._get_default_group()
    backend, store = groups[default]
    groups[default] = (backend, dist.PrefixStore(f"odb/{_iterations}", store.clone()))


def end_with_the_parent() -> None:
    """End this process once its rank is gone; ODB's loop would go on and hold its shared memory."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="odb-parent-watch", daemon=True).start()


def send_as_the_workers_do() -> None:
    from odb_example.handover import prepare_sender

    prepare_sender()


WORKAROUNDS: tuple[Workaround, ...] = (
    Workaround(
        name="odb-dataset-holder",
        applies=lambda: odb_has_these_faults() and torch_pops_a_dataset_holder(),
        why="torch's worker loop pops the dataset from a list; ODB hands it the dataset itself, and every worker dies",
        install=_hand_the_dataset_in_a_list,
    ),
    Workaround(
        name="odb-own-store",
        applies=odb_has_these_faults,
        why="ODB's forked collate process talks to the rendezvous store through the trainer's own socket",
        install=_before_the_collate_loop(use_own_store),
    ),
    Workaround(
        name="odb-orphans",
        applies=odb_has_these_faults,
        why="ODB's collate process never looks whether its rank still lives, and outlives a killed one",
        install=_before_the_collate_loop(end_with_the_parent),
    ),
    Workaround(
        name="torch-hand-over",
        applies=lambda: True,
        why="torch hands over a tensor of a few bytes in a shared-memory file, and loses a batch for which there is"
        " none; ODB has no hook in its collate process",
        install=_before_the_collate_loop(send_as_the_workers_do),
    ),
)
