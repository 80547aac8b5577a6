from __future__ import annotations

import pickle

import pytest
import torch

from odb_example.benchmarks.synthetic import SyntheticSamples, collate
from odb_example.errors import UserError
from odb_example.train.objective import batch_sum, normaliser
from odb_example.train.sampler import EpochOrder, RankShare
from odb_example.train.weightless import WithCopies, copy_of, identities

pytestmark = pytest.mark.unit


class Selected(SyntheticSamples):
    """Items changed after they are made."""

    def __init__(self, lengths: list[int], **changed: torch.Tensor) -> None:
        super().__init__(lengths)
        self.changed = changed

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        return {
            name: value for name, value in {**super().__getitem__(position), **self.changed}.items() if value.numel()
        }


def test_a_copy_has_the_same_inputs_no_label_and_no_identity() -> None:
    samples = WithCopies(SyntheticSamples([3, 5], first_identity=40), patches_counted=False)
    real, copy = samples[1], samples[copy_of(1)]
    assert real.keys() == copy.keys()
    assert torch.equal(real["input_ids"], copy["input_ids"])
    assert copy["labels"].tolist() == [-100] * 5
    assert (real["sample_index"].tolist(), copy["sample_index"].tolist()) == ([41], [-1])
    assert real["labels"].tolist() == [41] * 5


def test_a_weightless_row_adds_nothing_to_either_objective() -> None:
    samples = WithCopies(SyntheticSamples([4, 4]), patches_counted=False)
    alone, beside = collate([samples[1]]), collate([samples[1], samples[copy_of(0)]])
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    for objective in ("token", "sample"):
        assert normaliser(alone["labels"], objective) == normaliser(beside["labels"], objective)
        torch.testing.assert_close(
            batch_sum(logits[:1], alone["labels"], objective), batch_sum(logits, beside["labels"], objective)
        )


def test_an_item_without_tokens_is_refused_by_its_position() -> None:
    with pytest.raises(UserError, match="sample 2 has no tokens"):
        WithCopies(SyntheticSamples([3, 3, 0]), patches_counted=False)[2]


def test_images_without_a_patch_count_are_refused_under_a_patch_cap_alone() -> None:
    uncounted = Selected([3], pixel_values=torch.zeros(4, 2), odb_n_patches=torch.empty(0))
    assert "pixel_values" in WithCopies(uncounted, patches_counted=False)[0]
    with pytest.raises(UserError, match="sample 0 has images but no odb_n_patches"):
        WithCopies(uncounted, patches_counted=True)[0]


def test_identities_are_the_selection_of_a_dataset_or_its_positions() -> None:
    assert identities(SyntheticSamples([1, 1], first_identity=9)) == [9, 10]
    assert identities([None, None, None]) == [0, 1, 2]


def test_what_goes_to_a_spawned_worker_pickles() -> None:
    samples = WithCopies(SyntheticSamples([3, 5]), patches_counted=True)
    share = RankShare(EpochOrder([0, 1], seed=1), rank=0, world_size=2)
    copied, copied_share, copied_collate = pickle.loads(pickle.dumps((samples, share, collate)))
    assert torch.equal(copied[1]["input_ids"], samples[1]["input_ids"])
    assert list(copied_share) == list(share)
    assert copied_collate is collate
