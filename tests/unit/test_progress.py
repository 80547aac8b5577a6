"""Progress in a log file: plain lines, now and then."""

from __future__ import annotations

import io

import pytest

from odb_example import progress
from odb_example.progress import Progress

pytestmark = pytest.mark.unit


def test_a_short_job_says_nothing_in_a_log() -> None:
    log = io.StringIO()
    with Progress(3, "scan", "records", log) as counted:
        counted.update(3)
    assert log.getvalue() == ""


def test_a_long_job_says_how_far_it_is_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 11.0, 11.0, 11.0, 12.0, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    log = io.StringIO()
    with Progress(1000, "scan", "records", log) as counted:
        counted.update(100)
        counted.update(10)
    assert log.getvalue().splitlines()[0] == "scan: 110 of 1,000 records, 10.0/s, 89 s left"
    assert all(line.isprintable() for line in log.getvalue().splitlines())
