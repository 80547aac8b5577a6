"""Finished runs to compare."""

from support.finished_runs import finished, pair

__all__ = ["finished", "pair"]
