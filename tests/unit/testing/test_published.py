"""A published run is held against another only where both are of a kind, and then within stated bands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odb_example.testing.published import Published, outside, read_published, why_not_comparable
from odb_example.testing.target import Target

pytestmark = pytest.mark.unit

THERE = Target("cuda", 8, "Qwen/Qwen3-VL-2B-Instruct", "data/mm-mix-tmdb", "MMMU/MMMU", None)


@pytest.fixture
def published(pytestconfig: pytest.Config) -> Published:
    return read_published(pytestconfig.rootpath / "baselines/reference/nvidia-h20/published-8-ranks.json")


def test_it_applies_on_its_own_hardware_model_and_full_data(published: Published) -> None:
    assert why_not_comparable(published, THERE, "NVIDIA H20", 206_526) is None


@pytest.mark.parametrize(
    ("target", "gpu", "records", "words"),
    [
        (replace(THERE, device="cpu"), "", 206_526, "8 x H20, this run has 8 ranks on CPU"),
        (THERE, "NVIDIA H200", 206_526, "this run has 8 ranks on NVIDIA H200"),
        (replace(THERE, ranks=4), "NVIDIA H20", 206_526, "this run has 4 ranks"),
        (replace(THERE, model=None), "NVIDIA H20", 206_526, "this run has the tiny model"),
        (THERE, "NVIDIA H20", 3_000, "206526 records, this run has 3000"),
        (replace(THERE, data=None), "NVIDIA H20", None, "this run has the miniature mix"),
    ],
)
def test_it_does_not_apply_elsewhere_and_says_what_would_run_it(
    published: Published, target: Target, gpu: str, records: int | None, words: str
) -> None:
    reason = why_not_comparable(published, target, gpu, records)
    assert reason is not None
    assert words in reason
    assert "there: pytest -m gpu -k published --num-processes 8" in reason


def test_its_own_figures_lie_within_its_bands(published: Published) -> None:
    assert outside(published, {name: band.published for name, band in published.bands.items()}) == []


def test_a_figure_outside_its_band_or_not_measured_is_one_line_with_the_reason(published: Published) -> None:
    found = {name: band.published for name, band in published.bands.items()}
    found["odb.mmmu"] = 44.0
    del found["throughput_ratio"]
    assert outside(published, found) == [
        "throughput_ratio: published 2.67, not measured",
        "odb.mmmu: published 48.35, now 44 (-4.35), allowed +/- 3.4 (two standard errors of 850 questions)",
    ]
