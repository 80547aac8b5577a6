"""Every figure of comparison.json, computed again from the raw files by other formulas and libraries."""

from __future__ import annotations

import json
import math
import statistics as plain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from odb_example.report.compare import compare_runs

pytestmark = pytest.mark.integration
Json = dict[str, Any]


@pytest.fixture(scope="module")
def written(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Json:
    output = tmp_path_factory.mktemp("comparison")
    compare_runs([finished / "odb-enable", finished / "standard-none"], output)
    value: Json = json.loads((output / "comparison.json").read_text())
    return value


def _lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Raw:
    """One run's files, read without the code under test."""

    def __init__(self, folder: Path, loader: str) -> None:
        self.summary = json.loads((folder / f"train_summary_{loader}.json").read_text())
        self.steps = _lines(folder / "steps.jsonl")
        self.samples = _lines(folder / "eval_out_hf_valloss" / "samples.jsonl")
        self.predictions = _lines(folder / "mmmu_mc_likelihood_hf" / "predictions.jsonl")

    def total(self, name: str) -> float:
        return math.fsum(step[name] for step in self.steps)

    @property
    def runtime(self) -> float:
        return float(self.summary["trainer_metrics"]["train_runtime"])

    @property
    def losses(self) -> list[float]:
        return [row["nll_sum"] / row["label_tokens"] for row in self.samples]

    @property
    def right(self) -> list[bool]:
        return [
            row["ground_truth"] == max(row["valid_candidate_letters"], key=row["choice_scores"].__getitem__)
            for row in self.predictions
        ]

    def expected(self) -> dict[str, float]:
        """Figures by name, from rows and steps rather than from totals wherever they allow it."""
        rows, steps = len(self.predictions), len(self.steps)
        found = {
            "samples_per_second": self.total("samples") / self.runtime,
            "tokens_per_second": self.total("input_tokens") / self.runtime,
            "train_runtime_seconds": self.runtime,
            "emitted_samples": self.total("samples"),
            "steps": steps,
            "samples_per_step": plain.mean(step["samples"] for step in self.steps),
            "padding_ratio": 1 - self.total("input_tokens") / self.total("padded_tokens"),
            "peak_padded_tokens": max(step["largest_batch_tokens"] for step in self.steps),
            "train_loss": self.summary["trainer_metrics"]["train_loss"],
            "validation_loss": plain.fmean(self.losses),
            "token_weighted_validation_loss": sum(r["nll_sum"] for r in self.samples)
            / sum(r["label_tokens"] for r in self.samples),
            "mmmu_accuracy": round(100 * sum(self.right) / rows, 2),
            "mmmu_correct": sum(self.right),
            "mmmu_total": rows,
            "mmmu_chance": 100 * plain.fmean(1 / len(row["options"]) for row in self.predictions),
            "mmmu_always_a": 100 * plain.fmean(row["ground_truth"] == "A" for row in self.predictions),
        }
        if self.summary["fill"] is not None:
            found["fill"] = self.total("input_tokens") / self.total("groups") / 1024
        return found


@pytest.fixture(scope="module")
def raw(finished: Path) -> dict[str, Raw]:
    return {
        "odb-enable": Raw(finished / "odb-enable", "odb"),
        "standard-none": Raw(finished / "standard-none", "standard"),
    }


def test_every_figure_of_every_run_is_recomputed(written: Json, raw: dict[str, Raw]) -> None:
    assert [run["name"] for run in written["runs"]] == list(raw)
    for run in written["runs"]:
        said = {name: figure["value"] for name, figure in run["figures"].items()}
        assert said == pytest.approx(raw[run["name"]].expected(), rel=1e-9)


def test_intervals_of_single_runs_are_recomputed(written: Json, raw: dict[str, Raw]) -> None:
    for run in written["runs"]:
        losses, right = raw[run["name"]].losses, raw[run["name"]].right
        ends = stats.ttest_1samp(losses, 0).confidence_interval(0.95)
        assert _ends(run["figures"]["validation_loss"]) == pytest.approx((ends.low, ends.high))
        shares = stats.binomtest(sum(right), len(right)).proportion_ci(0.95, "wilson")
        assert _ends(run["figures"]["mmmu_accuracy"]) == pytest.approx((100 * shares.low, 100 * shares.high))
        assert all(figure["sources"] for figure in run["figures"].values())


def test_every_difference_is_recomputed(written: Json, raw: dict[str, Raw]) -> None:
    [pair] = written["pairs"]
    assert (pair["run"], pair["baseline"]) == ("odb-enable", "standard-none")
    odb, standard = raw["odb-enable"].expected(), raw["standard-none"].expected()
    assert {name: figure["value"] for name, figure in pair["figures"].items()} == pytest.approx(
        {
            "throughput_ratio": odb["samples_per_second"] / standard["samples_per_second"],
            "token_throughput_ratio": odb["tokens_per_second"] / standard["tokens_per_second"],
            "runtime_ratio": odb["train_runtime_seconds"] / standard["train_runtime_seconds"],
            "validation_loss_difference": odb["validation_loss"] - standard["validation_loss"],
            "token_weighted_validation_loss_difference": odb["token_weighted_validation_loss"]
            - standard["token_weighted_validation_loss"],
            "mmmu_difference": 100 * (odb["mmmu_correct"] - standard["mmmu_correct"]) / odb["mmmu_total"],
        },
        rel=1e-9,
    )


def test_intervals_of_differences_are_recomputed(written: Json, raw: dict[str, Raw]) -> None:
    figures = written["pairs"][0]["figures"]
    odb, standard = raw["odb-enable"], raw["standard-none"]
    ends = stats.ttest_rel(odb.losses, standard.losses).confidence_interval(0.95)
    assert _ends(figures["validation_loss_difference"]) == pytest.approx((ends.low, ends.high))

    tokens = np.array([row["label_tokens"] for row in odb.samples], dtype=float)
    nats = np.array([a["nll_sum"] - b["nll_sum"] for a, b in zip(odb.samples, standard.samples, strict=True)])
    drawn = np.random.default_rng(9).integers(0, len(tokens), (4000, len(tokens)))
    low, high = np.quantile(nats[drawn].sum(1) / tokens[drawn].sum(1), [0.025, 0.975])
    said = _ends(figures["token_weighted_validation_loss_difference"])
    assert said == pytest.approx((low, high), abs=0.2 * (high - low))

    only_odb = sum(a and not b for a, b in zip(odb.right, standard.right, strict=True))
    only_standard = sum(b and not a for a, b in zip(odb.right, standard.right, strict=True))
    assert figures["mmmu_difference"]["p_value"] == pytest.approx(
        stats.binomtest(only_odb, only_odb + only_standard).pvalue
    )
    low, high = _ends(figures["mmmu_difference"])
    plain_wald = 1.96 * 100 * math.sqrt(only_odb + only_standard) / len(odb.right)
    assert high - low == pytest.approx(2 * plain_wald, rel=0.25)
    assert low < figures["mmmu_difference"]["value"] < high


def test_throughput_interval_agrees_with_a_plain_bootstrap(written: Json, raw: dict[str, Raw]) -> None:
    generator = np.random.default_rng(4)
    rates = []
    for name in ("odb-enable", "standard-none"):
        steps = raw[name].steps
        samples, seconds = (np.array([step[field] for step in steps], dtype=float) for field in ("samples", "seconds"))
        drawn = generator.integers(0, len(steps), (3000, len(steps)))
        rates.append(samples[drawn].sum(1) / (seconds[drawn].sum(1) + raw[name].runtime - seconds.sum()))
    low, high = np.quantile(rates[0] / rates[1], [0.025, 0.975])
    said = _ends(written["pairs"][0]["figures"]["throughput_ratio"])
    assert said == pytest.approx((low, high), abs=0.4 * (high - low))


def test_flips_are_the_rows_answered_differently(written: Json, raw: dict[str, Raw]) -> None:
    answers = {name: {row["sample_id"]: row["prediction"] for row in run.predictions} for name, run in raw.items()}
    expected = {
        key: (answers["standard-none"][key], answers["odb-enable"][key])
        for key in answers["odb-enable"]
        if answers["odb-enable"][key] != answers["standard-none"][key]
    }
    assert expected
    flips = written["pairs"][0]["flips"]
    assert {flip["sample_id"]: (flip["baseline"], flip["run"]) for flip in flips} == expected


def test_every_source_of_a_figure_names_a_file_that_is_there(written: Json, finished: Path) -> None:
    for run in written["runs"]:
        for figure in run["figures"].values():
            for source in figure["sources"]:
                assert (finished / run["name"] / source.split(":")[0]).is_file(), source


def _ends(figure: Json) -> tuple[float, float]:
    return figure["low"], figure["high"]
