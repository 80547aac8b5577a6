"""Is a training stack right? Checks over a `Pipeline`, this project's own or anybody's.

`pipeline` says what is under test, `checks` holds one function a claim, `run` runs every check that applies and says
what the others need, `faults` holds wrong pipelines that the checks must find. `docs/conformance.md` is the guide.
"""

from odb_example.conformance.pipeline import (
    BenchmarkFiles,
    Choice,
    Pipeline,
    Scored,
    StepTotals,
    TrainedStep,
    TrainingRun,
    ValidationLoss,
)

__all__ = [
    "BenchmarkFiles",
    "Choice",
    "Pipeline",
    "Scored",
    "StepTotals",
    "TrainedStep",
    "TrainingRun",
    "ValidationLoss",
]
