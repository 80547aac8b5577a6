"""The miniature store and benchmark, built whole."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from odb_example.data.build import build_data
from odb_example.data.embedded.benchmark import ROWS, SUBJECTS
from odb_example.data.embedded.mix import counts
from odb_example.data.images import image_size, open_image
from odb_example.data.miniature import SPLIT_SEED, VAL_SIZE, build_miniature
from odb_example.data.pixels import pixel_digest
from odb_example.data.splits import make_split
from odb_example.data.store import Store
from odb_example.data.verify import verify
from odb_example.errors import UserError
from odb_example.settings import Settings

pytestmark = pytest.mark.integration

# Changes with every change of the mix; a change without one means that this machine draws other pixels or words.
FINGERPRINT = "tmdb:26ddabd324c555dc1cd63e7f0c726797e29779bcf5131c552141d8b2a76bd045"


@pytest.fixture(scope="module")
def store(miniature_store: Path) -> Store:
    return Store.open(miniature_store)


def pictures(store: Store, indices: np.ndarray) -> set[str]:
    """Digests of what the records' images show."""
    files = {path for index in indices for path in store[int(index)].images}
    return {pixel_digest(np.asarray(open_image(store.image_bytes(path)))) for path in files}


def test_the_store_is_sound_and_has_its_sources_in_their_shares(store: Store) -> None:
    assert list(verify(store.path)) == []
    assert Counter(record.source for record in store) == Counter(counts(len(store)))


def test_the_same_seed_gives_the_same_fingerprint_on_any_machine(store: Store) -> None:
    assert store.fingerprint == FINGERPRINT


def test_training_validation_and_benchmark_show_different_pictures(store: Store) -> None:
    from datasets import load_dataset

    split = make_split(len(store), mode="lf_val_size", val_size=VAL_SIZE, split_seed=SPLIT_SEED)
    training, validation = pictures(store, split.train), pictures(store, split.evaluation)
    benchmark = set()
    for subject in SUBJECTS[::6]:
        for row in load_dataset(str(store.path / "benchmark"), subject, split="validation"):
            shown = [row[f"image_{place}"] for place in range(1, 8)]
            benchmark |= {pixel_digest(np.asarray(image.convert("RGB"))) for image in shown if image is not None}
    assert min(len(training), len(validation), len(benchmark)) > 10
    assert not training & validation
    assert not (training | validation) & benchmark


def test_material_of_a_validation_record_is_in_no_training_record(store: Store) -> None:
    split = make_split(len(store), mode="lf_val_size", val_size=VAL_SIZE, split_seed=SPLIT_SEED)

    def material(indices: np.ndarray) -> set[str]:
        named = [source.split() for index in indices for source in store[int(index)].upstream["material"]]
        digits = {f"digit {number}" for kind, *numbers in named if kind in ("digit", "digits") for number in numbers}
        return digits | {f"word {words[0]}" for kind, *words in named if kind == "word"}

    assert material(split.evaluation)
    assert not material(split.train) & material(split.evaluation)


def test_the_mix_has_every_shape_of_record(store: Store) -> None:
    images = Counter(len(record.images) for record in store)
    assert images[0] >= 1
    assert images[1] > 0.8 * len(store)
    assert images[2] >= 1
    assert any(len(record.conversations) > 2 for record in store)
    sizes = [image_size(store.image_bytes(path)) for record in store for path in record.images]
    assert min(max(size) for size in sizes) <= 16
    assert max(max(size) / min(size) for size in sizes) > 20
    assert sum(size in ((96, 128), (72, 96)) for size in sizes) > 0.2 * len(sizes)


def test_the_benchmark_reads_as_mmmu_does(store: Store) -> None:
    from datasets import load_dataset

    for split, rows in ROWS.items():
        data = load_dataset(str(store.path / "benchmark"), "Biology", split=split)
        assert len(data) == rows
    assert data.column_names == [
        "id", "question", "options", "explanation", *(f"image_{place}" for place in range(1, 8)),
        "img_type", "answer", "topic_difficulty", "question_type", "subfield",
    ]  # fmt: skip
    assert data[0]["image_1"].size > (1, 1)
    assert data[0]["image_7"] is None
    assert data[0]["id"] == "validation_Biology_1"


def test_another_seed_is_another_mix_and_needs_overwrite(store: Store, tmp_path: Path) -> None:
    shutil.copytree(store.path, tmp_path / "mix")
    fields = {"preset": "miniature", "data": str(tmp_path / "mix"), "dataset": str(tmp_path / "mix" / "benchmark")}
    same = build_data(Settings(**fields, records=300, seed=0))
    assert same.nothing_to_do
    with pytest.raises(UserError, match="another data store"):
        build_data(Settings(**fields, records=300, seed=1))
    other = build_data(Settings(**fields, records=100, seed=1, overwrite=True))
    assert other.records == 100
    assert other.fingerprint != store.fingerprint
    assert Store.open(tmp_path / "mix").metadata["plan"]["seed"] == 1


def test_a_lost_benchmark_is_built_again(store: Store, tmp_path: Path) -> None:
    shutil.copytree(store.path, tmp_path / "mix", ignore=shutil.ignore_patterns("benchmark"))
    report = build_miniature(tmp_path / "mix", records=300, seed=0, benchmark_path=tmp_path / "mix" / "benchmark")
    assert not report.nothing_to_do
    assert report.fingerprint == store.fingerprint
    assert (tmp_path / "mix" / "benchmark" / "README.md").is_file()
