"""python -m odb_example.run COMMAND: one short function a command, no work of its own.

Commands call the stages of `data`, `train`, `evaluate` and `report`; only this module knows them all. Heavy imports
stand inside the functions, so that ``--help`` answers without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from odb_example import cli
from odb_example.errors import UserError
from odb_example.settings import BENCHMARK, COMPARE, DATA, INSPECT, TRAIN, VALLOSS, Settings

TRAIN_STAGE = "odb_example.train.trainer:train"
VALLOSS_STAGE = "odb_example.evaluate.validation_loss:evaluate_validation_loss"
BENCHMARK_STAGE = "odb_example.evaluate.likelihood:evaluate_benchmark"


def install() -> None:
    """Bring the running interpreter up to this project's requirements."""
    import subprocess

    from odb_example import requirements

    lacking = requirements.missing()
    if lacking:
        subprocess.run([sys.executable, "-m", "pip", "install", *lacking], check=True)
    print("everything that is needed is installed")


def data(settings: Settings) -> None:
    from odb_example.data.build import build_data

    print(build_data(settings).summary())


def inspect(settings: Settings) -> int:
    from odb_example.data.inspect import inspect_data

    report = inspect_data(settings)
    return 1 if report.failures else 0


def train(settings: Settings) -> int:
    from odb_example.preflight import before_training

    before_training(settings)
    return _stage(TRAIN_STAGE, settings)


def eval_valloss(settings: Settings) -> int:
    from odb_example.preflight import before_validation_loss

    before_validation_loss(settings)
    return _stage(VALLOSS_STAGE, settings)


def benchmark(settings: Settings) -> int:
    from odb_example.preflight import before_scoring

    before_scoring(settings)
    return _stage(BENCHMARK_STAGE, settings)


def eval_standard(settings: Settings) -> int:
    return evaluate(_with(settings, checkpoint=settings.checkpoint or str(Path(settings.output_root, "standard-none"))))


def evaluate(settings: Settings) -> int:
    """Both evaluations of one checkpoint; the second runs only if the first went well."""
    return eval_valloss(settings) or benchmark(settings)


def all_odb(settings: Settings) -> int:
    """Data, training with ODB, both evaluations of the trained and of the untrained model, figures side by side."""
    from odb_example import workflow

    data(settings)
    folder = workflow.run_folder(settings)
    status = workflow.train_and_evaluate(settings, train, evaluate)
    status = status or workflow.evaluate_untrained(settings, folder, evaluate)
    untrained = workflow.headline("before training", workflow.untrained_folder(settings))
    workflow.show([workflow.headline(folder.name, folder), untrained])
    return status


def compare_all(settings: Settings) -> int:
    """What all-odb is for one loader, for ODB and the standard loader: data, inspect, both trainings, compare."""
    from odb_example import workflow

    if settings.output_dir:
        raise UserError("all writes two run folders; --output-dir names one", "give --output-root instead")
    data(settings)
    status = inspect(settings)
    runs = [_with(settings, loader=loader, odb_integration="enable") for loader in ("odb", "standard")]
    for run in runs:
        status = status or workflow.train_and_evaluate(run, train, evaluate)
    folders = [workflow.run_folder(run) for run in runs]
    status = status or workflow.evaluate_untrained(settings, folders[0], evaluate)
    if status == 0:
        _compare(folders, Path(settings.output_root, "comparison"))
    return status


def compare(settings: Settings, runs: tuple[Path, ...], record: Path | None) -> None:
    from odb_example.report.reading import find_runs

    folders = list(runs) or find_runs(Path(settings.output_root))
    _compare(folders, Path(settings.output_root, "comparison"))
    if record:
        from odb_example.report.record import write_record

        write_record(folders, record)


def _compare(folders: list[Path], output: Path) -> None:
    from odb_example.report.compare import compare_runs

    compare_runs(folders, output)


def report(run: Path, output: Path | None) -> None:
    from odb_example.report.compare import report_run

    report_run(run, output or run / "report.html")


