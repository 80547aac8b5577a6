"""Reading a benchmark from a local folder in the Hub's layout."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odb_example.errors import UserError
from odb_example.evaluate.mmmu_rows import open_benchmark
from odb_example.evaluate.subjects import SUBJECTS, choose_subjects

pytestmark = pytest.mark.unit

Make = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, make_mmmu: Make, make_mmmu_row: Make) -> Path:
    rows = {name: [make_mmmu_row(name, number) for number in (1, 2, 3)] for name in ("Physics", "Art")}
    return make_mmmu(tmp_path / "mmmu", rows)


def test_a_local_folder_in_the_hubs_layout_gives_rows_in_order_with_their_image_bytes(
    folder: Path, make_mmmu_row: Make
) -> None:
    rows = open_benchmark(str(folder), split="validation", subjects="all")
    assert [part.subject for part in rows.subjects] == ["Art", "Physics"]
    assert [row["id"] for part in rows.subjects for row in part.text()] == [
        f"validation_{name}_{number}" for name in ("Art", "Physics") for number in (1, 2, 3)
    ]
    assert rows.images(rows.places()[4]) == [make_mmmu_row("Physics", 2)["image_1"]]


def test_subjects_come_in_the_order_asked_for(folder: Path) -> None:
    rows = open_benchmark(str(folder), split="validation", subjects=" Physics , Art")
    assert [part.subject for part in rows.subjects] == ["Physics", "Art"]


def test_a_folder_without_a_readme_is_read_by_its_file_names(
    tmp_path: Path, make_mmmu: Make, make_mmmu_row: Make
) -> None:
    folder = make_mmmu(tmp_path / "bare", {"Art": [make_mmmu_row("Art", 1)]}, readme=False)
    assert len(open_benchmark(str(folder), split="validation", subjects="Art")) == 1


def test_a_split_in_several_files_is_read_in_the_order_of_their_names(folder: Path) -> None:
    first = folder / "Art" / "validation-00000-of-00001.parquet"
    table = pq.read_table(first)
    pq.write_table(table.slice(1), folder / "Art" / "validation-00001-of-00002.parquet")
    pq.write_table(table.slice(0, 1), first)
    (part,) = open_benchmark(str(folder), split="validation", subjects="Art").subjects
    assert [row["id"][-1] for row in part.text()] == ["1", "2", "3"]


def test_rows_travel_to_worker_processes(folder: Path) -> None:
    rows = open_benchmark(str(folder), split="validation", subjects="Art")
    assert pickle.loads(pickle.dumps(rows)).images((0, 1)) == rows.images((0, 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"subjects": "Alchemy"}, "unknown subject 'Alchemy'"),
        ({"subjects": "Art,Art"}, "named twice"),
        ({"subjects": "Math"}, "no configuration 'Math'; it has Art, Physics"),
        ({"split": "test"}, "split 'test' has no files; it has validation"),
        ({"dataset": "./nowhere"}, "no benchmark at ./nowhere; build it with the data command"),
    ],
)
def test_what_is_missing_is_one_line_with_the_mend(folder: Path, changes: dict[str, str], words: str) -> None:
    asked = {"dataset": str(folder), "split": "validation", "subjects": "all"} | changes
    with pytest.raises(UserError, match=re.escape(words)):
        open_benchmark(asked["dataset"], split=asked["split"], subjects=asked["subjects"])


def test_a_file_that_is_no_parquet_is_named(folder: Path) -> None:
    file = folder / "Art" / "validation-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match=r"validation-00000-of-00001.parquet is no readable parquet file"):
        open_benchmark(str(folder), split="validation", subjects="Art")


def test_a_set_of_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Art").mkdir()
    pq.write_table(pa.table({"question": ["?"], "answer": ["A"]}), tmp_path / "Art" / "validation-0.parquet")
    with pytest.raises(UserError, match="column 'options' is missing"):
        open_benchmark(str(tmp_path), split="validation", subjects="all")


def test_a_broken_card_is_named(folder: Path) -> None:
    (folder / "README.md").write_text("---\nconfigs: [\n---\n")
    with pytest.raises(UserError, match="not YAML"):
        open_benchmark(str(folder), split="validation", subjects="all")


def test_all_is_every_subject_in_alphabetical_order() -> None:
    assert choose_subjects("all") == SUBJECTS == tuple(sorted(SUBJECTS))
    assert len(SUBJECTS) == 30
