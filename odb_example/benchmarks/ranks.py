"""Run a function on several ranks of one machine, in fresh processes, and bring its results back.

For benchmarks and tests, where `torch.distributed.run` would be slow to start and its results hard to fetch. Processes
come from a fork server that has torch imported already, so a rank starts in milliseconds and inherits nothing else.
"""

from __future__ import annotations

import datetime
import multiprocessing
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import psutil

GRACE_S = 30.0  # for the others to notice, and to say so
PRELOADED = ["torch", "torch.distributed", "transformers.trainer_pt_utils", "odb_example.train.loaders"]


class RankError(RuntimeError):
    """A rank raised, died or did not end in time; the message holds every rank's traceback or exit status."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank's function returned, and the processes it had left running at its end (their command lines)."""

    value: Any
    left_running: list[str]


def in_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    timeout_s: float,
    start_method: Literal["forkserver", "spawn"] = "forkserver",
) -> list[Answer]:
    """``function(rank, world_size, *arguments)`` on every rank, inside a gloo process group if there are several.

    Args:
        function: at module level, importable by a fresh process.
        timeout_s: bound of the whole call; every process is ended when it is over, or `GRACE_S` after a first failure.
        start_method: spawned ranks import everything afresh, which takes seconds.

    Raises:
        RankError: any rank did not return.
    """
    context: Any = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload(PRELOADED)
    port = free_port()
    ranks: list[Any] = []
    pipes: dict[Connection, int] = {}
    for rank in range(world_size):
        mine, theirs = context.Pipe(duplex=False)
        ranks.append(
            context.Process(target=_rank, args=(theirs, function, rank, world_size, port, timeout_s, arguments))
        )
        ranks[-1].start()
        theirs.close()
        pipes[mine] = rank
    answers: dict[int, Answer | str] = {}
    deadline = time.monotonic() + timeout_s
    while pipes and (left := deadline - time.monotonic()) > 0:
        # A killed rank's own children may hold its end of the pipe open, so its death is watched for as well.
        wait([*pipes, *(ranks[rank].sentinel for rank in pipes.values())], timeout=left)
        for pipe, rank in list(pipes.items()):
            ended = not ranks[rank].is_alive()
            if pipe.poll():
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    ended = True
            if rank in answers or ended:
                del pipes[pipe]
            if ended and rank not in answers:
                ranks[rank].join(5)
                answers[rank] = f"ended with exit status {ranks[rank].exitcode} and no answer"
            if isinstance(answers.get(rank), str):
                deadline = min(deadline, time.monotonic() + GRACE_S)
    failed = len(answers) < world_size or any(isinstance(answer, str) for answer in answers.values())
    for process in ranks:
        process.join(0 if failed else 10)
        if process.is_alive():
            failed = True
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                end_children(process.pid)
            process.kill()
            process.join()
    if failed:
        raise RankError(
            "\n".join(
                f"rank {rank}: {answer if isinstance(answer := answers.get(rank, 'no answer in time'), str) else 'ok'}"
                for rank in range(world_size)
            )
        )
    return [answers[rank] for rank in range(world_size)]  # type: ignore[misc]


def _rank(
    pipe: Any,
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    port: int,
    timeout_s: float,
    arguments: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if world_size > 1:
            dist.init_process_group(
                "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size,
                timeout=datetime.timedelta(seconds=timeout_s),
            )  # fmt: skip
        answer = Answer(function(rank, world_size, *arguments), children())
        if world_size > 1:
            dist.barrier()
            dist.destroy_process_group()
        pipe.send(answer)
    except BaseException:  # noqa: BLE001 - whatever it was, the caller is told
        pipe.send(traceback.format_exc())
        end_children()  # some wait for words from this process that will never come


def end_children(pid: int | None = None) -> None:
    """Kill all that descends from the process ``pid``, by default this one."""
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def children() -> list[str]:
    """Command lines of this process's living children, the helpers of multiprocessing and torch aside."""
    helpers = ("resource_tracker", "torch_shm_manager")
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            command = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not any(helper in command for helper in helpers):
                found.append(f"{process.pid}: {command}")
    return found


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