def audit(runs: tuple[Path, ...]) -> int:
    from odb_example.evaluate.audit import audit_runs

    return audit_runs(runs)


def parity(settings: Settings) -> int:
    from odb_example.train.parity import parity

    return parity(settings)


def check(pipeline: str | None, deviations: Path | None) -> int:
    from odb_example.conformance.run import check_pipeline

    return check_pipeline(pipeline, deviations)


def bench_loaders(settings: Settings, count: int, seconds: float, held_out: int) -> int:
    from odb_example.benchmarks import loaders

    return loaders.bench_loaders(settings, count, seconds, held_out)


def bench_evaluation(count: int) -> int:
    from odb_example.benchmarks import evaluation

    return evaluation.main(count)


def bench_coverage(count: int) -> int:
    from odb_example.benchmarks import coverage

    return int(coverage.main(count) > 0)


def detection() -> int:
    from odb_example.conformance.detection import run_detection

    return run_detection()


def doctor(settings: Settings) -> int:
    from rich.console import Console
    from rich.text import Text

    from odb_example.doctor import examine

    style = {"ok": "green", "note": "yellow", "fail": "red"}
    console, failed = Console(soft_wrap=True), False
    for finding in examine(settings):
        failed |= finding.state == "fail"
        console.print(
            Text(f"{finding.state:<5}", style[finding.state]), f"{finding.about}: {finding.words}", markup=False
        )
    return int(failed)


def test(arguments: tuple[str, ...]) -> int:
    """The suite as CI runs it: every tier on two workers, the gpu tier rehearsed on CPU. Arguments choose otherwise."""
    import subprocess

    root = Path(__file__).resolve().parent.parent
    if not (root / "tests").is_dir():
        raise UserError("the suite is not in the installed package", "run it from a checkout")
    tiers = ["-m", "unit or integration or gpu", "--device", "cpu", "--num-processes", "2"]
    suite = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", *(arguments or tiers)]
    return subprocess.run(suite, cwd=root).returncode


def _stage(stage: str, settings: Settings) -> int:
    from odb_example.launch import run_stage

    return run_stage(stage, settings)


def _with(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update=changes)


def main(arguments: list[str] | None = None) -> int:
    return cli.main(COMMANDS, EPILOG, arguments)


def _count(default: int, of: str) -> click.Option:
    return click.Option(["--count"], type=click.IntRange(min=1), default=default, show_default=True, help=of)


