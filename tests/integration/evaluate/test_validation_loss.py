"""Validation loss: the same sums as one sample at a time, whatever the batches; files, refusals, restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from odb_example import schema
from odb_example.data.collate import Collator, split_batch
from odb_example.data.samples import FinishedSamples
from odb_example.errors import UserError
from odb_example.evaluate import validation_loss
from odb_example.evaluate.batching import Effort, score_samples
from odb_example.evaluate.losses import summarize_losses
from odb_example.evaluate.validation_loss import evaluate_validation_loss, sample_losses

pytestmark = pytest.mark.integration

Make = Callable[..., Any]


@torch.inference_mode()
def one_at_a_time(model: Any, samples: FinishedSamples) -> list[tuple[float, int]]:
    """The plain loop: one sample, full logits, the model's own mean loss."""
    found = []
    for position in range(len(samples)):
        inputs, _ = split_batch(Collator(0)([samples[position]]))
        tokens = int((inputs["labels"][:, 1:] != -100).sum())
        found.append((float(model(**inputs).loss), tokens))
    return found


@pytest.fixture(scope="module")
def plain(tiny: Any, held_out_samples: FinishedSamples) -> list[tuple[float, int]]:
    return one_at_a_time(tiny.model, held_out_samples)


def batched(tiny: Any, samples: Any, alone: Any, **effort: Any) -> list[tuple[float, int]]:
    collate = Collator(tiny.processor.tokenizer.pad_token_id)
    scored = score_samples(samples, collate, lambda batch: sample_losses(tiny.model, batch), alone, Effort(**effort))
    assert not scored.refused
    return list(scored.values.values())


def figures(losses: list[tuple[float, int]]) -> dict[str, Any]:
    rows = [{"nll_sum": nll, "label_tokens": tokens, "source": "x", "length": 1} for nll, tokens in losses]
    return summarize_losses(rows)


@pytest.mark.parametrize(
    "effort",
    [{"token_budget": 1}, {"token_budget": 300}, {"token_budget": 8192}, {"token_budget": 1024, "num_workers": 2}],
    ids=str,
)
def test_losses_are_those_of_the_plain_loop_at_any_budget(
    tiny: Any, held_out_samples: FinishedSamples, plain: list[tuple[float, int]], alone: Any, effort: dict[str, int]
) -> None:
    ours = batched(tiny, held_out_samples, alone, **effort)
    assert [tokens for _, tokens in ours] == [tokens for _, tokens in plain]
    for (nll, tokens), (mean, _) in zip(ours, plain, strict=True):
        assert nll / tokens == pytest.approx(mean, abs=2e-6)
    want = figures([(mean * tokens, tokens) for mean, tokens in plain])
    got = figures(ours)
    for name in ("eval_loss", "token_weighted_eval_loss"):
        assert got[name] == pytest.approx(want[name], abs=1e-6)


def test_losses_do_not_depend_on_the_order_of_the_samples(
    tiny: Any, held_out_samples: FinishedSamples, alone: Any
) -> None:
    order = torch.randperm(len(held_out_samples), generator=torch.Generator().manual_seed(3)).tolist()
    indices = [held_out_samples.indices[place] for place in order]
    mixed = FinishedSamples(held_out_samples.store, indices, held_out_samples.maker)
    straight = batched(tiny, held_out_samples, alone, token_budget=700)
    shuffled = batched(tiny, mixed, alone, token_budget=700)
    for place, (nll, tokens) in zip(order, shuffled, strict=True):
        assert (nll / tokens, tokens) == (pytest.approx(straight[place][0] / tokens, abs=2e-6), straight[place][1])


class OfLabels:
    """Three text samples with 1, 5 and 50 label tokens."""

    counts = (1, 5, 50)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        count = self.counts[position]
        ids = torch.randint(0, 200, (8 + count,), generator=torch.Generator().manual_seed(position))
        labels = torch.full_like(ids, -100)
        labels[8:] = ids[8:]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels,
                "mm_token_type_ids": torch.zeros_like(ids)}  # fmt: skip

    def length(self, position: int) -> int:
        return 8 + self.counts[position]


def test_every_grouping_of_short_and_long_answers_gives_the_same_sums(tiny: Any, alone: Any) -> None:
    results = [batched(tiny, OfLabels(), alone, token_budget=budget) for budget in (1, 30, 120, 10_000)]
    for result in results:
        assert [tokens for _, tokens in result] == [1, 5, 50]
        assert [nll for nll, _ in result] == pytest.approx([nll for nll, _ in results[0]], rel=1e-6)


