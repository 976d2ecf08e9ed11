"""Which paths are trained together, on one slot: the most urgent one, and those most like it (Liu et al. 2020, §5.3).

Siblings come first: they begin with the same state, on the same samples, and differ in their hyper-parameters. Then
those at the same step of the plan that have most nearly as much to do. Those that read batches of another size would
take passes of their own, and hold up the others: they are not like them.

How many lanes the packs of a plan must have that was opened without a width, by what was measured.

Reckoned is how long the steps take that trials ask for now. Paths that begin at one step are packed up to where they
branch, the longest first, and none joins a pack under way. What many trials share fills no pack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import islice

from app.domain.assignment import SlotDescription
from app.domain.events import Json, PackingProfiled
from app.domain.search_plan import Node, SearchPlan
from app.domain.stage_tree import Place
from app.domain.terms import NodeId, StudyId
from app.scheduling.assignment import branch_points, resume_point, takers, within_budget
from app.scheduling.frontier import Frontier, Span
from stagetree.limits import BATCH_SIZES, LANES, MOST_LANES
from stagetree.spec.tuners import KINDS

WORTHWHILE = 1.1
"""So many times faster another width must be to be worth a word: times that were measured differ by themselves."""

MOST_HEADS = 1_000
"""So many places where something may begin are looked at; the others come later."""


def isolated(plan: SearchPlan, spans: Sequence[Span]) -> Sequence[Span]:
    """A path up to where a stage begins that must be trained alone; only that one, if the path begins with it."""
    suspects = [number for number, span in enumerate(spans) if plan.is_isolated(span.node, span.start)]
    return spans[: max(1, suspects[0])] if suspects else spans


def until_branch(frontier: Frontier, spans: Sequence[Span]) -> Sequence[Span]:
    """A path up to where others can begin besides what follows in it: from there on they are trained together."""
    spans = isolated(frontier.plan, spans)
    return spans[: next(iter(branch_points(frontier, spans)), len(spans)) + 1]


def best_lanes(width: int, profile: PackingProfiled | None) -> int:
    """How many trials at once get on fastest in packs that have room for `width`, as far as is known.

    A pass takes as long however many of its lanes are dead, so that is as many as there is room for.
    """
    return 1 if profile is not None and profile.refusal else width


def trials_on_a_slot(plan: SearchPlan) -> int:
    """How many trials a slot can train at once, as far as is known of any device: 1 in a plan without packs.

    Where the width is still to be chosen, as many as are usual: among too few, none would be chosen.
    """
    width = LANES if plan.packing is None else plan.packing
    return max((best_lanes(width, profile) for profile in plan.profiles.values()), default=width) or 1


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


def choose_leader(
    frontier: Frontier, lead: Sequence[Span], passed_over: Container[Place], slots: int
) -> Sequence[Span]:
    """The path to begin a pack with: `lead`, or one of the same study that goes before it, if `lead` can wait for that.

    Full packs go first, then those at the earliest step: so a rung is trained whole before some of it are trained on,
    and these go together. A path can wait as long as all the packs that there are keep the slots busy for longer than
    it and the other one take.

    slots: how many may train the study.
    """
    assert frontier.plan.packing  # or nothing is packed
    width, packs = frontier.plan.packing, _alike(frontier, lead, passed_over)
    mine = next(pack for pack in packs if _place(lead) in (head for _, head in pack))
    first = max(
        packs, key=lambda pack: (len(pack) >= width, pack is mine and len(pack) >= width, -pack[0][1][1], pack[0])
    )
    work = sum(seconds for pack in packs for seconds, _ in pack[::width])
    can_wait = first[0][0] + mine[0][0] <= work / slots
    return frontier.path(first[0][1], lead[0].study) if first is not mine and can_wait else lead


def _alike(frontier: Frontier, lead: Sequence[Span], passed_over: Container[Place]) -> list[list[tuple[float, Place]]]:
    """Where paths as urgent to the study as `lead` begin, in groups that can be packed: those with most to do first."""
    study = lead[0].study
    assert study is not None
    heads = dict.fromkeys((_place(lead), *_heads(frontier, passed_over, study)))
    urgencies = {head: frontier.demands.at(head)[study] for head in heads}
    groups = defaultdict[object, list[tuple[float, Place]]](list)
    for (node, start), (priority, seconds) in urgencies.items():
        if priority == urgencies[_place(lead)][0]:
            groups[start, batch_sizes(frontier.plan.nodes[node], start)].append((seconds, (node, start)))
    return [sorted(group, reverse=True) for group in groups.values()]


def _place(path: Sequence[Span]) -> Place:
    return path[0].node, path[0].start


def pack_members(
    frontier: Frontier, lead: Sequence[Span], passed_over: Container[Place], free: int, slot: SlotDescription
) -> list[Sequence[Span]]:
    """The paths that join a pack with `lead`, on a slot.

    free: how many slots can take such work now. It is divided among them: none is left idle for a pack to be full.
    """
    assert frontier.plan.packing  # or nothing is packed
    width = best_lanes(frontier.plan.packing, frontier.plan.profiles.get(slot.device))
    if width < 2:
        return []
    like = [head for head in _heads(frontier, passed_over) if _is_like(frontier, lead[0], head)]
    share = -(-(len(like) + 1) // free)
    like.sort(key=lambda head: _distance(frontier, _place(lead), head))
    others = [until_branch(frontier, frontier.path(head)) for head in like[: min(width, share) - 1]]
    others = [path for path in others if takers(frontier.plan, path, [slot])]
    return list(within_budget(frontier.plan, [lead, *others])[1:])


def _heads(frontier: Frontier, passed_over: Container[Place], study: StudyId | None = None) -> Iterator[Place]:
    """Without those where the user's code has failed: on which slot it is tried again, is said with its own chain.

    Nor those of stages that must be trained alone.
    """
    plan = frontier.plan
    heads = (head for head in frontier.heads(study) if head not in passed_over and not plan.nodes[head[0]].failures)
    heads = (head for head in heads if not plan.is_isolated(*head))
    return islice(heads, MOST_HEADS)


def _is_like(frontier: Frontier, first: Span, head: Place) -> bool:
    """Whether a path from another head reads the batches that one from `first` does, as far as can be told here."""
    name, start = head
    if start != first.start or name == first.node:
        return False
    nodes = frontier.plan.nodes
    return batch_sizes(nodes[name], start) == batch_sizes(nodes[first.node], start)


def batch_sizes(node: Node, step: int) -> tuple[object, ...]:
    """What decides, in all trainers of this kind, which samples are in the batches from a step on."""
    values = node.segment.values(step)
    return tuple(values.get(each) for each in BATCH_SIZES)


def _distance(frontier: Frontier, lead: Place, other: Place) -> tuple[bool, float, Place]:
    """Of places at the same step."""
    mine, its = (resume_point(frontier.plan, Span(*head, end=head[1])) for head in (lead, other))
    return mine != its, abs(frontier.urgency(other)[1] - frontier.urgency(lead)[1]), other


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
    """What the plan's steps take, by the width of packs; a batch a step, as the others are as many whatever the width.

    Of what several slots do at once, that is the least without packs, and with them as much as it may take.
    """
    groups, most = _groups(plan), widest(plan, slots)
    steps = {0: max(sum(map(sum, groups)) / slots, max(_ends(plan).values(), default=0))}
    for width in map(int, profile.batch_seconds):
        if 0 < width <= most:
            steps[width] = sum(sum(lengths[:: slots * width]) for lengths in groups)
    return {width: taken * profile.batch_seconds[str(width)] for width, taken in steps.items()}


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
