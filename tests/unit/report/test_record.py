"""Public records: ours written and read again, and the reference's own read as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.run_folders import Plan, write_run, write_training

from odb_example import schema
from odb_example.errors import UserError
from odb_example.report.compare import build
from odb_example.report.page import render
from odb_example.report.reading import read_runs
from odb_example.report.record import write_record

pytestmark = pytest.mark.unit

# The reference's published shape and figures (8 GPUs, standard loss times the world size).
PUBLISHED = {
    "name": "published", "date": "2026-01-01", "package": {"online_dynamic_batching": "0.1.2"},
    "hardware": {"nodes": 1, "gpus_per_node": 8, "gpu_type": "H20"}, "model": "Qwen/Qwen3-VL-2B-Instruct",
    "data": {"recipe": "MM-Mix", "raw_records": 206526, "train_samples": 196200, "eval_samples": 10326,
             "split_mode": "lf_val_size", "split_seed": 42, "eval_indices_preview": [1, 2, 3]},
    "training": {
        "max_length": 16384, "image_max_pixels": 589824, "processor_backend": "qwen_vl", "epochs": 1.0,
        "standard": {"loader": "standard", "global_step": 24525, "emitted_samples": 196200, "fixed_batch_size": 1,
                     "effective_emitted_samples_per_second": 18.92, "runtime_seconds": 10370.0, "train_loss": 8.919,
                     "validation_loss": 1.0363, "token_weighted_validation_loss": 1.2107, "mmmu_mc_accuracy": 43.41,
                     "mmmu_mc_correct": 369, "mmmu_mc_total": 850},
        "odb": {"loader": "odb", "global_step": 1278, "emitted_samples": 196200, "loss_scaling": "exact",
                "effective_emitted_samples_per_second": 50.53, "runtime_seconds": 3883.0, "train_loss": 1.2,
                "validation_loss": 1.0302, "token_weighted_validation_loss": 1.2075, "mmmu_mc_accuracy": 48.35,
                "mmmu_mc_correct": 411, "mmmu_mc_total": 850},
    },
    "derived": {"throughput_speedup": 2.67}, "notes": [],
}  # fmt: skip


def test_the_references_record_is_read_and_its_traps_are_named(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_text(json.dumps(PUBLISHED))
    comparison = build(read_runs([path]))
    [pair] = comparison.pairs
    assert (pair.baseline.loader, pair.other.loader) == ("standard", "odb")
    assert pair.figures["throughput_ratio"].value == pytest.approx(50.53 / 18.92)
    assert pair.figures["mmmu_difference"].value == pytest.approx(4.94)
    figures = comparison.verdict.figures
    assert figures["throughput"].status == "unknown"
    assert "objective" in [check.name for check in comparison.verdict.differing]
    assert any("times the world size" in words for words in figures["training loss"].because)
    values = next(check.values for check in comparison.verdict.checks if check.name == "objective")
    assert [fact.value for fact in values.values() if fact] == ["sample", "odb-exact"]
    page = render(comparison)
    assert "data fingerprint" in page.split("<main>")[0]
    assert "a public record keeps figures only" in page


def test_our_record_has_the_references_shape_and_reads_back(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    write_record([finished / "odb-enable", finished / "standard-none"], path)
    record = json.loads(path.read_text())
    assert set(PUBLISHED) <= set(record)
    assert schema.missing(record, schema.PUBLIC_RECORD) == []
    for part in ("data", "hardware"):
        assert set(PUBLISHED[part]) <= set(record[part])  # type: ignore[call-overload]
    for loader in ("odb", "standard"):
        own = set(PUBLISHED["training"][loader]) - {"loss_scaling", "fixed_batch_size"}  # type: ignore[index]
        assert own <= set(record["training"][loader])
    folders = build(read_runs([finished / "odb-enable", finished / "standard-none"])).pairs[0].figures
    again = build(read_runs([path])).pairs[0].figures
    shared = {"throughput_ratio", "runtime_ratio", "validation_loss_difference", "mmmu_difference"}
    assert {name: again[name].value for name in shared} == pytest.approx(
        {name: folders[name].value for name in shared}, abs=0.006
    )
    derived = record["derived"]
    assert derived["throughput_speedup"] == pytest.approx(folders["throughput_ratio"].value)
    assert derived["validation_loss_delta_odb_minus_standard"] == folders["validation_loss_difference"].value
    assert derived["mmmu_mc_delta_points"] == pytest.approx(folders["mmmu_difference"].value, abs=0.006)


def test_our_record_keeps_what_a_verdict_needs(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    write_record([finished / "odb-enable", finished / "standard-none"], path)
    verdict = build(read_runs([path])).verdict
    assert not verdict.differing, verdict.sentence
    assert verdict.figures["training loss"].status != "not comparable"


def test_an_unfinished_run_or_two_of_one_loader_make_no_record(tmp_path: Path, finished: Path) -> None:
    write_training(tmp_path / "odb-enable", Plan(), finished=False)
    with pytest.raises(UserError, match="no train summary"):
        write_record([tmp_path / "odb-enable"], tmp_path / "record.json")
    again = write_run(tmp_path / "odb-again", Plan(seed=3))
    with pytest.raises(UserError, match="are both odb"):
        write_record([finished / "odb-enable", again], tmp_path / "record.json")
    assert not (tmp_path / "record.json").exists()
