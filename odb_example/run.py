"""python -m odb_example.run COMMAND: one short function a command, no work of its own.

Commands call the stages of `data`, `train`, `evaluate` and `report`; only this module knows them all. Heavy imports
stand inside the functions, so that ``--help`` answers without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from odb_example import cli
from odb_example.settings import BENCHMARK, DATA, INSPECT, TRAIN, VALLOSS, Settings

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
    return _stage(TRAIN_STAGE, settings)


def eval_valloss(settings: Settings) -> int:
    return _stage(VALLOSS_STAGE, settings)


def benchmark(settings: Settings) -> int:
    return _stage(BENCHMARK_STAGE, settings)


def evaluate(settings: Settings) -> int:
    """Both evaluations of one checkpoint; the second runs only if the first went well."""
    return eval_valloss(settings) or benchmark(settings)


def _stage(stage: str, settings: Settings) -> int:
    from odb_example.launch import run_stage

    return run_stage(stage, settings)


def _with(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update=changes)


def main(arguments: list[str] | None = None) -> int:
    return cli.main(COMMANDS, EPILOG, arguments)


EPILOG = "COMMAND --help lists a command's options; each is also a variable, a line of --settings FILE, or both."
COMMANDS: Mapping[str, cli.Spec] = {
    "install": cli.Spec(run=install, help="Install what is missing into this Python."),
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
    "eval-valloss": cli.Spec(
        run=eval_valloss, help="Validation loss of a checkpoint.", groups=(VALLOSS,), aliases=("valloss",),
    ),
    "benchmark": cli.Spec(
        run=benchmark, help="MMMU multiple choice by likelihood.", groups=(BENCHMARK,), aliases=("eval-benchmark",),
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
