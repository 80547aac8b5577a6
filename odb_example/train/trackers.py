"""Experiment trackers as Trainer callbacks, by the words of ``--report-to``.

Given as callbacks rather than by TrainingArguments' ``report_to``, because TensorBoard would otherwise write into the
folder of half-written checkpoints.
"""

from __future__ import annotations

import importlib.util

from transformers import TrainerCallback
from transformers.integrations import get_reporting_integration_callbacks

from odb_example.errors import UserError
from odb_example.settings import Settings
from odb_example.train.run_folder import run_folder


def tracker_callbacks(settings: Settings, is_main: bool) -> list[TrainerCallback]:
    """Callbacks of the trackers asked for; ``auto`` is TensorBoard where it is installed.

    Raises:
        UserError: a tracker that transformers does not know, or whose package is missing.
    """
    words = [word.strip() for word in settings.report_to.split(",") if word.strip()]
    if words == ["auto"]:
        words = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    callbacks: list[TrainerCallback] = []
    for word in words:
        if word == "none":
            continue
        if word != "tensorboard":
            callbacks.append(_known(word))
        elif is_main:
            callbacks.append(_tensorboard(settings))
    return callbacks


def _tensorboard(settings: Settings) -> TrainerCallback:
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError("--report-to tensorboard needs the package tensorboard", "pip install tensorboard")
    from transformers.integrations import TensorBoardCallback

    callback = TensorBoardCallback()  # it writes nothing before training begins, when the folder is this run's
    callback.logging_dir = callback.logging_dir or str(run_folder(settings) / "runs")
    return callback


def _known(word: str) -> TrainerCallback:
    try:
        (callback,) = get_reporting_integration_callbacks([word])
        return callback()
    except ValueError as error:
        raise UserError(f"--report-to {word}: {error}") from error
    except RuntimeError as error:
        raise UserError(f"--report-to {word}: {error}", f"install {word}, or leave it out") from error
