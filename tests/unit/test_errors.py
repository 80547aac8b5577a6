"""A mistake is one line, whichever process found it."""

from __future__ import annotations

import pytest
from torch._utils import ExceptionWrapper

from odb_example.data.records import RecordError
from odb_example.data.samples import SampleError
from odb_example.errors import UserError, line_of
from odb_example.evaluate.prompts import UnscorableError

pytestmark = pytest.mark.unit

MISTAKES = [
    UserError("no store at odb_example.data: nothing there", "build one"),
    RecordError("records.jsonl line 3", "r-1", "id", "is no text"),
    SampleError("r-1", "image_cut", "37 tokens, and the cap of 3 would cut an image"),
    UnscorableError("no_option", "row 3"),
]


def _through_a_worker(error: Exception) -> Exception:
    """What torch raises in the main process for ``error`` in a loader process."""
    try:
        raise error from KeyError("cause")
    except type(error):
        told = ExceptionWrapper(where="in DataLoader worker process 0")
    try:
        told.reraise()
    except Exception as again:  # noqa: BLE001 - its type is the choice of torch
        return again
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("error", MISTAKES, ids=lambda error: type(error).__name__)
def test_a_mistake_found_in_a_loader_process_is_the_same_line(error: UserError) -> None:
    assert line_of(error) == str(error)
    assert line_of(_through_a_worker(error)) == str(error)


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("Caught out"), _through_a_worker(OSError("key"))])
def test_other_failures_keep_their_traceback(error: Exception) -> None:
    assert line_of(error) is None
