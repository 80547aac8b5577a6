"""The commands end to end on the miniature, and the files they leave.

Data and the first training run as people run them, in processes of their own; what follows runs in this one, which has
torch imported already.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from support.families import BUILDERS

from odb_example import run, schema
from odb_example.files import read_json, read_json_lines

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("workflow")]

# Small enough for seconds a command; what is under test is that every stage meets the next one's expectations.
SMALL = {
    "ODB_MM_MIX_PRESET": "miniature",
    "ODB_MM_MIX_RECORDS": "300",
    "ODB_MM_MIX_TRAIN_SIZE": "100",
    "ODB_MM_MIX_EPOCHS": "1",
    "ODB_MM_MIX_VAL_SIZE": "40",
    "ODB_HF_EVAL_SUBJECTS": "Art,Biology,Math",
    "OMP_NUM_THREADS": "1",
}


def _environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ODB_", "RANK", "WORLD"))}
    return kept | SMALL | changes


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "odb_example.run", *arguments],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _call(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`_run` without the process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        for name in os.environ.keys() - _environment().keys():
            patch.delenv(name)
        for name, value in _environment(**environ).items():
            patch.setenv(name, value)
        status = run.main(list(arguments))
    return subprocess.CompletedProcess(list(arguments), status, out.getvalue(), err.getvalue())


def _well(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data built and all three trainings done."""
    folder = tmp_path_factory.mktemp("project")
    for command in ("data", "odb-enable"):
        _well(_run(folder, command))
    for command in ("odb-manual", "standard"):
        _well(_call(folder, command))
    return folder


RUNS = {"odb-enable": "odb", "odb-manual": "odb", "standard-none": "standard"}


def _run_folder(project: Path, name: str) -> Path:
    return project / "outputs" / "miniature" / name


@pytest.mark.parametrize(("name", "loader"), RUNS.items())
def test_training_leaves_the_files_of_the_reference(project: Path, name: str, loader: str) -> None:
    folder = _run_folder(project, name)
    summary = read_json(folder / f"train_summary_{loader}.json")
    assert schema.missing(summary, schema.TRAIN_SUMMARY) == []
    assert summary["emitted_samples"] == 100
    assert summary["split"]["eval_indices_preview"]
    assert len(summary["split"]["train_indices_preview"]) == 10
    assert (summary["config"]["join"] is None) == (loader == "standard")
    assert isinstance(read_json(folder / f"train_metrics_{loader}.json"), list)
    steps = list(read_json_lines(folder / "steps.jsonl"))
    assert schema.missing(steps, [schema.STEP]) == []
    assert sum(step["samples"] for step in steps) == 100
    assert (folder / "run_settings.yaml").is_file()
    assert len(list((folder / "runs").glob("events.out.tfevents.*"))) == 1


def test_training_prints_what_people_grep_for(project: Path, tmp_path: Path) -> None:
    out = _well(_call(project, "standard", "--output-dir", str(tmp_path / "run"), "--max-steps", "2"))
    start, end = out.index("{"), out.index("[odb-mm-mix-summary] ")
    begun, _ = json.JSONDecoder().raw_decode(out[start:])
    assert schema.missing(begun, schema.START_LINE) == []
    last = out.splitlines()[-1]
    assert last.startswith("[odb-mm-mix-summary] ")
    assert end > start
    assert schema.missing(json.loads(last.partition("] ")[2]), schema.TRAIN_SUMMARY) == []


@pytest.fixture(scope="module")
def evaluated(project: Path) -> dict[str, str]:
    """Stdout of both evaluations of both loaders' checkpoints."""
    return {command: _well(_call(project, command)) for command in ("eval-odb", "eval-standard")}


