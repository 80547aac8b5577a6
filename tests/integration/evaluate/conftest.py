"""A tiny model, its processor and real samples, in this process, on the CPU in float32."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from odb_example.data.samples import FinishedSamples, SampleMaker
from odb_example.data.store import Store
from odb_example.distributed import Ranks
from odb_example.models.loading import load_model, load_processor
from odb_example.settings import Settings

ALONE = Ranks(0, 1, 0, torch.device("cpu"))


@dataclass(frozen=True)
class Tiny:
    """A loaded checkpoint."""

    folder: Path
    model: Any
    processor: Any

    def maker(self, max_length: int = 1024) -> SampleMaker:
        return SampleMaker(self.processor, max_length=max_length, backend="auto")


def load_tiny(folder: Path) -> Tiny:
    return Tiny(
        folder, load_model(str(folder), dtype=torch.float32).eval(), load_processor(str(folder), image_max_pixels=0)
    )


@pytest.fixture(scope="session")
def tiny(tiny_checkpoint: Path) -> Tiny:
    return load_tiny(tiny_checkpoint)


@pytest.fixture(scope="session")
def tiny_qwen2_5(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    from odb_example.models.miniature import build_tiny_qwen2_5_vl

    return load_tiny(build_tiny_qwen2_5_vl(tmp_path_factory.mktemp("qwen2_5") / "tiny", seed=0))


@pytest.fixture(scope="session")
def alone() -> Ranks:
    return ALONE


@pytest.fixture(scope="session")
def held_out_samples(tiny: Tiny, miniature_store: Path) -> FinishedSamples:
    """Every fourth record of the miniature mix."""
    store = Store.open(miniature_store)
    return FinishedSamples(store, range(0, len(store), 4), tiny.maker())


@pytest.fixture
def settings(tiny_checkpoint: Path, miniature_store: Path, odd_mmmu: Path, tmp_path: Path) -> Callable[..., Settings]:
    """Settings of a small evaluation that writes under this test's folder."""

    def make(**given: Any) -> Settings:
        base: Mapping[str, Any] = {
            "checkpoint": str(tiny_checkpoint), "data": str(miniature_store), "dataset": str(odd_mmmu),
            "eval_output_root": str(tmp_path / "results"), "token_budget": 1024, "num_workers": 0, "device": "cpu",
            "max_length": 1024, "eval_val_size": 0.2, "image_max_pixels": 65536,
        }  # fmt: skip
        return Settings(**{**base, **given})

    return make


@pytest.fixture
def run_quietly() -> Callable[..., tuple[Any, str]]:
    """Call an evaluation and take what it prints on stdout."""

    def run(stage: Callable[[Settings], Any], settings: Settings) -> tuple[Any, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            value = stage(settings)
        return value, out.getvalue()

    return run
