"""docs/conformance.md says what is so: the example, the report, every part and every check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from odb_example.conformance.catalogue import CHECKS
from odb_example.conformance.examples import faulty, text_only
from odb_example.conformance.pipeline import PARTS
from odb_example.conformance.run import run_checks

pytestmark = pytest.mark.unit

GUIDE = Path(__file__).parents[3] / "docs" / "conformance.md"


@pytest.fixture(scope="module")
def guide() -> str:
    return GUIDE.read_text(encoding="utf-8")


def test_the_guide_shows_the_example_as_it_is(guide: str) -> None:
    assert Path(text_only.__file__).read_text(encoding="utf-8").rstrip() in guide


def test_the_guide_shows_the_report_of_the_faulty_example(guide: str) -> None:
    for result in run_checks(faulty.build()):
        for line in result.words.splitlines() if result.bad else ():
            if not re.match(r"  (expected|came|off by)", line):
                assert re.sub(r"\d+\.\d+%", "", line) in re.sub(r"\d+\.\d+%", "", guide)


def test_the_guide_lists_every_part_and_every_check(guide: str) -> None:
    rows = {line.split(" | ")[0].strip("| `") for line in guide.splitlines() if line.startswith("| `")}
    assert set(PARTS) <= rows
    listed = re.findall(r"^\| \w+ \| `(\w+)` \| (.+?) \| ", guide, re.MULTILINE)
    assert listed == [(check.name, check.claim) for check in CHECKS]
