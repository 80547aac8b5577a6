"""One rank that trains several settings files in turn: ``torchrun -m support.train_each FILE...``."""

from __future__ import annotations

import sys
from pathlib import Path

from odb_example.settings import Settings
from odb_example.train.trainer import train

if __name__ == "__main__":
    for file in sys.argv[1:]:
        train(Settings.model_validate_json(Path(file).read_text()))
