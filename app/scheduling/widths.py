"""How many lanes the packs of a plan are to have that was opened without a width, by what was measured.

Reckoned is how long the steps take that trials ask for by now: at each step as many passes as it takes for all that are
at it, in packs that are full but for the last. Trunks that trials share, and trials that are few, speak for less.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import accumulate, pairwise

from app.domain.events import Json, PackingProfiled
from app.domain.ids import NodeId
from app.domain.search_plan import Node, SearchPlan
from app.scheduling.packs import WORTHWHILE, batch_sizes
from stagetree.lanes import BATCH_SIZES, LANES, MOST_LANES

NEAR = 1.05
"""Of widths that take no more than so many times as long as the fastest, the narrowest is chosen."""

WHOLE = frozenset({"grid", "random", "trials"})
"""Tuners that train every trial to its end. Those of others get fewer, which nobody can reckon with beforehand."""


def widest(plan: SearchPlan, slots: int) -> int:
    """The most lanes that can all have a trial on one of so many slots; 0 as long as there is none."""
    tuners = {study.spec["tuner"]["kind"] for study in plan.studies.values() if study.is_running}
    most = max(_at_once(plan), default=0)
    return min(MOST_LANES if tuners <= WHOLE else LANES, -(-most // slots))


def chosen(plan: SearchPlan, profile: PackingProfiled, slots: int) -> tuple[int, str]:
    """The width, 0 for none, and why: in words that follow a colon.

    The narrowest of those near the fastest, if it is a tenth faster than none.
    """
    if profile.refusal:
        return 0, f"trials are trained alone, since their trainer cannot be packed: {profile.refusal}"
    seconds = _seconds(plan, profile, slots)
    faster = {width: taken for width, taken in seconds.items() if taken * WORTHWHILE <= seconds[0]}
    if not faster:
        return 0, f"no packs were reckoned to be a tenth faster than trials alone on {profile.device}"
    width = min(width for width, taken in faster.items() if taken <= NEAR * min(faster.values()))
    times = seconds[0] / seconds[width]
    return width, f"packs of {width} were reckoned to be {times:.1f} times as fast as trials alone on {profile.device}"


def covers(profile: PackingProfiled, width: int) -> bool:
    """Whether it is known of all packs up to a width how they do: wider ones than were measured are no faster."""
    *_, before, last = sorted(map(int, profile.batch_seconds))
    return last >= width or (before > 0 and _lane(profile, last) >= _lane(profile, before))


def _lane(profile: PackingProfiled, width: int) -> float:
    return profile.batch_seconds[str(width)] / width


def batch_of(node: Node) -> Json:
    """The hyper-parameters that decide the first batch of a node, as `PackingProfiled` has them."""
    values = node.segment.values(node.start)
    return {name: values[name] for name in BATCH_SIZES if name in values}


def _seconds(plan: SearchPlan, profile: PackingProfiled, slots: int) -> Mapping[int, float]:
    """What the plan's steps take, by the width of packs. A batch a step: others have as many whatever the width."""
    at_once, most = _at_once(plan), widest(plan, slots)
    widths = (width for width in map(int, profile.batch_seconds) if width <= most)
    return {
        width: sum(steps * -(-trials // (slots * max(width, 1))) for trials, steps in at_once.items())
        * profile.batch_seconds[str(width)]
        for width in widths
    }


def _at_once(plan: SearchPlan) -> Counter[int]:
    """How many steps there are at which so many nodes can be trained at once, with batches of one size."""
    changes = defaultdict[object, Counter[int]](Counter)  # by batch size: how many nodes more there are from a step on
    for name, end in _ends(plan).items():
        node = plan.nodes[name]
        here = changes[batch_sizes(node, node.start)]
        here[node.start] += 1
        here[end] -= 1
    found = Counter[int]()
    for each in changes.values():
        steps = sorted(each)
        for nodes, (begin, end) in zip(accumulate(each[step] for step in steps), pairwise(steps), strict=False):
            found[nodes] += end - begin
    return found


def _ends(plan: SearchPlan) -> Mapping[NodeId, int]:
    """The last step that running studies ask for in each node."""
    ends: dict[NodeId, int] = {}
    for study in plan.studies.values():
        if study.is_running:
            for name, end in study.max_step_by_node.items():
                ends[name] = max(end, ends.get(name, 0))
    return ends
