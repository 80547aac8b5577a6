"""Handing tensors from one process to another: in the message, in shared memory by name, and by descriptor.

    OMP_NUM_THREADS=1 python benchmarks/handover.py

For each size, microseconds a tensor: wall time, and the processor time of the receiver and of the sender. Finds the
size up to which `odb_example.handover` sends by value.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing

from odb_example import handover

SIZES = {64: 2000, 1 << 10: 2000, 16 << 10: 2000, 64 << 10: 1000, 256 << 10: 500, 1 << 20: 200, 4 << 20: 60}


def by_value() -> None:
    handover.LARGEST_BY_VALUE = max(SIZES)
    handover.prepare_sender()


def by_name() -> None:
    torch.multiprocessing.set_sharing_strategy("file_system")


def by_descriptor() -> None:
    torch.multiprocessing.set_sharing_strategy("file_descriptor")


def send(way: Callable[[], None], size: int, count: int, tensors: Any, received: Any) -> None:
    """The sender: ``count`` new tensors of ``size`` bytes; ends once all were received."""
    way()
    for _ in range(count):
        tensors.put(torch.ones(size // 4))
    received.wait()


def measure(way: Callable[[], None], size: int, count: int) -> tuple[float, float, float]:
    """(wall time, receiver's processor time, sender's processor time), microseconds a tensor."""
    context = multiprocessing.get_context("fork")
    tensors, received = context.Queue(), context.Event()
    children, own, began = _children(), time.process_time(), time.perf_counter()
    sender = context.Process(target=send, args=(way, size, count, tensors, received))
    sender.start()
    for _ in range(count):
        tensors.get()[-1].add_(1)
    wall, receiver = time.perf_counter() - began, time.process_time() - own
    received.set()
    sender.join()
    return wall / count * 1e6, receiver / count * 1e6, (_children() - children) / count * 1e6


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print one Markdown row a size and way."""
    print("| bytes | way | wall µs | receiver µs | sender µs |\n| --- | --- | --- | --- | --- |")
    for size, count in SIZES.items():
        for way in (by_value, by_name, by_descriptor):
            wall, receiver, sender = measure(way, size, count)
            print(f"| {size:,} | {way.__name__.replace('_', ' ')} | {wall:.0f} | {receiver:.0f} | {sender:.0f} |")


if __name__ == "__main__":
    main()
