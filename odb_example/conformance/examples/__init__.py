"""Pipelines to start from: a text-only one, and the same with faults in it."""
