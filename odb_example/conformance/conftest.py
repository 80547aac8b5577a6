"""What the packaged tests need; options come from the plugin that the installed package registers."""

from odb_example.conformance.holding import pipeline

__all__ = ["pipeline"]