def test_files_hold_what_people_read_and_the_marker_line_says_it(
    settings: Make, run_quietly: Make, tmp_path: Path
) -> None:
    result, out = run_quietly(evaluate_validation_loss, settings())
    folder = tmp_path / "results" / "eval_out_hf_valloss"
    written = json.loads((folder / "eval_results.json").read_text())
    assert written == json.loads((folder / "all_results.json").read_text()) == result
    assert schema.missing(written, schema.EVAL_RESULTS) == []
    (line,) = [line for line in out.splitlines() if line.startswith("[hf-valloss] ")]
    assert json.loads(line.removeprefix("[hf-valloss] ")) == written
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert summarize_losses(rows).items() <= written.items()
    assert len(rows) == 60
    assert {"id", "source", "index", "length", "nll_sum", "label_tokens"} <= rows[0].keys()
    assert not (folder / ".partial").exists()


class StoppedError(Exception):
    """Stands for whatever ends a run: memory, a signal, the power."""


def test_a_stopped_evaluation_goes_on_where_it_was_and_gives_the_same_figures(
    settings: Make, run_quietly: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, _ = run_quietly(evaluate_validation_loss, settings(eval_save_dir=str(tmp_path / "whole")))
    asked = settings(token_budget=256)
    seen: list[int] = []
    real = validation_loss.sample_losses

    def stopping(model: Any, batch: Any) -> Any:
        if len(seen) == 6:
            raise StoppedError
        seen.append(len(batch["input_ids"]))
        return real(model, batch)

    monkeypatch.setattr(validation_loss, "sample_losses", stopping)
    with pytest.raises(StoppedError):
        run_quietly(evaluate_validation_loss, asked)
    kept = sum(seen)

    def counting(model: Any, batch: Any) -> Any:
        seen.append(len(batch["input_ids"]))
        return real(model, batch)

    monkeypatch.setattr(validation_loss, "sample_losses", counting)
    seen.clear()
    resumed, _ = run_quietly(evaluate_validation_loss, asked)
    assert 0 < kept < 60
    assert sum(seen) == 60 - kept
    assert resumed["eval_loss"] == pytest.approx(whole["eval_loss"], abs=1e-6)
    assert resumed["label_tokens"] == whole["label_tokens"]


def test_rows_of_a_stopped_run_are_not_taken_over_by_another_length_cap(
    settings: Make, run_quietly: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = validation_loss.sample_losses
    seen: list[int] = []

    def stopping(model: Any, batch: Any) -> Any:
        seen.append(len(batch["input_ids"]))
        if len(seen) == 3:
            raise StoppedError
        return real(model, batch)

    monkeypatch.setattr(validation_loss, "sample_losses", stopping)
    with pytest.raises(StoppedError):
        run_quietly(evaluate_validation_loss, settings(token_budget=256))
    monkeypatch.setattr(validation_loss, "sample_losses", lambda m, b: seen.append(len(b["input_ids"])) or real(m, b))
    seen.clear()
    run_quietly(evaluate_validation_loss, settings(token_budget=256, max_length=900))
    assert sum(seen) == 60


def test_a_record_that_cannot_become_a_sample_stops_the_run_or_is_counted(
    settings: Make, run_quietly: Make, tmp_path: Path
) -> None:
    # A cap this short cuts images and answers of some records, not of all.
    with pytest.raises(UserError, match=r"held-out records cannot become a sample; the first is .*skip"):
        run_quietly(evaluate_validation_loss, settings(max_length=40))
    result, _ = run_quietly(evaluate_validation_loss, settings(max_length=40, on_bad_record="skip"))
    refused = (tmp_path / "results" / "eval_out_hf_valloss" / "refused.jsonl").read_text().splitlines()
    assert len(refused) == result["unscored_samples"] == 60 - result["eval_samples"]
    assert 0 < result["eval_samples"] < 60
    assert all(json.loads(line)["reason"] for line in refused)


def test_results_of_two_checkpoints_do_not_share_a_folder(
    settings: Make, run_quietly: Make, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    import shutil

    run_quietly(evaluate_validation_loss, settings(max_samples=4))
    other = shutil.copytree(tiny_checkpoint, tmp_path / "other")
    with pytest.raises(UserError, match="holds the results of checkpoint"):
        run_quietly(evaluate_validation_loss, settings(max_samples=4, checkpoint=str(other)))
