"""The objective: sums over batches and the step's normaliser, for every composition of a step."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_example.train.objective import LabelPositions, batch_sum, normaliser, predicts_label

pytestmark = pytest.mark.unit

VOCABULARY = 11


def _sample(length: int, seed: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (length, vocabulary) and labels (length,) of one sample; about ``share`` of the tokens are labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, VOCABULARY, (length,), generator=generator)
    labels[torch.rand(length, generator=generator) > share] = -100
    return torch.randn(length, VOCABULARY, generator=generator, dtype=torch.float64), labels


def _padded(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(labels) for _, labels in samples)
    logits = torch.stack([F.pad(one, (0, 0, 0, width - len(one)), value=3.0) for one, _ in samples])
    return logits, torch.stack([F.pad(labels, (0, width - len(labels)), value=-100) for _, labels in samples])


def _by_definition(samples: list[tuple[torch.Tensor, torch.Tensor]], objective: str) -> float:
    """The objective straight from its words, one token at a time."""
    sums, counts = [], []
    for logits, labels in samples:
        nll = [
            -float(torch.log_softmax(logits[t].float(), 0)[labels[t + 1]])
            for t in range(len(labels) - 1)
            if labels[t + 1] != -100
        ]
        sums.append(sum(nll))
        counts.append(len(nll))
    if objective == "token":
        return sum(sums) / sum(counts)
    means = [total / count for total, count in zip(sums, counts, strict=True) if count]
    return sum(means) / len(means)


samples_and_cuts = st.tuples(
    st.lists(st.tuples(st.integers(2, 9), st.integers(0, 10_000)), min_size=1, max_size=9),
    st.lists(st.integers(1, 8), max_size=4, unique=True),
)


@pytest.mark.parametrize("objective", ["token", "sample"])
@settings(deadline=None)
@given(drawn=samples_and_cuts)
def test_sums_over_normaliser_are_the_objective_however_a_step_is_cut(
    objective: str, drawn: tuple[list[tuple[int, int]], list[int]]
) -> None:
    shapes, cuts = drawn
    samples = [_sample(length, seed, share=0.6) for length, seed in shapes]
    samples.append(_sample(5, 1, share=1.0))  # at least one label in the step
    edges = [0, *sorted(cut for cut in cuts if cut < len(samples)), len(samples)]
    batches = [_padded(samples[a:b]) for a, b in itertools.pairwise(edges)]
    total = sum(normaliser(labels, objective) for _, labels in batches)
    value = sum(float(batch_sum(logits, labels, objective)) for logits, labels in batches) / total
    assert value == pytest.approx(_by_definition(samples, objective), rel=1e-5)


@pytest.mark.parametrize("objective", ["token", "sample"])
def test_logits_at_label_positions_give_the_value_and_gradient_of_full_logits(objective: str) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(3, 7, 4, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(4, VOCABULARY, bias=False, dtype=torch.float64)
    labels = torch.randint(0, VOCABULARY, (3, 7)).masked_fill(torch.rand(3, 7) > 0.4, -100)
    positions = LabelPositions()
    head.register_forward_pre_hook(positions)

    full = batch_sum(head(hidden), labels, objective)
    wanted = torch.autograd.grad(full, [hidden, head.weight])
    positions.expect(labels)
    reduced_logits = head(hidden)
    assert reduced_logits.shape == (normaliser(labels, "token"), VOCABULARY)
    reduced = batch_sum(reduced_logits, labels, objective)
    assert reduced.item() == pytest.approx(full.item(), rel=1e-12)
    for got, want in zip(torch.autograd.grad(reduced, [hidden, head.weight]), wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_the_head_is_reduced_for_the_announced_forward_only() -> None:
    head = torch.nn.Linear(4, VOCABULARY)
    positions = LabelPositions()
    head.register_forward_pre_hook(positions)
    positions.expect(torch.tensor([[-100, 1, 2]]))
    assert head(torch.zeros(1, 3, 4)).shape == (2, VOCABULARY)
    assert head(torch.zeros(1, 3, 4)).shape == (1, 3, VOCABULARY)


@pytest.mark.parametrize("objective", ["token", "sample"])
def test_a_batch_without_labels_adds_nothing_and_its_gradient_is_zero_not_nan(objective: str) -> None:
    head = torch.nn.Linear(4, VOCABULARY)
    positions = LabelPositions()
    head.register_forward_pre_hook(positions)
    labels = torch.full((2, 5), -100)
    positions.expect(labels)
    value = batch_sum(head(torch.randn(2, 5, 4)), labels, objective)
    value.backward()
    assert value.item() == 0.0
    assert normaliser(labels, objective) == 0
    assert head.weight.grad is not None
    assert torch.equal(head.weight.grad, torch.zeros_like(head.weight))


def test_the_first_column_is_never_predicted() -> None:
    labels = torch.tensor([[7, -100, 8], [7, 9, -100]])
    assert predicts_label(labels).tolist() == [[False, True, False], [True, False, False]]
    assert normaliser(labels, "token") == 2
