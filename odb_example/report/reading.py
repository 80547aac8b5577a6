"""Run folders and public records, read as runs.

In: a run folder (`OUTPUT_ROOT/{loader}-{integration}`) or a public record (`results/*.json`, which holds a run per
loader). Out: `Run`. Only files are read, and no file is needed: a part that is absent, half-written or damaged
becomes a `Gap` with its reason, so that a run still going, a killed one and one without a benchmark all give a page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from odb_example.errors import UserError
from odb_example.evaluate.folders import BENCHMARK_FOLDER, VALIDATION_FOLDER
from odb_example.files import read_json
from odb_example.report.runs import Document, Gap, Prediction, RankShare, Run, SampleLoss, Step

UNTRAINED_FOLDER = "untrained"
PARTS = ("training", "validation", "benchmark")


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs of folders and records, in the order given; names are made unique.

    Raises:
        UserError: a path is neither a run folder nor a public record.
    """
    runs: list[Run] = []
    for path in map(Path, paths):
        runs.extend(_read_record(path) if path.is_file() else [_read_folder(path)])
    return _with_unique_names(runs)


def find_runs(output_root: Path) -> list[Path]:
    """Run folders directly under ``output_root``, by name.

    Raises:
        UserError: there is none.
    """
    folders = (path for path in Path(output_root).glob("*") if path.is_dir() and path.name != UNTRAINED_FOLDER)
    found = sorted(path for path in folders if _looks_like_run(path))
    if not found:
        raise UserError(f"no run folder under {output_root}", "train one (odb-enable, standard), or name the folders")
    return found


def read_untrained(paths: Sequence[Path]) -> Run | None:
    """The model before training, where it was evaluated beside these runs (``untrained`` in the same root)."""
    for path in map(Path, paths):
        folder = path.resolve().parent / UNTRAINED_FOLDER
        if path.is_dir() and path.resolve() != folder and folder.is_dir() and _looks_like_run(folder):
            return replace(_read_folder(folder), name="before training", loader="none")
    return None


def _looks_like_run(folder: Path) -> bool:
    marks = ("train_summary_*.json", "train_metrics_*.json", "steps.jsonl", "run_settings.yaml")
    return any(any(folder.glob(mark)) for mark in marks) or any(
        (folder / name).is_dir() for name in (VALIDATION_FOLDER, BENCHMARK_FOLDER)
    )


