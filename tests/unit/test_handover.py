"""Tensors between processes: small ones arrive in the message, whatever they are, and as they were."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_tensor

from odb_example.handover import LARGEST_BY_VALUE, _reduced, prepare_sender

pytestmark = pytest.mark.unit

SMALL = {
    "ids": torch.arange(7),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 1536),
    "mask": torch.tensor([True, False]),
    "half": torch.ones(3, dtype=torch.float16),
    "a row of many": torch.arange(1_000_000).reshape(1000, 1000)[3],
    "a column": torch.arange(12).reshape(3, 4)[:, 1],
    "expanded": torch.ones(1).expand(5),
}


def _send(queue: Any, tensors: Any) -> None:
    prepare_sender()
    queue.put(tensors)


def test_small_tensors_arrive_as_they_were_without_shared_memory_and_writable() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    sender = context.Process(target=_send, args=(queue, SMALL))
    sender.start()
    received = queue.get(timeout=60)
    sender.join(60)
    assert received.keys() == SMALL.keys()
    for name, tensor in received.items():
        assert torch.equal(tensor, SMALL[name]), name
        assert tensor.dtype == SMALL[name].dtype, name
        assert not tensor.is_shared(), name
        tensor.zero_()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(LARGEST_BY_VALUE + 1, dtype=torch.uint8),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, requires_grad=True),
    ],
    ids=["large", "unknown to numpy", "with a gradient"],
)
def test_the_rest_goes_torchs_own_way(tensor: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: "file_system")
    assert _reduced(tensor)[0] is rebuild_tensor


def test_the_largest_that_is_sent_by_value() -> None:
    assert _reduced(torch.ones(LARGEST_BY_VALUE, dtype=torch.uint8))[0] is torch.from_numpy
