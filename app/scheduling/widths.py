"""The number of lanes for packs in a plan that was opened without a width, chosen from measurements.

The choice minimizes the estimated time of the currently requested steps. The estimate packs paths that begin at the
same step up to their branch points, longest first, and adds no path to a running pack. Steps that many trials share are
one path and fill no pack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from app.domain.events import Json, PackingProfiled
from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import NodeId
from stagetree.limits import BATCH_SIZES, LANES, MOST_LANES

WORTHWHILE = 1.1
"""The smallest speed-up for which another width is recommended, because measured times vary."""


def batch_sizes(node: Node, step: int) -> tuple[object, ...]:
    """The batch sizes at a step, which decide the samples in the batches from there on."""
    values = node.segment.values(step)
    return tuple(values.get(each) for each in BATCH_SIZES)


Peaks = Mapping[str, Mapping[tuple[object, ...], int]]


def peaks(plan: SearchPlan) -> Peaks:
    """The largest peak memory of a stage by kind of GPU and batch sizes: see `StageCompleted`.

    Stages whose batch sizes change are left out.
    """
    most = defaultdict[str, dict[tuple[object, ...], int]](dict)
    for node in (plan.nodes[name] for name in plan.measured):
        for (gpu, start, end), peak in node.peaks.items():
            if (sizes := batch_sizes(node, start)) == batch_sizes(node, end - 1):
                most[gpu][sizes] = max(peak, most[gpu].get(sizes, 0))
    return most


def times_faster(trials: float, width: int, profile: PackingProfiled) -> float:
    """The speed-up of this many trials in packs of a measured width over one after the other, without optimizers.

    A width of 0 means one after the other.
    """
    lanes = min(trials, width) if width else 1
    return lanes * profile.batch_seconds["0"] / profile.batch_seconds[str(width)]


def better_width(trials: float, width: int, profile: PackingProfiled) -> int | None:
    """The fastest width for this many concurrent trials, 0 for none; None if it is not worth a change from `width`.

    It is advice for future studies: another width gives other bits, so it needs a new plan.
    """
    best = max(map(int, profile.batch_seconds), key=lambda each: (times_faster(trials, each, profile), -each))
    gain = times_faster(trials, best, profile) / times_faster(trials, width, profile)
    return best if gain >= WORTHWHILE else None


NEAR = 1.05
"""The narrowest width that takes at most this many times as long as the fastest is chosen."""


def widest(plan: SearchPlan, slots: int) -> int:
    """The most lanes that trials can fill on each of `slots` slots; 0 without trials.

    The limit is lower if a tuner may stop trials, because the number of filled lanes is then unpredictable.
    """
    from stagetree.spec.tuners import KINDS  # a tenth of a second, which commands that only read need not wait for

    kinds = (KINDS.get(study.spec.kind) for study in plan.studies.values() if study.is_running)
    is_known = all(kind is not None and kind.trains_to_the_end for kind in kinds)
    most = max(map(len, _groups(plan)), default=0)
    return min(MOST_LANES if is_known else LANES, -(-most // slots))


def choose_width(plan: SearchPlan, profile: PackingProfiled, slots: int) -> tuple[int, str]:
    """The width, 0 for none, and the reason in words that follow a colon.

    It is the narrowest width near the fastest that is a tenth faster than no packs.
    """
    if profile.refusal:
        return 0, f"trials are trained alone, since their trainer cannot be packed: {profile.refusal}"
    seconds = _seconds(plan, profile, slots)
    faster = {width: cost for width, cost in seconds.items() if cost * WORTHWHILE <= seconds[0]}
    if not faster:
        return 0, f"no packs were reckoned to be a tenth faster than trials alone on {profile.device}"
    width = min(width for width, cost in faster.items() if cost <= NEAR * min(faster.values()))
    times = seconds[0] / seconds[width]
    return width, f"packs of {width} were reckoned to be {times:.1f} times as fast as trials alone on {profile.device}"


def covers(profile: PackingProfiled, width: int) -> bool:
    """Whether the measurement covers all packs up to a width: it includes it, or wider packs were no faster."""
    *_, before, last = sorted(map(int, profile.batch_seconds))
    return last >= width or (before > 0 and _lane(profile, last) >= _lane(profile, before))


def _lane(profile: PackingProfiled, width: int) -> float:
    return profile.batch_seconds[str(width)] / width


def batch_of(node: Node) -> Json:
    """The hyper-parameters that decide the first batch of a node, as `PackingProfiled` has them."""
    values = node.segment.values(node.start)
    return {name: values[name] for name in BATCH_SIZES if name in values}


def _seconds(plan: SearchPlan, profile: PackingProfiled, slots: int) -> Mapping[int, float]:
    """The estimated seconds for the plan's steps by width, with one batch per step; other costs do not depend on it.

    With several slots, the estimate is a lower bound without packs, and an upper bound with them.
    """
    groups, most = _groups(plan), widest(plan, slots)
    steps = {0: max(sum(map(sum, groups)) / slots, max(_last_steps(plan).values(), default=0))}
    for width in map(int, profile.batch_seconds):
        if 0 < width <= most:
            steps[width] = sum(sum(lengths[:: slots * width]) for lengths in groups)
    return {width: count * profile.batch_seconds[str(width)] for width, count in steps.items()}


def _groups(plan: SearchPlan) -> list[list[int]]:
    """The lengths of paths, in groups that can be packed, longest first."""
    groups = defaultdict[object, list[int]](list)
    for node, start, end in _paths(plan):
        groups[start, batch_sizes(node, start)].append(end - start)
    return [sorted(lengths, reverse=True) for lengths in groups.values()]


def _paths(plan: SearchPlan) -> Iterator[tuple[Node, int, int]]:
    """The paths between branch points, each with its first node, its start and its end."""
    ends = _last_steps(plan)
    heads = [(root, 0) for root in plan.roots if root in ends]
    while heads:
        first, start = heads.pop()
        nodes, at = [first], start
        while len(nodes) == 1:
            nodes, at = _continuations(plan, ends, nodes[0], at)
        yield plan.nodes[first], start, at
        heads += [(node, at) for node in nodes]


def _continuations(plan: SearchPlan, ends: Mapping[NodeId, int], name: NodeId, after: int) -> tuple[list[NodeId], int]:
    """The nodes that continue at the next branch point of a node, and its step; no nodes at the node's end."""
    later = [child for child in plan.nodes[name].children if child in ends and plan.nodes[child].start > after]
    at = min((plan.nodes[child].start for child in later), default=ends[name])
    return [child for child in later if plan.nodes[child].start == at] + [name] * (ends[name] > at), at


def _last_steps(plan: SearchPlan) -> Mapping[NodeId, int]:
    """The last step that running studies request in each node."""
    ends: dict[NodeId, int] = {}
    for study in plan.studies.values():
        if study.is_running:
            for name, end in study.max_step_by_node.items():
                ends[name] = max(end, ends.get(name, 0))
    return ends
