"""Which paths one slot trains together: the most urgent one, and the most similar ones (Liu et al. 2020, §5.3).

Siblings come first: they begin with the same state and samples, and differ in their hyper-parameters. Next come paths
at the same step with the most similar length. Paths with other batch sizes are left out, since they would need
separate passes that delay the others.
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
from app.scheduling.placement import able_slots, branch_points, cut_to_budget, resume_point
from app.scheduling.widths import WORTHWHILE, batch_sizes
from stagetree.limits import LANES

MOST_HEADS = 1_000
"""Most heads that are considered for a pack; the others follow later."""


def cut_at_suspect(plan: SearchPlan, spans: Sequence[Span]) -> Sequence[Span]:
    """A path up to the start of a stage that must be trained alone; only that stage if the path begins with it."""
    suspects = [number for number, span in enumerate(spans) if plan.is_suspect(span.node, span.start)]
    return spans[: max(1, suspects[0])] if suspects else spans


def cut_at_branch(frontier: Frontier, spans: Sequence[Span]) -> Sequence[Span]:
    """A path up to its first branch point, from where its branches are packed together."""
    spans = cut_at_suspect(frontier.plan, spans)
    return spans[: next(iter(branch_points(frontier, spans)), len(spans)) + 1]


def best_lanes(width: int, profile: PackingProfiled | None) -> int:
    """The fastest number of lanes in packs of `width`: all of them, because unused lanes do not make a pass faster.

    1 if the models cannot be packed.
    """
    return 1 if profile is not None and profile.refusal else width


def trials_on_a_slot(plan: SearchPlan) -> int:
    """The most trials that a slot of any measured device can train at once; 1 in a plan without packs.

    Before a width is chosen, the usual number of lanes: with fewer trials at once, no width would pay off.
    """
    width = LANES if plan.packing is None else plan.packing
    return max((best_lanes(width, profile) for profile in plan.profiles.values()), default=width) or 1


def choose_leader(
    frontier: Frontier, lead: Sequence[Span], passed_over: Container[Place], slots: int, slot: SlotDescription
) -> Sequence[Span]:
    """The first path of a pack: `lead`, or an earlier one of the same study if `lead` can wait for it.

    Full packs come first, then packs at the earliest step. So a rung is completed before its promoted trials continue,
    and these are packed together. A path can wait while all packs keep the slots busy for longer than it and the other
    path take.

    slots: the number that may train the study. slot: the one that trains the pack.
    """
    assert frontier.plan.packing  # only called for plans with packs
    width, packs = frontier.plan.packing, _similar_paths(frontier, lead, passed_over)
    mine = next(pack for pack in packs if _place(lead) in (head for _, head in pack))
    first = max(
        packs, key=lambda pack: (len(pack) >= width, pack is mine and len(pack) >= width, -pack[0][1][1], pack[0])
    )
    work = sum(seconds for pack in packs for seconds, _ in pack[::width])
    can_wait = first[0][0] + mine[0][0] <= work / slots
    if first is mine or not can_wait:
        return lead
    path = frontier.path(first[0][1], lead[0].study)
    return path if any(able_slots(frontier.plan, path, [slot])) else lead


def _similar_paths(
    frontier: Frontier, lead: Sequence[Span], passed_over: Container[Place]
) -> list[list[tuple[float, Place]]]:
    """The heads of paths with the priority of `lead`, in groups that can be packed, longest first."""
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
    """The paths that join a pack with `lead` on a slot.

    free: the number of slots for such work. The work is divided among them, so that no slot idles to fill a pack.
    """
    assert frontier.plan.packing  # only called for plans with packs
    width = best_lanes(frontier.plan.packing, frontier.plan.profiles.get(slot.device))
    if width < 2:
        return []
    similar = [head for head in _heads(frontier, passed_over) if _has_same_batches(frontier, lead[0], head)]
    share = -(-(len(similar) + 1) // free)
    similar.sort(key=lambda head: _distance(frontier, _place(lead), head))
    others = [cut_at_branch(frontier, frontier.path(head)) for head in similar[: min(width, share) - 1]]
    others = [path for path in others if any(able_slots(frontier.plan, path, [slot]))]
    return list(cut_to_budget(frontier.plan, [lead, *others])[1:])


def _heads(frontier: Frontier, passed_over: Container[Place], study: StudyId | None = None) -> Iterator[Place]:
    """The heads that can be packed, up to `MOST_HEADS`.

    Averages and stages that must be trained alone are left out, and so are nodes where the user's code has failed:
    their own chain chooses the slot for the next try.
    """
    plan = frontier.plan
    heads = (head for head in frontier.heads(study) if head not in passed_over and not plan.nodes[head[0]].failures)
    heads = (head for head in heads if not plan.is_suspect(*head) and head[0] not in plan.means)
    return islice(heads, MOST_HEADS)


def _has_same_batches(frontier: Frontier, first: Span, head: Place) -> bool:
    """Whether a path from another head begins at the same step with the same batch sizes as one from `first`."""
    name, start = head
    if start != first.start or name == first.node:
        return False
    nodes = frontier.plan.nodes
    return batch_sizes(nodes[name], start) == batch_sizes(nodes[first.node], start)


def _distance(frontier: Frontier, lead: Place, other: Place) -> tuple[bool, float, Place]:
    """A sort key for the difference between two heads at the same step."""
    mine, its = (resume_point(frontier.plan, Span(*head, end=head[1])) for head in (lead, other))
    return mine != its, abs(frontier.urgency(other)[1] - frontier.urgency(lead)[1]), other


# ---------------------------------------------------------------------------------------------------- filling lanes


def cut_to_refill_lanes(
    frontier: Frontier, pack: Sequence[Sequence[Span]], passed_over: Container[Place], free: int
) -> list[Sequence[Span]]:
    """The paths of a pack, cut at a step where other paths can fill free lanes, if that pays off.

    The remaining paths are packed again there, together with the others. It pays off if that takes a tenth fewer passes
    than training the pack to its end and the others afterwards.

    free: as for `pack_members`. Paths that other slots can begin now do not count.
    """
    begin, end = pack[0][0].start, max(path[-1].end for path in pack)
    coming = chain.from_iterable(_following_paths(frontier, path[-1]) for path in pack)
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


def is_waiting_for_pack(frontier: Frontier, first: Span, slot: str) -> bool:
    """Whether a path should wait for states of the slot's last pack that are being uploaded, to be packed with others.

    The wait ends with the upload, or when the chains end. first: the first span of the path.
    """
    if not frontier.plan.packing:
        return False
    trained = (each.stages[-1] for each in frontier.plan.chains.values() if each.slot == slot and each.is_trained)
    coming = (Span(last.node, last.start, last.end) for last in trained if last.end == first.start)
    return any(True for last in coming for _ in _following_paths(frontier, last))


MOST_OTHERS = 128
"""Most paths that are considered to fill lanes. More of them would fill packs of their own."""


def _following_paths(frontier: Frontier, last: Span) -> Iterator[Sequence[Span]]:
    """The paths that begin at the end of a span, each up to its first branch point."""
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
    """The number of passes for these paths if similar ones are packed."""
    width, lengths = frontier.plan.packing or 1, defaultdict[object, list[int]](list)
    for path in paths:
        begin = path[0].start
        lengths[begin, batch_sizes(frontier.plan.nodes[path[0].node], begin)].append(path[-1].end - begin)
    return sum(sum(sorted(each, reverse=True)[::width]) for each in lengths.values())
