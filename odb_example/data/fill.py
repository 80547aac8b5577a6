"""How full ODB's batches will be at a budget, from lengths alone.

Plays what one process of ODB does to a stream of finished samples: collect a buffer (which grows by a twentieth a round
unless warm-up is off), sort it, cut it into groups from the longest down. The group sizes are those of
``odb.grouping.grouping_data`` without ranks (a test compares the two); with several ranks ODB splits groups further, so
this is what a rank can hope for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_WARM_UP_STEP = 0.05  # ODB's own: the share of the buffer a round may wait for grows by this


@dataclass(frozen=True, slots=True)
class Fill:
    """Batches of one pass over some samples.

    Attributes:
        fill: mean share of the token budget that real tokens take; a sample above the budget counts as full.
        padding: share of all padded tokens that is padding.
        rows: mean samples in a batch.
        over_budget: samples longer than the budget; each travels alone.
    """

    batches: int
    fill: float
    padding: float
    rows: float
    over_budget: int


def expected_fill(lengths: Sequence[int], *, token_budget: int, buffer_size: int, warm_up: bool = True) -> Fill:
    """Batches that samples of these ``lengths``, arriving in this order, would travel in.

    Args:
        lengths: tokens of each sample; at least one.
        token_budget: padded tokens of one group.
        buffer_size: samples collected before grouping.
        warm_up: whether the first rounds group a partly filled buffer.
    """
    groups = [
        group for window in _windows(lengths, buffer_size, warm_up) for group in group_lengths(window, token_budget)
    ]
    tokens = sum(lengths)
    padded = sum(max(group) * len(group) for group in groups)
    return Fill(
        batches=len(groups),
        fill=sum(min(1.0, sum(group) / token_budget) for group in groups) / len(groups),
        padding=1 - tokens / padded,
        rows=len(lengths) / len(groups),
        over_budget=sum(length > token_budget for length in lengths),
    )


def group_lengths(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """One buffer cut into groups, longest first.

    The first group holds the longest sample alone. Whenever a group is complete, the length that completed it says how
    many samples the next one may hold; all of those are shorter, so the budget holds.
    """
    groups: list[list[int]] = []
    group: list[int] = []
    room = 0
    for length in sorted(lengths, reverse=True):
        group.append(length)
        if len(group) >= room:
            room = max(1, token_budget // length)
            groups.append(group)
            group = []
    return [*groups, group] if group else groups


def _windows(lengths: Sequence[int], buffer_size: int, warm_up: bool) -> Iterator[Sequence[int]]:
    share = 0.0 if warm_up else 1.0
    start = 0
    while start < len(lengths):
        size = max(1, int(buffer_size * share))
        yield lengths[start : start + size]
        start += size
        share = min(1.0, share + _WARM_UP_STEP)
