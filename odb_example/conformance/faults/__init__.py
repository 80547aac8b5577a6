"""Deliberately wrong pipelines: what the checks are worth is measured by running them against these.

One module a part of the stack. Each fault is something people do, subtle ones among them; most are invisible in a loss
curve.
"""

from __future__ import annotations

from odb_example.conformance.faults import audit, collate, evaluation, loaders, objective, samples, store, training
from odb_example.conformance.faults.fault import Fault, faults_of

FAULTS: tuple[Fault, ...] = tuple(
    planted
    for module in (store, samples, collate, loaders, objective, training, evaluation, audit)
    for planted in faults_of(module)
)

__all__ = ["FAULTS", "Fault"]
