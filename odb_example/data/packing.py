"""Token-budget groups, from lengths known up front.

Takes sample lengths (tokens, visual tokens included); yields lists of positions whose padded size
``max(length) * rows`` stays within ``token_budget``. Neighbours in length share a group, so little is padded. It costs
the original order (every position stands in the result once, so a caller can put results back) and knowing every
length beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Order = Literal["shortest_first", "longest_first"]


def pack(lengths: Sequence[int], token_budget: int, *, order: Order) -> list[list[int]]:
    """Groups of positions in ``lengths``, filled greedily in order of length (equal lengths in a fixed order).

    Args:
        lengths: tokens of each sample.
        token_budget: cap of ``max(length) * rows`` of one group. A sample above it stands alone.
        order: ``longest_first`` meets the largest batch at once, so that memory runs out at the start or never.
    """
    by_length = sorted(range(len(lengths)), key=lambda position: lengths[position])
    if order == "longest_first":
        by_length.reverse()
    groups: list[list[int]] = []
    longest = 0
    for position in by_length:
        longest_with = max(longest, lengths[position])
        if groups and longest_with * (len(groups[-1]) + 1) <= token_budget:
            groups[-1].append(position)
            longest = longest_with
        else:
            groups.append([position])
            longest = lengths[position]
    return groups


def padded_tokens(lengths: Sequence[int], group: Sequence[int]) -> int:
    """Size of a group's padded batch, ``max(length) * rows``."""
    return max(lengths[position] for position in group) * len(group)
