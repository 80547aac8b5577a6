"""A benchmark run whose rows, prompts, letters and files are real and whose scores are invented by seed: no model."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.scores import invented

from odb_example.data.collate import Collator
from odb_example.data.samples import SampleMaker
from odb_example.distributed import Ranks
from odb_example.evaluate.batching import Effort, Scored, score_samples
from odb_example.evaluate.benchmark_files import Evidence, write_benchmark
from odb_example.evaluate.likelihood import ReadRows, read_benchmark, result_rows
from odb_example.evaluate.mmmu import not_comparable_with, protocol_name
from odb_example.evaluate.mmmu_rows import open_benchmark
from odb_example.evaluate.prompts import PromptSamples, candidate_tokens
from odb_example.evaluate.scores import count_scores
from odb_example.models.loading import load_processor
from odb_example.settings import Settings


@dataclass(frozen=True)
class InventedRun:
    """What a run has in hand before it writes its files."""

    settings: Settings
    read: ReadRows
    samples: PromptSamples
    scored: Scored

    def write(self, folder: Path, **header: Any) -> Path:
        """Write the benchmark's four files."""
        predictions, excluded = result_rows(self.read, self.scored, self.settings)
        variant = self.settings.prompt_variant
        result = {
            "protocol": protocol_name(variant),
            "split": "validation",
            "checkpoint": "some/checkpoint",
            "dataset": self.settings.dataset,
            "subjects": [part.subject for part in self.read.rows.subjects],
            **count_scores(predictions, excluded),
            "not_comparable_with": not_comparable_with(variant),
            "basis": {"max_samples": 0},
            "environment": {},
            **header,
        }
        evidence = Evidence(
            samples=self.samples,
            positions=list(self.scored.values),
            letters=candidate_tokens(self.samples.processor.tokenizer),
            pictures=self.samples.all_pictures(),
            alone={place: value["scores"] for place, value in list(self.scored.values.items())[:2]},
            seed=0,
        )
        write_benchmark(folder, result, predictions, excluded, evidence)
        return folder


@pytest.fixture(scope="session")
def processor(tiny_checkpoint: Path) -> Any:
    return load_processor(str(tiny_checkpoint), image_max_pixels=0)


@pytest.fixture(scope="session")
def invent_run(odd_mmmu: Path, processor: Any) -> Callable[..., InventedRun]:
    def make(score: Callable[[dict[str, Any]], list[dict[str, Any]]] = invented, **given: Any) -> InventedRun:
        settings = Settings(dataset=str(odd_mmmu), **given)
        read = read_benchmark(open_benchmark(settings.dataset, split="validation", subjects=settings.subjects))
        maker = SampleMaker(processor, max_length=sys.maxsize, backend="auto")
        samples = PromptSamples(read.rows, read.places, read.questions, maker, processor, settings.prompt_variant)
        collate = Collator(processor.tokenizer.pad_token_id, "left")
        scored = score_samples(samples, collate, score, Ranks(0, 1, 0, torch.device("cpu")), Effort(token_budget=1000))
        return InventedRun(settings, read, samples, scored)

    return make


@pytest.fixture(scope="session")
def written_run(invent_run: Callable[..., InventedRun], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return invent_run().write(tmp_path_factory.mktemp("run") / "mmmu_mc_likelihood_hf")


@pytest.fixture
def run_copy(written_run: Path, tmp_path: Path) -> Path:
    """The written run, free to be damaged."""
    return shutil.copytree(written_run, tmp_path / "mmmu_mc_likelihood_hf")