class _Reader:
    """Reads the files of one folder and notes what it could not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents: dict[str, Document] = {}
        self.gaps: list[Gap] = []

    def document(self, name: str, part: str, file: str, absent: str = "") -> Mapping[str, Any]:
        """One object under ``name``; where ``absent`` is empty its absence is no gap."""
        value = self._load(part, file, absent)
        if isinstance(value, Mapping):
            self.documents[name] = Document(file, value)
            return value
        if value is not None:
            self.gaps.append(Gap(part, file, "holds no JSON object"))
        return {}

    def array(self, part: str, file: str, absent: str) -> list[Any]:
        value = self._load(part, file, absent)
        return value if isinstance(value, list) else []

    def lines(self, part: str, file: str, absent: str) -> list[dict[str, Any]]:
        """Rows up to the first that cannot be read: a run that is going may have half a line at its end."""
        path = self.folder / file
        if not path.is_file():
            self.gaps.append(Gap(part, file, absent))
            return []
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            row = _parse(line)
            if not isinstance(row, dict):
                self.gaps.append(
                    Gap(part, file, f"line {number} is no JSON object; the {number - 1} before it are used")
                )
                break
            rows.append(row)
        return rows

    def typed(self, part: str, file: str, absent: str, make: Any) -> tuple[Any, ...]:
        """`lines` as values of ``make``; rows that lack a field are counted and left out."""
        values, bad = [], 0
        for row in self.lines(part, file, absent):
            try:
                values.append(make(row))
            except (KeyError, TypeError, ValueError, AttributeError):
                bad += 1
        if bad:
            self.gaps.append(Gap(part, file, f"{bad} rows lack a field or hold a wrong type, and are left out"))
        return tuple(values)

    def _load(self, part: str, file: str, absent: str) -> Any:
        path = self.folder / file
        if not path.is_file():
            if absent:
                self.gaps.append(Gap(part, file, absent))
            return None
        try:
            return yaml.safe_load(path.read_text(encoding="utf-8")) if path.suffix == ".yaml" else read_json(path)
        except (UserError, yaml.YAMLError, UnicodeDecodeError) as error:
            self.gaps.append(Gap(part, file, " ".join(f"cannot be read: {error}".split())))
            return None


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _read_folder(folder: Path) -> Run:
    if not folder.is_dir():
        raise UserError(f"no run at {folder}", "name a run folder (OUTPUT_ROOT/odb-enable) or a results/*.json record")
    if not _looks_like_run(folder):
        raise UserError(f"{folder} holds no run", "name a folder with train_summary_*.json, steps.jsonl or evaluations")
    reader = _Reader(folder)
    loader = _loader_of(folder)
    steps = reader.typed("training", "steps.jsonl", "no step records were written", _step)
    unfinished = f"training is still going or was stopped{f' (last step {steps[-1].step})' if steps else ''}"
    reader.document("summary", "training", f"train_summary_{loader}.json", unfinished)
    log = reader.array("training", f"train_metrics_{loader}.json", unfinished)
    reader.document("identity", "training", "run_identity.json")
    reader.document("settings", "training", "run_settings.yaml", "the resolved settings were not kept")
    valloss, mmmu = VALIDATION_FOLDER, BENCHMARK_FOLDER
    reader.document("validation", "validation", f"{valloss}/eval_results.json", "validation loss was not evaluated")
    samples = reader.typed(
        "validation", f"{valloss}/samples.jsonl", "no loss per sample: no interval, no breakdown", _sample
    )
    reader.document("benchmark", "benchmark", f"{mmmu}/mmmu_mc_likelihood_results.json", "MMMU-MC was not scored")
    predictions = reader.typed(
        "benchmark", f"{mmmu}/predictions.jsonl", "no predictions: no interval, no flips", _prediction
    )
    excluded = reader.lines("benchmark", f"{mmmu}/excluded.jsonl", "the excluded rows were not kept")
    reader.document("audit", "benchmark", f"{mmmu}/score_audit.json", "the score was not audited")
    return Run(
        name=folder.resolve().name,
        path=folder,
        loader=loader,
        from_record=False,
        documents=reader.documents,
        log=tuple(row for row in log if isinstance(row, Mapping)),
        steps=steps,
        samples=samples,
        predictions=predictions,
        excluded=tuple(excluded),
        gaps=tuple(reader.gaps),
    )


def _loader_of(folder: Path) -> str:
    for pattern in ("train_summary_*.json", "train_metrics_*.json"):
        for path in sorted(folder.glob(pattern)):
            return path.stem.split("_", 2)[2]
    return folder.resolve().name.split("-")[0]


def _read_record(path: Path) -> list[Run]:
    """Runs of a public record: one per loader under ``training`` (``standard``, ``odb``, ours also others)."""
    record = read_json(path)
    training = record.get("training") if isinstance(record, dict) else None
    sides = {k: v for k, v in training.items() if isinstance(v, dict) and "emitted_samples" in v} if training else {}
    if not sides:
        raise UserError(
            f"{path} is no public record", "a record has training.standard or training.odb with its figures"
        )
    reason = "a public record keeps figures only"
    return [
        Run(
            name=f"{path.stem}:{loader}",
            path=path,
            loader=str(side.get("loader", loader)),
            from_record=True,
            documents={
                "summary": Document(f"{path.name}#training.{loader}", side),
                "record": Document(path.name, record),
            },
            log=(),
            steps=(),
            samples=(),
            predictions=(),
            excluded=(),
            gaps=tuple(Gap(part, path.name, reason) for part in PARTS),
        )
        for loader, side in sides.items()
    ]


def _with_unique_names(runs: list[Run]) -> list[Run]:
    """Two ``odb-enable`` from different roots are told apart by parent folder, then by number."""

    def clashes(names: list[str]) -> bool:
        return len(set(names)) < len(names)

    names = [run.name for run in runs]
    if clashes(names):
        names = [
            f"{run.path.resolve().parent.name}/{run.name}" if names.count(run.name) > 1 else run.name for run in runs
        ]
    if clashes(names):
        names = [
            f"{name} ({names[: i + 1].count(name)})" if names.count(name) > 1 else name for i, name in enumerate(names)
        ]
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _step(row: Mapping[str, Any]) -> Step:
    return Step(
        step=int(row["step"]),
        samples=int(row["samples"]),
        label_tokens=row.get("label_tokens"),
        input_tokens=row.get("input_tokens"),
        padded_tokens=row.get("padded_tokens"),
        peak_tokens=row.get("largest_batch_tokens"),
        groups=row.get("groups"),
        idle=row.get("idle"),
        seconds=row.get("seconds"),
        loss=row.get("loss"),
        grad_norm=row.get("grad_norm"),
        lr=row.get("lr"),
        wait_seconds=row.get("wait_seconds"),
        ranks=tuple(RankShare(r["samples"], r["input_tokens"], r["padded_tokens"]) for r in row.get("ranks") or ()),
    )


def _sample(row: Mapping[str, Any]) -> SampleLoss:
    return SampleLoss(
        id=str(row["id"]),
        source=str(row.get("source", "unknown")),
        length=row.get("length"),
        nll=float(row["nll_sum"]),
        label_tokens=int(row["label_tokens"]),
    )


def _prediction(row: Mapping[str, Any]) -> Prediction:
    return Prediction(
        sample_id=str(row["sample_id"]),
        subject=str(row["subject"]),
        category=str(row["category"]),
        question=str(row["question"]),
        options=tuple(str(option) for option in row["options"]),
        letters=tuple(row["valid_candidate_letters"]),
        truth=str(row["ground_truth"]),
        prediction=str(row["prediction"]),
        correct=bool(row["correct"]),
        scores={str(letter): float(score) for letter, score in row["choice_scores"].items()},
        margin=row.get("score_margin"),
        num_images=int(row.get("num_images", 0)),
        option_status=str(row.get("option_status", "")),
    )