@pytest.mark.parametrize(("command", "name"), [("eval-odb", "odb-enable"), ("eval-standard", "standard-none")])
def test_evaluation_leaves_the_files_of_the_reference(
    project: Path, evaluated: dict[str, str], command: str, name: str
) -> None:
    losses = _run_folder(project, name) / "eval_out_hf_valloss"
    results = read_json(losses / "eval_results.json")
    assert schema.missing(results, schema.EVAL_RESULTS) == []
    assert results == read_json(losses / "all_results.json")
    assert results["loss_aggregation"] == "sample_mean_of_model_loss"
    assert results["eval_samples"] == 40
    assert len(list(read_json_lines(losses / "samples.jsonl"))) == 40

    scores = _run_folder(project, name) / "mmmu_mc_likelihood_hf"
    score = read_json(scores / "mmmu_mc_likelihood_results.json")
    assert schema.missing(score, schema.BENCHMARK_RESULTS) == []
    assert score["protocol"] == "MMMU-MC-choice-likelihood-v1"
    predictions = list(read_json_lines(scores / "predictions.jsonl"))
    excluded = list(read_json_lines(scores / "excluded.jsonl"))
    assert schema.missing(predictions, [schema.PREDICTION]) == []
    assert schema.missing(excluded, [schema.EXCLUDED]) == []
    assert len(predictions) == score["overall_total"]
    assert len(predictions) + len(excluded) == score["total_rows_seen"]
    assert schema.missing(read_json(scores / "score_audit.json"), schema.SCORE_AUDIT) == []

    out = evaluated[command]
    assert "[hf-valloss] {" in out
    assert f"[odb-hf-benchmark] overall_accuracy={score['overall_accuracy']:.2f} (" in out


def test_each_evaluation_alone_takes_the_odb_checkpoint(project: Path, tmp_path: Path) -> None:
    _well(_call(project, "eval-valloss", "--output-dir", str(tmp_path / "loss"), "--max-samples", "8"))
    assert read_json(tmp_path / "loss" / "eval_results.json")["eval_samples"] == 8
    _well(_call(project, "benchmark", "--output-dir", str(tmp_path / "mc"), "--max-samples", "8"))
    assert read_json(tmp_path / "mc" / "mmmu_mc_likelihood_results.json")["evaluated_samples"] == 8


def test_inspect_prints_the_references_report(project: Path) -> None:
    report: Any = json.loads(_well(_call(project, "inspect")))
    assert schema.missing(report, schema.INSPECT) == []
    assert report["failures"] == []
    assert report["num_records"] == 300


ALONE = """
import sys
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

for folder in sys.argv[1:]:
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which digit?"}]}]
    text = processor.apply_chat_template(turns, add_generation_prompt=True)
    batch = processor(text=[text], images=[Image.new("RGB", (1000, 1000))], return_tensors="pt")
    side = processor.image_processor.patch_size
    print(int(batch["image_grid_thw"].prod()) * side**2, model(**batch).logits.isfinite().all().item())
"""


