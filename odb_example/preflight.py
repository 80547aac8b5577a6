"""What can be refused in a moment: before torch is imported, a model is loaded, or ranks are started.

The stages find the same faults for themselves, on every rank; this only finds them ten seconds, or a large model,
sooner.
"""

from __future__ import annotations

from odb_example.data.store import Store
from odb_example.evaluate.checkpoint import find_checkpoint
from odb_example.files import require_writable
from odb_example.models.source import is_the_miniature, require_model
from odb_example.settings import Settings
from odb_example.train.run_folder import run_folder


def before_training(settings: Settings) -> None:
    """Raises: UserError: no model or data at the paths given, or a run folder that cannot be written to."""
    if not is_the_miniature(settings):
        require_model(settings.model)
    Store.open(settings.data)
    require_writable(run_folder(settings))


def before_scoring(settings: Settings) -> None:
    """Raises: UserError: no checkpoint at the path given."""
    find_checkpoint(settings)


def before_validation_loss(settings: Settings) -> None:
    """Raises: UserError: no checkpoint or data at the paths given."""
    find_checkpoint(settings)
    Store.open(settings.data)
