"""Run a function in several ranks of a gloo process group, as forked processes that end with the call."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import socket
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from odb_example.conformance.expect import ConformanceError

Result = TypeVar("Result")
PATIENCE_S = 120


def in_ranks(world: int, work: Callable[[int, int], Result]) -> list[Result]:
    """``work(rank, world)`` of every rank, in rank order.

    Fork, so that any pipeline can be handed over as it is; nothing here touches an accelerator.

    Raises:
        ConformanceError: a rank failed or did not end in two minutes; its last words are in the message.
    """
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    port = _free_port()
    ranks = [context.Process(target=_rank, args=(answers, work, rank, world, port)) for rank in range(world)]
    for process in ranks:
        process.start()
    results: dict[int, Any] = {}
    try:
        while len(results) < world:
            rank, result, failure = answers.get(timeout=PATIENCE_S)
            if failure:
                raise ConformanceError(
                    f"rank {rank} of {world} failed", came=failure,
                    likely="what works on one rank does not on two; see the last words of its traceback",
                )  # fmt: skip
            results[rank] = pickle.loads(result)
    except queue.Empty:
        raise ConformanceError(
            f"{world - len(results)} of {world} ranks did not end in {PATIENCE_S} s", expected="an end",
            likely="the ranks take different numbers of steps, and one waits in a collective for the other",
        ) from None  # fmt: skip
    finally:
        for process in ranks:
            process.join(5 if len(results) == world else 0.2)
            if process.is_alive():
                process.kill()
                process.join()
    return [results[rank] for rank in range(world)]


def _rank(answers: Any, work: Callable[[int, int], Any], rank: int, world: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world)
        result = work(rank, world)
        dist.barrier()
        dist.destroy_process_group()
        # As bytes: torch would hand tensors over as open files of a process that is about to end.
        answers.put((rank, pickle.dumps(result), ""))
    except Exception:  # noqa: BLE001 - sent to the process that asked, which raises it
        answers.put((rank, None, traceback.format_exc(limit=-2).strip()))
    answers.close()
    answers.join_thread()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