_PATH = click.Path(path_type=Path)
_RUNS = click.Argument(["runs"], type=_PATH, nargs=-1)
EPILOG = "COMMAND --help lists a command's options; each is also a variable, a line of --settings FILE, or both."
COMMANDS: Mapping[str, cli.Spec | cli.Family] = {
    "install": cli.Spec(run=install, help="Install what is missing into this Python."),
    "doctor": cli.Spec(
        run=doctor, help="Versions, upstream faults, devices, disk, model, data; exit 1 if a command would fail.",
        groups=(TRAIN, BENCHMARK),
    ),
    "data": cli.Spec(run=data, help="Build the data: public MM-Mix, or the embedded miniature.", groups=(DATA,)),
    "inspect": cli.Spec(
        run=inspect, help="Look at finished samples: lengths, labels, visual tokens; exit 1 on any failure.",
        groups=(INSPECT,), defaults={"processor_backend": "auto"},
    ),
    "odb-enable": cli.Spec(
        run=train, help="Train with ODB through the one call enable_odb.", groups=(TRAIN,),
        defaults={"loader": "odb", "odb_integration": "enable"}, aliases=("odb", "enable"),
    ),
    "odb-manual": cli.Spec(
        run=train, help="Train with ODB through odb.apply and configure_trainer.", groups=(TRAIN,),
        defaults={"loader": "odb", "odb_integration": "manual"}, aliases=("manual",),
    ),
    "standard": cli.Spec(
        run=train, help="Train with the fixed-batch loader and the plain Trainer.", groups=(TRAIN,),
        defaults={"loader": "standard"},
    ),
    "eval-odb": cli.Spec(
        run=evaluate, help="Validation loss and MMMU-MC of OUTPUT_ROOT/odb-enable.", groups=(VALLOSS, BENCHMARK),
    ),
    "eval-standard": cli.Spec(
        run=eval_standard, help="Validation loss and MMMU-MC of OUTPUT_ROOT/standard-none.",
        groups=(VALLOSS, BENCHMARK),
    ),
    "eval-valloss": cli.Spec(
        run=eval_valloss, help="Validation loss of a checkpoint.", groups=(VALLOSS,), aliases=("valloss",),
    ),
    "benchmark": cli.Spec(
        run=benchmark, help="MMMU multiple choice by likelihood.", groups=(BENCHMARK,), aliases=("eval-benchmark",),
    ),
    "all-odb": cli.Spec(
        run=all_odb, help="Data, training with ODB, both evaluations, and the figures beside the untrained model's.",
        groups=(TRAIN, DATA, VALLOSS, BENCHMARK), defaults={"loader": "odb", "save_final_model": True},
    ),
    "all": cli.Spec(
        run=compare_all, help="The complete comparison: ODB and the standard loader, evaluated and compared.",
        groups=(TRAIN, DATA, INSPECT, VALLOSS, BENCHMARK), defaults={"save_final_model": True},
    ),
    "compare": cli.Spec(
        run=compare, help="Compare finished run folders: table, comparison.json, report.html.", groups=(COMPARE,),
        parameters=(_RUNS, click.Option(["--record"], type=_PATH, help="also write a public record")),
    ),
    "report": cli.Spec(
        run=report, help="One run's page.",
        parameters=(
            click.Argument(["run"], type=_PATH),
            click.Option(["--output"], type=_PATH, help="file (default: RUN/report.html)"),
        ),
    ),
    "audit": cli.Spec(
        run=audit, help="Recompute scores from the row files alone; with two runs, compare them row by row.",
        parameters=(_RUNS,),
    ),
    "parity": cli.Spec(
        run=parity, help="Gradients of every step against one process over the union batch, by loader and objective.",
        groups=(TRAIN,),
    ),
    "check": cli.Spec(
        run=check, help="Run the conformance checks over a pipeline, yours or this one.",
        parameters=(
            click.Option(
                ["--pipeline"], metavar="MODULE:BUILD", envvar="ODB_PIPELINE", show_envvar=True,
                help="where your Pipeline is built (default: ours)",
            ),
            click.Option(["--deviations"], type=_PATH, help="file of known deviations, strict"),
        ),
    ),
    "bench": cli.Family(
        help="Benchmarks: all ways side by side in one run, and loaders held to their promises.",
        commands={
            "loaders": cli.Spec(
                run=bench_loaders, help="Every loader, live and from memory: rates, padding, peak, loss.",
                groups=(TRAIN,),
                parameters=(
                    _count(1500, "samples a loader"),
                    click.Option(
                        ["--seconds"], type=click.FloatRange(min=0), default=15.0, show_default=True,
                        help="training time of the losses at equal seconds",
                    ),
                    click.Option(
                        ["--held-out"], type=click.IntRange(min=1), default=100, show_default=True,
                        help="validation samples",
                    ),
                ),
            ),
            "evaluation": cli.Spec(
                run=bench_evaluation, help="Both evaluations against a plain loop and the machine's bound.",
                parameters=(_count(4000, "records"),),
            ),
            "coverage": cli.Spec(
                run=bench_coverage, help="Random loader configurations, each held to the same promises.",
                parameters=(_count(200, "configurations"),),
            ),
        },
    ),
    "detection": cli.Spec(run=detection, help="The checks against the planted faults: all caught, all named?"),
    "test": cli.Spec(
        run=test, help="The suite as CI runs it; arguments go to pytest.",
        parameters=(click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED),), forwards=True,
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
