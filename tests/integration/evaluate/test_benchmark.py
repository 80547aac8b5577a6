"""MMMU-MC by likelihood: batched equals alone, oddities, files, refusals, restarts."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.predictions import assert_same_scores, rows_of

from odb_example.data.collate import Collator
from odb_example.errors import UserError
from odb_example.evaluate import likelihood
from odb_example.evaluate.audit import audit_run
from odb_example.evaluate.batching import Effort, score_samples
from odb_example.evaluate.likelihood import Scorer, evaluate_benchmark, read_benchmark
from odb_example.evaluate.mmmu_rows import open_benchmark
from odb_example.evaluate.prompts import PromptSamples, candidate_tokens

pytestmark = pytest.mark.integration

Make = Callable[..., Any]
Rows = dict[str, dict[str, Any]]


def prompts_of(tiny: Any, folder: Path) -> PromptSamples:
    read = read_benchmark(open_benchmark(str(folder), split="validation", subjects="all"))
    return PromptSamples(read.rows, read.places, read.questions, tiny.maker(10**9), tiny.processor, "v1")


def scorer_of(tiny: Any) -> Scorer:
    letters = tuple(info["first_token_id"] for info in candidate_tokens(tiny.processor.tokenizer).values())
    return Scorer(tiny.model, Collator(tiny.processor.tokenizer.pad_token_id, "left"), letters)


@torch.inference_mode()
def plain_scores(tiny: Any, prompts: PromptSamples) -> dict[int, list[float]]:
    """The plain loop: each prompt through the processor and the model by itself, full logits, no padding."""
    letters = [info["first_token_id"] for info in candidate_tokens(tiny.processor.tokenizer).values()]
    found = {}
    for position in range(len(prompts)):
        try:
            sample = prompts[position]
        except UserError:
            continue
        inputs = {name: value[None] if value.ndim == 1 else value for name, value in sample.items()}
        inputs.pop("odb_n_patches")
        logits = tiny.model(**inputs).logits[0, -1].float()
        found[position] = torch.log_softmax(logits, -1)[letters].tolist()
    return found


@pytest.mark.parametrize("family", ["tiny", "tiny_qwen2_5"])
@pytest.mark.parametrize(
    "effort",
    [{"token_budget": 1}, {"token_budget": 400}, {"token_budget": 9000}, {"token_budget": 600, "num_workers": 2}],
    ids=str,
)
def test_a_batched_row_gets_what_it_gets_alone(
    request: pytest.FixtureRequest, odd_mmmu: Path, alone: Any, family: str, effort: dict[str, int]
) -> None:
    tiny = request.getfixturevalue(family)
    prompts, scorer = prompts_of(tiny, odd_mmmu), scorer_of(tiny)
    expected = plain_scores(tiny, prompts)
    scored = score_samples(prompts, scorer.collate, scorer, alone, Effort(**effort))
    assert scored.values.keys() == expected.keys()
    for position, value in scored.values.items():
        assert value["scores"] == pytest.approx(expected[position], abs=1e-5)


@pytest.mark.parametrize("family", ["tiny", "tiny_qwen2_5"])
def test_text_only_prompts_of_different_lengths_share_a_batch_without_moving_positions(
    request: pytest.FixtureRequest, make_mmmu: Make, make_mmmu_row: Make, tmp_path: Path, alone: Any, family: str
) -> None:
    tiny = request.getfixturevalue(family)
    rows = [make_mmmu_row("Art", number, image_1=None, question="why " * (1 + 90 * number)) for number in range(3)]
    prompts = prompts_of(tiny, make_mmmu(tmp_path / "mmmu", {"Art": rows}))
    scorer = scorer_of(tiny)
    scored = score_samples(prompts, scorer.collate, scorer, alone, Effort(token_budget=10**6))
    assert scored.batches == 1
    for position, expected in plain_scores(tiny, prompts).items():
        assert scored.values[position]["scores"] == pytest.approx(expected, abs=1e-5)


def test_subjects_in_another_order_and_other_budgets_give_the_same_scores(
    settings: Make, run_quietly: Make, tmp_path: Path
) -> None:
    run_quietly(evaluate_benchmark, settings(benchmark_output_dir=str(tmp_path / "a"), token_budget=200))
    mixed = settings(benchmark_output_dir=str(tmp_path / "b"), subjects="Pharmacy,Art,Math,Economics,Chemistry,Biology")
    run_quietly(evaluate_benchmark, mixed)
    assert_same_scores(rows_of(tmp_path / "a"), rows_of(tmp_path / "b"))
    assert next(iter(rows_of(tmp_path / "b"))).startswith("validation_Pharmacy")


def test_the_score_is_one_line_and_beside_it_stands_what_it_takes_to_read_it(
    settings: Make, run_quietly: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out = run_quietly(evaluate_benchmark, settings())
    folder = tmp_path / "results" / "mmmu_mc_likelihood_hf"
    assert out == (
        f"[odb-hf-benchmark] overall_accuracy={result['overall_accuracy']:.2f} "
        f"({result['overall_correct']}/{result['overall_total']}) "
        f"result={folder / 'mmmu_mc_likelihood_results.json'}\n"
    )
    beside = capsys.readouterr().err
    for words in ("95% interval", "chance is", "always A ", "not comparable with generated-answer", "not complete"):
        assert words in beside
    assert audit_run(folder).findings == []
    audit = json.loads((folder / "score_audit.json").read_text())
    assert audit["batch_invariance"]["rows"] == math.ceil(result["evaluated_samples"] / 20)
    assert audit["batch_invariance"]["largest_difference"] <= 1e-5
    assert all(info["scored_token_is_the_one_in_context"] for info in audit["letters"].values())


def test_the_image_cap_in_force_is_the_one_saved_with_the_checkpoint(
    settings: Make, run_quietly: Make, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    capped = shutil.copytree(tiny_checkpoint, tmp_path / "capped")
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (capped / name).is_file():
            text = json.loads((capped / name).read_text())
            part = text.get("image_processor", text)
            part["size"] = {"shortest_edge": 1024, "longest_edge": 1024}
            (capped / name).write_text(json.dumps(text))
    small, _ = run_quietly(
        evaluate_benchmark, settings(checkpoint=str(capped), benchmark_output_dir=str(tmp_path / "s"))
    )
    large, _ = run_quietly(evaluate_benchmark, settings(benchmark_output_dir=str(tmp_path / "l")))
    assert small["basis"]["image_size"]["longest_edge"] == 1024 < large["basis"]["image_size"]["longest_edge"]
    tokens = [rows_of(tmp_path / name)["validation_Art_4"]["prompt_tokens"] for name in "sl"]
    assert tokens[0] < tokens[1]


def test_a_cap_counts_scored_rows_and_sees_no_row_after_the_last(settings: Make, run_quietly: Make) -> None:
    result, _ = run_quietly(evaluate_benchmark, settings(max_samples=8))
    # six of Art, the first of Biology, and the one after the row answered I
    assert (result["evaluated_samples"], result["excluded_samples"], result["total_rows_seen"]) == (8, 1, 9)


def test_nothing_to_score_is_exit_1_and_the_exclusions_are_written(
    settings: Make, make_mmmu: Make, make_mmmu_row: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_mmmu_row("Art", 1, answer="12"), make_mmmu_row("Art", 2, image_1=b"x")]
    folder = make_mmmu(tmp_path / "open", {"Art": rows})
    with pytest.raises(SystemExit) as ended:
        evaluate_benchmark(settings(dataset=str(folder)))
    assert ended.value.code == 1
    written = tmp_path / "results" / "mmmu_mc_likelihood_hf"
    reasons = [json.loads(line)["reason"] for line in (written / "excluded.jsonl").read_text().splitlines()]
    assert reasons == ["non_letter_answer", "undecodable_image"]
    assert "no row could be scored" in capsys.readouterr().err


class StoppedError(Exception):
    """Stands for whatever ends a run."""


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> list[int]:
    """Let the scoring end after some batches; the list holds the rows of each batch scored."""
    real = likelihood.letter_log_probabilities
    seen: list[int] = []

    def scoring(model: Any, batch: Any, letter_ids: Any) -> Any:
        if len(seen) == batches:
            raise StoppedError
        seen.append(len(batch["input_ids"]))
        return real(model, batch, letter_ids)

    monkeypatch.setattr(likelihood, "letter_log_probabilities", scoring)
    return seen


def test_a_stopped_run_goes_on_and_its_rows_are_kept_from_another_prompt_or_data_set(
    settings: Make,
    run_quietly: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    make_mmmu: Make,
    make_mmmu_row: Make,
) -> None:
    whole, _ = run_quietly(evaluate_benchmark, settings(benchmark_output_dir=str(tmp_path / "whole")))
    total = whole["evaluated_samples"]

    def scored_after_a_stop(then: Any) -> tuple[int, int]:
        with monkeypatch.context() as patch:
            before = stop_after(patch, 3)
            with pytest.raises(StoppedError):
                run_quietly(evaluate_benchmark, settings(token_budget=300))
        with monkeypatch.context() as patch:
            after = stop_after(patch, 10**6)
            result, _ = run_quietly(evaluate_benchmark, then)
        return sum(before), sum(after) - math.ceil(result["evaluated_samples"] / 20)

    kept, rest = scored_after_a_stop(settings(token_budget=300))
    assert kept + rest == total
    assert_same_scores(rows_of(tmp_path / "whole"), rows_of(tmp_path / "results" / "mmmu_mc_likelihood_hf"))
    _, rest = scored_after_a_stop(settings(token_budget=300, prompt_variant="mmmu", overwrite=True))
    assert rest == total
    rows = [make_mmmu_row("Art", number) for number in range(5)]
    other = make_mmmu(tmp_path / "edited", {"Art": rows})
    _, rest = scored_after_a_stop(settings(token_budget=300, dataset=str(other), overwrite=True))
    assert rest == 5


def test_offline_without_a_cached_set_is_one_line_with_the_mend(tiny_checkpoint: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "odb_example.run", "benchmark", "--device", "cpu", "--checkpoint", str(tiny_checkpoint),
        "--dataset", "MMMU/MMMU", "--output-dir", str(tmp_path / "out"), "--num-processes", "1",
    ]  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    lines = [line for line in ran.stderr.splitlines() if "error" in line]
    assert ran.returncode == 2, ran.stderr
    assert len(lines) == 1
    assert "the Hub cannot be reached; connect once, or give --dataset a local folder" in lines[0]


def test_scores_that_are_not_finite_stop_the_run_and_name_the_row(
    settings: Make, run_quietly: Make, tiny: Any, tmp_path: Path
) -> None:
    from odb_example.models.loading import load_model, save_checkpoint

    model = load_model(str(tiny.folder), dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight[3] = float("inf")
    save_checkpoint(model, tiny.processor, tmp_path / "broken")
    with pytest.raises(UserError, match=r"row validation_\w+: scores are not finite numbers; use --torch-dtype"):
        run_quietly(evaluate_benchmark, settings(checkpoint=str(tmp_path / "broken")))
