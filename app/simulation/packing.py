"""What packing would save of a study if a pack took no longer than one trial: what it does save is for the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from app.domain.search_plan import Node
from app.scheduling.packs import batch_sizes


def packed_steps(nodes: Iterable[Node], width: int) -> int:
    """How many steps are left where trials at the same step, with the same batch size, take it together."""
    changes: defaultdict[object, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for node in nodes:
        if node.trained > node.start:
            change = changes[batch_sizes(node, node.start)]
            change[node.start] += 1
            change[node.trained] -= 1
    return sum(_passes(change, width) for change in changes.values())


def _passes(change: Mapping[int, int], width: int) -> int:
    """change: at which steps how many more trials, or fewer, are at work."""
    steps = lanes = last = 0
    for step in sorted(change):
        steps += (step - last) * -(-lanes // width)
        lanes, last = lanes + change[step], step
    return steps
