"""How many lanes the packs of a plan must have that was opened without a width, by what was measured.

Reckoned is how long the steps take that trials ask for now. Paths that begin at one step are packed up to where they
branch, the longest first, and none joins a pack under way. What many trials share fills no pack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from app.domain.events import Json, PackingProfiled
from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import NodeId
from stagetree.limits import BATCH_SIZES, LANES, MOST_LANES
from stagetree.spec.tuners import KINDS

WORTHWHILE = 1.1
"""So many times faster another width must be to be worth a word: times that were measured differ by themselves."""


def batch_sizes(node: Node, step: int) -> tuple[object, ...]:
    """What decides, in all trainers of this kind, which samples are in the batches from a step on."""
    values = node.segment.values(step)
    return tuple(values.get(each) for each in BATCH_SIZES)


Peaks = Mapping[str, Mapping[tuple[object, ...], int]]


def peaks(plan: SearchPlan) -> Peaks:
    """By kind of GPU and sizes of batches, the most memory that a stage had in use: see `StageCompleted`.

    Where the sizes are others at a stage's end than at its beginning, it is of none.
    """
    most = defaultdict[str, dict[tuple[object, ...], int]](dict)
    for node in (plan.nodes[name] for name in plan.measured):
        for (gpu, start, end), peak in node.peaks.items():
            if (sizes := batch_sizes(node, start)) == batch_sizes(node, end - 1):
                most[gpu][sizes] = max(peak, most[gpu].get(sizes, 0))
    return most


def times_faster(trials: float, width: int, profile: PackingProfiled) -> float:
    """How many times faster so many trials get on in packs of a width that was measured than one after the other.

    Optimizers are left out. A width of 0 is one after the other.
    """
    lanes = min(trials, width) if width else 1
    return lanes * profile.batch_seconds["0"] / profile.batch_seconds[str(width)]


def better_width(trials: float, width: int, profile: PackingProfiled) -> int | None:
    """The width with which so many trials at once get on fastest, if it pays to train them anew with another; or 0.

    It is for studies to come: in a plan of a width, another one gives other bits.
    """
    best = max(map(int, profile.batch_seconds), key=lambda each: (times_faster(trials, each, profile), -each))
    gain = times_faster(trials, best, profile) / times_faster(trials, width, profile)
    return best if gain >= WORTHWHILE else None


NEAR = 1.05
"""Of widths that take no more than so many times as long as the fastest, the narrowest is chosen."""


def widest(plan: SearchPlan, slots: int) -> int:
    """The most lanes that can all have a trial on one of so many slots; 0 as long as there is none.

    Where a tuner may end trials, it gets fewer, which nobody can reckon with beforehand.
    """
    kinds = (KINDS.get(study.kind) for study in plan.studies.values() if study.is_running)
    is_known = all(kind is not None and kind.trains_to_the_end for kind in kinds)
    most = max(map(len, _groups(plan)), default=0)
    return min(MOST_LANES if is_known else LANES, -(-most // slots))


def choose_width(plan: SearchPlan, profile: PackingProfiled, slots: int) -> tuple[int, str]:
    """The width, 0 for none, and why: in words that follow a colon.

    The narrowest of those near the fastest, if it is a tenth faster than none.
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
    """What the plan's steps take, by the width of packs; a batch a step, as the others are as many whatever the width.

    Of what several slots do at once, that is the least without packs, and with them as much as it may take.
    """
    groups, most = _groups(plan), widest(plan, slots)
    steps = {0: max(sum(map(sum, groups)) / slots, max(_ends(plan).values(), default=0))}
    for width in map(int, profile.batch_seconds):
        if 0 < width <= most:
            steps[width] = sum(sum(lengths[:: slots * width]) for lengths in groups)
    return {width: count * profile.batch_seconds[str(width)] for width, count in steps.items()}


def _groups(plan: SearchPlan) -> list[list[int]]:
    """How many steps the paths have that can be packed with each other, the most first."""
    groups = defaultdict[object, list[int]](list)
    for node, start, end in _paths(plan):
        groups[start, batch_sizes(node, start)].append(end - start)
    return [sorted(lengths, reverse=True) for lengths in groups.values()]


def _paths(plan: SearchPlan) -> Iterator[tuple[Node, int, int]]:
    """What there is to train, from where it can begin to where it branches: the first node of each part, and steps."""
    ends = _ends(plan)
    heads = [(root, 0) for root in plan.roots if root in ends]
    while heads:
        first, start = heads.pop()
        heirs, at = [first], start
        while len(heirs) == 1:
            heirs, at = _heirs(plan, ends, heirs[0], at)
        yield plan.nodes[first], start, at
        heads += [(heir, at) for heir in heirs]


def _heirs(plan: SearchPlan, ends: Mapping[NodeId, int], name: NodeId, after: int) -> tuple[list[NodeId], int]:
    """The nodes that go on where the next children of a node begin, and that step; none at its end."""
    later = [child for child in plan.nodes[name].children if child in ends and plan.nodes[child].start > after]
    at = min((plan.nodes[child].start for child in later), default=ends[name])
    return [child for child in later if plan.nodes[child].start == at] + [name] * (ends[name] > at), at


def _ends(plan: SearchPlan) -> Mapping[NodeId, int]:
    """The last step that running studies ask for in each node."""
    ends: dict[NodeId, int] = {}
    for study in plan.studies.values():
        if study.is_running:
            for name, end in study.max_step_by_node.items():
                ends[name] = max(end, ends.get(name, 0))
    return ends
