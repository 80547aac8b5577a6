"""Which records a checkpoint may be evaluated on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from odb_example.data.splits import make_split
from odb_example.errors import UserError
from odb_example.evaluate.held_out import choose_held_out
from odb_example.settings import Settings

pytestmark = pytest.mark.unit

N = 200


def summary(**changes: Any) -> dict[str, Any]:
    split = {"split_mode": "lf_val_size", "train_size_arg": 0, "val_size": 0.1, "split_seed": 7} | changes
    return {"data_fingerprint": "tmdb:one", "split": split}


def choose(trained: dict[str, Any] | None, **given: Any) -> Any:
    return choose_held_out(Settings(**given), N, "tmdb:one", trained)


def test_the_split_is_the_checkpoints_own_whatever_the_training_settings_are_now() -> None:
    held_out = choose(summary(), val_size=0.5, split_seed=1, split_mode="prefix", train_size=3)
    expected = make_split(N, mode="lf_val_size", val_size=0.1, split_seed=7).evaluation
    assert np.array_equal(held_out.indices, expected)
    assert (held_out.origin, held_out.marks) == ("checkpoint", ())


def test_flags_that_say_the_same_split_are_no_other_split() -> None:
    assert choose(summary(), eval_val_size=0.1, eval_split_seed=7, eval_split_mode="lf_val_size").marks == ()


@pytest.mark.parametrize("given", [{"eval_val_size": 0.2}, {"eval_split_seed": 8}])
def test_another_split_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"the checkpoint's split is lf_val_size, size 0\.1, seed 7; asked for is"):
        choose(summary(), **given)


def test_another_split_is_evaluated_when_forced_and_marked_with_its_trained_records() -> None:
    held_out = choose(summary(), eval_split_seed=8, force_split=True)
    trained = make_split(N, mode="lf_val_size", val_size=0.1, split_seed=7).train
    overlap = len(set(trained) & set(held_out.indices.tolist()))
    assert held_out.origin == "settings"
    assert f"{overlap} of {len(held_out.indices)} records to evaluate were trained on" in held_out.marks


def test_only_records_really_trained_on_count_as_trained() -> None:
    held_out = choose(summary(train_size_arg=5), eval_split_seed=8, force_split=True)
    first_five = make_split(N, mode="lf_val_size", val_size=0.1, split_seed=7).train[:5]
    overlap = len(set(first_five) & set(held_out.indices.tolist()))
    assert any(mark.startswith(f"{overlap} of") for mark in held_out.marks) or overlap == 0


def test_a_tail_that_was_trained_on_is_refused() -> None:
    with pytest.raises(UserError, match="split is lf_val_size"):
        choose(summary(), eval_split_mode="tail", val_start=150)


def test_a_prefix_checkpoint_needs_a_tail_and_takes_one_that_was_not_trained_on() -> None:
    trained = summary(split_mode="prefix", train_size_arg=100)
    with pytest.raises(UserError, match="holds nothing out; give --split-mode tail"):
        choose(trained)
    held_out = choose(trained, eval_split_mode="tail", val_start=100)
    assert held_out.indices.tolist() == list(range(100, N))
    assert (held_out.marks, held_out.val_start) == ((), 100)
    with pytest.raises(UserError, match="10 of 110 records to evaluate were trained on"):
        choose(trained, eval_split_mode="tail", val_start=90)


def test_other_data_than_the_checkpoints_is_refused() -> None:
    with pytest.raises(UserError, match="trained on other data"):
        choose_held_out(Settings(), N, "tmdb:two", summary())


def test_a_model_that_was_not_trained_here_is_evaluated_and_marked() -> None:
    held_out = choose(None, eval_val_size=0.25, eval_split_seed=3)
    assert len(held_out.indices) == 50
    assert held_out.origin == "settings"
    assert "nothing shows that these records were not trained on" in held_out.marks[0]


def test_the_results_fields_say_which_split_it_was() -> None:
    described = choose(summary()).describe()
    assert described["eval_indices_preview"] == choose(summary()).indices[:10].tolist()
    assert (described["split_mode"], described["val_size"], described["split_seed"]) == ("lf_val_size", 0.1, 7)
