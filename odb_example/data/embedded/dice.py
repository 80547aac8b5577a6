"""Repeatable chance: everything derives from `random.Random.random`, the one stream Python promises not to change."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Chance that belongs to one thing, named by ``parts``: the same name throws the same numbers."""

    def __init__(self, *parts: object) -> None:
        name = "/".join(map(str, parts))
        self._name = name
        self._random = random.Random(int.from_bytes(hashlib.sha256(name.encode()).digest(), "big"))

    def share(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def chance(self, share: float) -> bool:
        """True in ``share`` of the throws."""
        return self.share() < share

    def below(self, count: int) -> int:
        """A whole number in [0, count)."""
        return int(self.share() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def choose(self, values: Sequence[T]) -> T:
        """One of ``values``."""
        return values[self.below(len(values))]

    def weighted(self, values: Sequence[tuple[T, float]]) -> T:
        """One of ``values`` by its weight."""
        mark = self.share() * sum(weight for _, weight in values)
        for value, weight in values:
            mark -= weight
            if mark < 0:
                return value
        return values[-1][0]

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """``values`` in another order (Fisher-Yates)."""
        mixed = list(values)
        for end in range(len(mixed) - 1, 0, -1):
            other = self.below(end + 1)
            mixed[end], mixed[other] = mixed[other], mixed[end]
        return mixed

    def noise(self, count: int) -> bytes:
        """``count`` even random bytes."""
        return hashlib.shake_256(f"{self._name}/{self.share()!r}".encode()).digest(count)
