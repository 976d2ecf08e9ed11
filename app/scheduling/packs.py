"""Which paths are trained together, on one slot: the most urgent one, and those most like it (Liu et al. 2020, §5.3).

Siblings come first: they begin with the same state, on the same samples, and differ in their hyper-parameters. Then
those at the same step of the plan that have most nearly as much to do. Those that read batches of another size would
take passes of their own, and hold up the others: they are not like them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from app.domain.events import PackingProfiled
from app.domain.search_plan import SearchPlan
from app.domain.slots import SlotDescription
from app.domain.stage_tree import Place
from app.domain.terms import StudyId
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import branch_points, cut_to_budget, resume_point, takers
from app.scheduling.widths import WORTHWHILE, batch_sizes
from stagetree.limits import LANES

MOST_HEADS = 1_000
"""So many places where something may begin are looked at; the others come later."""


def cut_at_isolated(plan: SearchPlan, spans: Sequence[Span]) -> Sequence[Span]:
    """A path up to where a stage begins that must be trained alone; only that one, if the path begins with it."""
    suspects = [number for number, span in enumerate(spans) if plan.is_isolated(span.node, span.start)]
    return spans[: max(1, suspects[0])] if suspects else spans


def cut_at_branch(frontier: Frontier, spans: Sequence[Span]) -> Sequence[Span]:
    """A path up to where others can begin besides what follows in it: from there on they are trained together."""
    spans = cut_at_isolated(frontier.plan, spans)
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


def choose_leader(
    frontier: Frontier, lead: Sequence[Span], passed_over: Container[Place], slots: int, slot: SlotDescription
) -> Sequence[Span]:
    """The path to begin a pack with: `lead`, or one of the same study that goes before it, if `lead` can wait for that.

    Full packs go first, then those at the earliest step: so a rung is trained whole before some of it are trained on,
    and these go together. A path can wait as long as all the packs that there are keep the slots busy for longer than
    it and the other one take.

    slots: how many may train the study. slot: which trains the pack.
    """
    assert frontier.plan.packing  # or nothing is packed
    width, packs = frontier.plan.packing, _alike(frontier, lead, passed_over)
    mine = next(pack for pack in packs if _place(lead) in (head for _, head in pack))
    first = max(
        packs, key=lambda pack: (len(pack) >= width, pack is mine and len(pack) >= width, -pack[0][1][1], pack[0])
    )
    work = sum(seconds for pack in packs for seconds, _ in pack[::width])
    can_wait = first[0][0] + mine[0][0] <= work / slots
    if first is mine or not can_wait:
        return lead
    path = frontier.path(first[0][1], lead[0].study)
    return path if any(takers(frontier.plan, path, [slot])) else lead


def _alike(frontier: Frontier, lead: Sequence[Span], passed_over: Container[Place]) -> list[list[tuple[float, Place]]]:
    """Where paths as urgent to the study as `lead` begin, in groups that can be packed: those with most to do first."""
    study = lead[0].study
    assert study is not None
    heads = dict.fromkeys((_place(lead), *_heads(frontier, passed_over, study)))
    urgencies = {head: frontier.demands.demand_at(head)[study] for head in heads}
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
    others = [cut_at_branch(frontier, frontier.path(head)) for head in like[: min(width, share) - 1]]
    others = [path for path in others if any(takers(frontier.plan, path, [slot]))]
    return list(cut_to_budget(frontier.plan, [lead, *others])[1:])


def _heads(frontier: Frontier, passed_over: Container[Place], study: StudyId | None = None) -> Iterator[Place]:
    """Without those where the user's code has failed: on which slot it is tried again, is said with its own chain.

    Nor those of stages that must be trained alone, nor averages.
    """
    plan = frontier.plan
    heads = (head for head in frontier.heads(study) if head not in passed_over and not plan.nodes[head[0]].failures)
    heads = (head for head in heads if not plan.is_isolated(*head) and head[0] not in plan.means)
    return islice(heads, MOST_HEADS)


def _is_like(frontier: Frontier, first: Span, head: Place) -> bool:
    """Whether a path from another head reads the batches that one from `first` does, as far as can be told here."""
    name, start = head
    if start != first.start or name == first.node:
        return False
    nodes = frontier.plan.nodes
    return batch_sizes(nodes[name], start) == batch_sizes(nodes[first.node], start)


def _distance(frontier: Frontier, lead: Place, other: Place) -> tuple[bool, float, Place]:
    """Of places at the same step."""
    mine, its = (resume_point(frontier.plan, Span(*head, end=head[1])) for head in (lead, other))
    return mine != its, abs(frontier.urgency(other)[1] - frontier.urgency(lead)[1]), other


# ---------------------------------------------------------------------------------------------------- filling lanes


def cut_where_lanes_fill(
    frontier: Frontier, pack: Sequence[Sequence[Span]], passed_over: Container[Place], free: int
) -> list[Sequence[Span]]:
    """The paths of a pack, up to where others part with which lanes that are free there can be filled, if that pays.

    The rest of the paths is packed anew there, together with those. It pays if all of that takes a tenth fewer
    passes than the pack trained to its end and the others afterwards.

    free: as for `pack_members`; what other slots can begin now is not waited for.
    """
    begin, end = pack[0][0].start, max(path[-1].end for path in pack)
    coming = chain.from_iterable(_onward(frontier, path[-1]) for path in pack)
    heads = _heads(frontier, passed_over) if free == 1 else iter(())
    there = (cut_at_branch(frontier, frontier.path(head)) for head in heads if begin < head[1] < end)
    others = list(islice(chain(coming, there), MOST_OTHERS))
    meetings = {path[0].start for path in others if begin < path[0].start < end}
    passes = {
        at: _passes(frontier, _cut_before(at, pack)) + _passes(frontier, [*_cut_after(at, pack), *others])
        for at in meetings
    }
    best = min(passes, key=lambda at: (passes[at], at), default=end)
    is_better = best < end and _passes(frontier, pack) + _passes(frontier, others) >= WORTHWHILE * passes[best]
    return _cut_before(best, pack) if is_better else list(pack)


def is_gathering(frontier: Frontier, first: Span, slot: str) -> bool:
    """Whether states of the pack that a slot trained last are on their way, from which others begin beside a path.

    The path that begins with `first` waits for them: they come within the time of an upload, or their chains end.
    """
    if not frontier.plan.packing:
        return False
    trained = (each.stages[-1] for each in frontier.plan.chains.values() if each.slot == slot and each.is_trained)
    coming = (Span(last.node, last.start, last.end) for last in trained if last.end == first.start)
    return any(True for last in coming for _ in _onward(frontier, last))


MOST_OTHERS = 128
"""So many paths are looked at with which lanes could be filled: more would fill packs of their own."""


def _onward(frontier: Frontier, last: Span) -> Iterator[Sequence[Span]]:
    """The paths that begin where one ends, each up to where it branches again."""
    branch = frontier.demands.branches[last.node].get(last.end)
    for child in branch.children() if branch else ():
        yield cut_at_branch(frontier, frontier.path((child, last.end)))
    needs = frontier.demands.needs(frontier.plan.nodes[last.node])
    if later := [need.step for need in needs if need.resume_step <= last.end < need.step]:
        yield [Span(last.node, last.end, min(later))]


def _cut_before(at: int, paths: Iterable[Sequence[Span]]) -> list[Sequence[Span]]:
    return [[replace(span, end=min(span.end, at)) for span in path if span.start < at] for path in paths]


def _cut_after(at: int, paths: Iterable[Sequence[Span]]) -> list[Sequence[Span]]:
    left = ([replace(span, start=max(span.start, at)) for span in path if span.end > at] for path in paths)
    return [path for path in left if path]


def _passes(frontier: Frontier, paths: Iterable[Sequence[Span]]) -> int:
    """How many steps packs take of these paths, where those are packed that are alike."""
    width, lengths = frontier.plan.packing or 1, defaultdict[object, list[int]](list)
    for path in paths:
        begin = path[0].start
        lengths[begin, batch_sizes(frontier.plan.nodes[path[0].node], begin)].append(path[-1].end - begin)
    return sum(sum(sorted(each, reverse=True)[::width]) for each in lengths.values())
