"""The pipeline under test, as the packaged tests have it."""

from odb_example.conformance.holding import pipeline

__all__ = ["pipeline"]
