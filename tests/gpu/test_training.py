"""ODB and the standard loader train on the same samples, and the record of both is what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odb_example.testing.baselines import Measured, exact, relative
from odb_example.testing.snapshots import Check
from odb_example.testing.target import Target

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("loader", ["odb", "standard"])
def test_every_training_sample_is_emitted_once_an_epoch(trained: Callable[[str], Any], loader: str) -> None:
    run = trained(loader)
    expected = run.summary["data"]["train_samples"] * run.settings.num_train_epochs
    assert run.summary["emitted_samples"] == expected
    assert sum(step.samples for step in run.steps) == expected


def test_odb_stays_within_its_budget_and_pads_less_than_fixed_batches(trained: Callable[[str], Any]) -> None:
    odb, standard = trained("odb"), trained("standard")
    assert max(step.largest_batch_tokens for step in odb.steps) <= max(
        odb.settings.token_budget, odb.settings.max_length
    )
    if standard.settings.fixed_batch_size > 1:
        assert odb.summary["padding_ratio"] < standard.summary["padding_ratio"]
    else:
        assert len(odb.steps) < len(standard.steps)


@pytest.mark.parametrize("loader", ["odb", "standard"])
def test_the_learning_rate_rises_once_and_ends_at_zero(trained: Callable[[str], Any], loader: str) -> None:
    run = trained(loader)
    rates = [step.lr for step in run.steps]
    peak = rates.index(max(rates))
    assert rates[:peak] == sorted(rates[:peak]), "the rate falls before its peak"
    assert rates[peak:] == sorted(rates[peak:], reverse=True), "the rate rises again after its peak"
    assert rates[-1] < 0.2 * max(rates), f"the last step still has rate {rates[-1]:g}, peak {max(rates):g}"


def test_the_record_of_both_runs_is_the_stored_one(
    baseline: Check, trained: Callable[[str], Any], target: Target
) -> None:
    numbers = {}
    for loader in ("odb", "standard"):
        run = trained(loader)
        totals = run.summary["totals"]
        grouping = "grouping: the loader's order, its seed, or the samples' lengths"
        objective = "the objective or the optimizer's settings"
        numbers |= {
            f"{loader}.steps": exact(totals["steps"], grouping),
            f"{loader}.emitted_samples": exact(totals["emitted_samples"], "samples lost or repeated"),
            f"{loader}.label_tokens": exact(totals["label_tokens"], "the label mask"),
            f"{loader}.input_tokens": exact(totals["input_tokens"], "template, visual tokens or truncation"),
            f"{loader}.padded_tokens": exact(totals["padded_tokens"], grouping),
            f"{loader}.groups": exact(totals["groups"], grouping),
            f"{loader}.first_loss": relative(run.steps[0].loss, 1e-3, "weights at the start, or the first group"),
            f"{loader}.last_loss": relative(run.steps[-1].loss, 0.1, objective),
        }
    baseline(Measured(numbers, {"ranks": target.ranks, "epochs": run.settings.num_train_epochs, "lr": run.settings.lr}))


def test_the_throughput_ratio_is_recorded_and_rests_on_emitted_samples(
    trained: Callable[[str], Any], record_property: Callable[[str, object], None]
) -> None:
    rates = {}
    for loader in ("odb", "standard"):
        summary = trained(loader).summary
        rates[loader] = summary["effective_emitted_samples_per_second"]
        runtime = summary["trainer_metrics"]["train_runtime"]
        assert rates[loader] == pytest.approx(summary["emitted_samples"] / runtime)
    ratio = rates["odb"] / rates["standard"]
    record_property("throughput_ratio", ratio)
    print(f"throughput: odb {rates['odb']:.2f}, standard {rates['standard']:.2f} samples/s, ratio {ratio:.2f}")


def test_the_throughput_ratio_on_this_hardware_is_the_stored_one(
    on_gpus: None, baseline: Check, trained: Callable[[str], Any], target: Target
) -> None:
    rate = {name: trained(name).summary["effective_emitted_samples_per_second"] for name in ("odb", "standard")}
    slower = "another clock or neighbour on the machine, or waiting for data (wait_seconds in steps.jsonl)"
    baseline(
        Measured(
            {
                "ratio": relative(rate["odb"] / rate["standard"], 0.15, slower),
                "odb.samples_per_second": relative(rate["odb"], 0.25, slower),
                "standard.samples_per_second": relative(rate["standard"], 0.25, slower),
            },
            {"ranks": target.ranks},
        )
    )
