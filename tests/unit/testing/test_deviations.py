"""The deviations file a user brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from odb_example.errors import UserError
from odb_example.testing.deviations import Deviation, read

pytestmark = pytest.mark.unit


def test_a_line_is_a_name_and_a_reason_and_comments_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text("# what we know\n\ncollator_only_pads   masked until v2\ntest_x[a-b] later\n")
    assert read(file) == [Deviation("collator_only_pads", "masked until v2", 3), Deviation("test_x[a-b]", "later", 4)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("collator_only_pads\n", "line 1: collator_only_pads has no reason"),
        ("a x\nb y\na z\n", "line 3: a stands on line 1"),
    ],
)
def test_a_line_that_explains_nothing_or_repeats_another_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "known.txt"
    file.write_text(text)
    with pytest.raises(UserError, match=r"known\.txt") as caught:
        read(file)
    assert words in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read deviations file"):
        read(tmp_path / "absent.txt")