def _alone(*folders: Path) -> list[int]:
    """Pixels of a large image through each checkpoint's processor, in a process that knows nothing of this project."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *map(str, folders)], capture_output=True, text=True, timeout=120, check=True
    )
    answers = [line.split() for line in done.stdout.splitlines()]
    assert [finite for _, finite in answers] == ["True"] * len(folders)
    return [int(pixels) for pixels, _ in answers]


def test_trained_checkpoints_load_from_their_folders_alone(project: Path) -> None:
    """Their processor carries the template and the image cap they were trained with."""
    assert max(_alone(*(_run_folder(project, name) for name in RUNS))) <= 65536


def test_a_runs_own_settings_repeat_it(project: Path, tmp_path: Path) -> None:
    first = _run_folder(project, "odb-enable")
    again = tmp_path / "again"
    _well(_call(project, "odb-enable", "--settings", str(first / "run_settings.yaml"), "--output-dir", str(again)))
    names = ("train_summary_odb.json", "steps.jsonl")
    assert all((again / name).is_file() for name in names)
    losses = [[row["loss"] for row in read_json_lines(folder / "steps.jsonl")] for folder in (first, again)]
    assert losses[0] == losses[1]


BAD = [
    (("odb-enable", "--model", "no/such-folder/at/all"), {}, 2, "no/such-folder/at/all"),
    (("odb-enable", "--data", "absent"), {}, 2, "absent"),
    (("eval-valloss", "--checkpoint", "absent"), {}, 2, "absent"),
    (("benchmark", "--dataset", "absent-folder"), {}, 2, "absent-folder"),
    (("benchmark", "--subjects", "Alchemy"), {}, 2, "Alchemy"),
    (("standard", "--train-size", "100000"), {}, 2, "train_size 100000 is more than"),
    (("standard", "--trainable-keywords", "nothing_has_this_name"), {}, 2, "nothing_has_this_name"),
    (("standard", "--device", "cuda"), {"CUDA_VISIBLE_DEVICES": ""}, 2, "GPU"),
    (("standard", "--loss-scaling", "sample"), {}, 2, "--overwrite"),
    (("data", "--records", "301"), {}, 2, "--overwrite"),
    (("standard", "--output-dir", "data/mm-mix-miniature/metadata.json/run"), {}, 2, "cannot write"),
    (("inspect", "--max-length", "3"), {}, 1, ""),
]


@pytest.mark.parametrize(
    ("arguments", "environ", "status", "words"),
    BAD,
    ids=lambda value: "-".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_and_loses_nothing(
    project: Path, arguments: tuple[str, ...], environ: dict[str, str], status: int, words: str
) -> None:
    before = _listing(project)
    done = _call(project, *arguments, **environ)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("odb-example: error: ")]
    if status == 2:
        assert len(errors) == 1
        assert words in errors[0]
    assert _listing(project) == before


def test_a_record_of_which_a_loader_process_can_make_no_sample_is_one_line(project: Path, tmp_path: Path) -> None:
    done = _call(project, "standard", "--max-length", "3", "--max-steps", "1", "--output-dir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "raise --max-length" in done.stderr.splitlines()[-1]


def _listing(project: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in project.rglob("*") if path.is_file()}


def test_another_family_is_trained_and_scored_by_the_same_commands(project: Path, tmp_path: Path) -> None:
    model = BUILDERS["qwen2_5_vl"](tmp_path / "model", 0)
    folder = tmp_path / "run"
    _well(_call(project, "odb-enable", "--model", str(model), "--output-dir", str(folder), "--max-steps", "3"))
    _well(_call(project, "eval-odb", "--checkpoint", str(folder), "--max-samples", "8"))
    assert read_json(folder / "config.json")["model_type"] == "qwen2_5_vl"
    assert read_json(folder / "eval_out_hf_valloss" / "eval_results.json")["eval_samples"] == 8
    assert read_json(folder / "mmmu_mc_likelihood_hf" / "mmmu_mc_likelihood_results.json")["evaluated_samples"] == 8
    assert _alone(folder)[0] <= 65536


ONE_ROW = ("--fixed-batch-size", "1")  # workers hand batches over in files, which the limit holds for too
FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # a write beyond fails, as on a full disk
from odb_example import run
sys.exit(run.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("saving", [("--save-final-model",), ("--save-strategy", "steps", "--save-steps", "1")])
def test_a_disk_that_fills_while_saving_is_one_line_and_leaves_nothing_half_written(
    project: Path, tmp_path: Path, saving: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", FULL, "standard", "--output-dir", str(folder), "--max-steps", "2", *ONE_ROW, *saving],
        cwd=project, env=_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("odb-example: error: ")]
    assert "cannot write" in error
    assert not [path for path in folder.rglob("*") if path.suffix in (".safetensors", ".pt", ".bin")]


def test_data_built_again_is_nothing_to_do(project: Path) -> None:
    before = _listing(project / "data")
    _well(_call(project, "data"))
    assert _listing(project / "data") == before
