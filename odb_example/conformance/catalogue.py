"""Every check there is, in the order of the data's way."""

from __future__ import annotations

from odb_example.conformance.check import Check, checks_of
from odb_example.conformance.checks import audit, collate, evaluation, loaders, objective, samples, store, training

CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (store, samples, collate, loaders, objective, training, evaluation, audit)
    for check in checks_of(module)
)
