"""Rows of a benchmark in MMMU's schema, from the Hub or from a local folder in the Hub's layout.

In: a data set (Hub id or folder), a split, subjects. Out: `BenchmarkRows`: every column but the images as plain values,
and the encoded bytes of a row's images, undecoded, so that one damaged picture costs one row. A local folder is read
straight from its parquet files: nothing is copied into a cache, and an edit shows at once. What this costs: a local
split lies in memory whole (from the Hub's cache it is memory-mapped).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from odb_example.errors import UserError
from odb_example.evaluate.mmmu import IMAGE_FIELDS
from odb_example.evaluate.subjects import SUBJECTS, choose_subjects

NEEDED_COLUMNS = ("question", "options", "answer")


@dataclass(frozen=True, slots=True)
class SubjectRows:
    """One subject's table; image columns hold ``{bytes, path}`` or null."""

    subject: str
    table: pa.Table
    folder: Path | None = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def text(self) -> Iterator[Mapping[str, Any]]:
        """Each row's columns; an image column holds True where there is an image and None where there is none."""
        names = self.table.column_names
        plain = self.table.select([name for name in names if name not in IMAGE_FIELDS])
        present = {name: self.table[name].is_valid().to_pylist() for name in names if name in IMAGE_FIELDS}
        for index, row in enumerate(plain.to_pylist()):
            yield row | {name: valid[index] or None for name, valid in present.items()}

    def images(self, index: int) -> list[bytes]:
        """Encoded images of a row, in field order.

        Raises:
            UserError: an image that is only a path to no file.
        """
        there = set(self.table.column_names)
        found = (self.table[name][index] for name in IMAGE_FIELDS if name in there)
        return [self._encoded(scalar.as_py()) for scalar in found if scalar.is_valid]

    def _encoded(self, value: Mapping[str, Any] | bytes) -> bytes:
        if isinstance(value, bytes):
            return value
        if value.get("bytes") is not None:
            return value["bytes"]
        path = Path(value.get("path") or "")
        path = self.folder / path if self.folder else path
        if not path.is_file():
            raise UserError(f"image {value.get('path')!r} of subject {self.subject} is neither embedded nor a file")
        return path.read_bytes()


@dataclass(frozen=True, slots=True)
class BenchmarkRows:
    """All rows of the asked subjects; a row's ``order`` is its place in them."""

    subjects: tuple[SubjectRows, ...]

    def __len__(self) -> int:
        return sum(map(len, self.subjects))

    def places(self) -> list[tuple[int, int]]:
        """(number of the subject, index in the subject) of each order."""
        return [(number, index) for number, rows in enumerate(self.subjects) for index in range(len(rows))]

    def images(self, place: tuple[int, int]) -> list[bytes]:
        """Encoded images of the row at a place of `places`."""
        number, index = place
        return self.subjects[number].images(index)


def open_benchmark(dataset: str, *, split: str, subjects: str, cache_dir: str | None = None) -> BenchmarkRows:
    """Load the subjects asked for, in that order.

    ``all`` of a local folder is every MMMU subject the folder has.

    Raises:
        UserError: unknown subject; no such folder, data set, configuration or split; no network; columns missing.
    """
    folder = Path(dataset)
    if folder.is_dir():
        configs = local_configs(folder)
        everything = subjects.strip() in ("", "all")
        names = tuple(name for name in SUBJECTS if name in configs) if everything else choose_subjects(subjects)
        if not names:
            raise UserError(f"{dataset} holds no MMMU subject", "give a folder in the layout of MMMU/MMMU")
        parts = [SubjectRows(name, _local_table(folder, configs, name, split), folder) for name in names]
    elif dataset.startswith((".", "/", "~")) or dataset.count("/") > 1 or "/" not in dataset:
        raise UserError(f"no benchmark at {dataset}", "build it with the data command, or name a Hub data set")
    else:
        parts = [SubjectRows(name, _hub_table(dataset, name, split, cache_dir)) for name in choose_subjects(subjects)]
    for part in parts:
        lacking = [name for name in NEEDED_COLUMNS if name not in part.table.column_names]
        if lacking:
            raise UserError(
                f"{dataset}, subject {part.subject}: column {lacking[0]!r} is missing",
                f"columns needed are {', '.join(NEEDED_COLUMNS)}",
            )
    return BenchmarkRows(tuple(parts))


def local_configs(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Parquet files by configuration and split: by the README's ``configs``, else by folders ``SUBJECT/SPLIT-*``."""
    found: dict[str, dict[str, list[Path]]] = {}
    for config in _front_matter(folder / "README.md").get("configs") or []:
        splits = found.setdefault(str(config.get("config_name", "default")), {})
        for entry in config.get("data_files") or []:
            patterns = entry["path"] if isinstance(entry["path"], list) else [entry["path"]]
            files = [file for pattern in patterns for file in sorted(folder.glob(str(pattern)))]
            splits.setdefault(str(entry["split"]), []).extend(files)
    if found:
        return found
    for file in sorted(folder.glob("*/*.parquet")):
        split = file.name.removesuffix(".parquet").split("-")[0]
        found.setdefault(file.parent.name, {}).setdefault(split, []).append(file)
    return found


def _front_matter(readme: Path) -> Mapping[str, Any]:
    """The YAML block that opens a data-set card, empty where there is none.

    Raises:
        UserError: a block that is no YAML mapping.
    """
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if not text.startswith("---\n"):
        return {}
    try:
        values = yaml.safe_load(text[4:].split("\n---", 1)[0])
    except yaml.YAMLError as error:
        raise UserError(f"{readme} opens with a block that is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{readme} opens with a block that is no mapping")
    return values


def _local_table(folder: Path, configs: Mapping[str, Mapping[str, Sequence[Path]]], name: str, split: str) -> pa.Table:
    if name not in configs:
        raise UserError(f"{folder} has no configuration {name!r}", f"it has {', '.join(sorted(configs)) or 'none'}")
    files = configs[name].get(split)
    if not files:
        raise UserError(
            f"{folder}, configuration {name}: split {split!r} has no files",
            f"it has {', '.join(sorted(split for split, there in configs[name].items() if there)) or 'none'}",
        )
    tables = []
    for file in files:
        try:
            tables.append(pq.read_table(file))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{file} is no readable parquet file: {error}", "fetch or build it again") from error
    return pa.concat_tables(tables)


def _hub_table(dataset: str, name: str, split: str, cache_dir: str | None) -> pa.Table:
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    try:
        rows = load_dataset(dataset, name, split=split, cache_dir=cache_dir)
    except ConnectionError as error:
        raise UserError(
            f"data set {dataset} ({name}) is not in the cache and the Hub cannot be reached",
            "connect once, or give --dataset a local folder in the Hub's layout",
        ) from error
    except DatasetNotFoundError as error:
        raise UserError(f"no data set {dataset} on the Hub, or no access to it: {error}", "check the name") from error
    except ValueError as error:  # unknown configuration or split; the message lists the known ones
        raise UserError(f"data set {dataset} ({name}), split {split!r}: {error}") from error
    return rows.with_format("arrow")[:]
