"""Where tables of results go."""

from __future__ import annotations

import os

from rich.console import Console

WIDE = 140


def report_console() -> Console:
    """Standard output, wide enough for a table where it goes into a file or a pipe."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)
