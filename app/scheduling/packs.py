"""Which paths are trained together with the most urgent one, on one slot: those most like it (Liu et al. 2020, §5.3).

Siblings come first: they begin with the same state, on the same samples, and differ in their hyper-parameters. Then
those at the same step of the plan that have most nearly as many steps to go. Those that read batches of another size
would take passes of their own, and hold up the most urgent one; they are not like it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from app.domain.events import PackingProfiled
from app.domain.search_plan import Node, SearchPlan
from app.domain.stage_tree import Place
from app.scheduling.assignment import branch_points, resume_point
from app.scheduling.frontier import Frontier, Span

BATCH_SIZES = ("bs", "batch_size")
"""Hyper-parameters by which trials read other batches; such trials are not packed together."""


def to_the_branch(frontier: Frontier, spans: Sequence[Span]) -> Sequence[Span]:
    """A path up to where others can begin besides what follows in it: from there on they are trained together."""
    return spans[: next(iter(branch_points(frontier, spans)), len(spans)) + 1]


def best_lanes(width: int, profile: PackingProfiled | None) -> int:
    """How many trials at once get on fastest in packs that have room for `width`, as far as is known.

    A pass takes as long however many of its lanes are dead, so that is as many as there is room for.
    """
    return 1 if profile is not None and profile.refusal else width


def times_faster(lanes: int, profile: PackingProfiled) -> float:
    """How many times faster so many trials get on in a pack than one after the other, optimizers left out."""
    full = str(max(map(int, profile.batch_seconds)))
    return round(lanes * profile.batch_seconds["0"] / profile.batch_seconds[full], 2)


def companions(
    frontier: Frontier, lead: Sequence[Span], passed_over: Container[Place], free: int, device: str
) -> list[Sequence[Span]]:
    """The paths that join a pack with `lead`, on a slot with that device.

    free: how many slots can take such work now. It is divided among them: none is left idle for a pack to be full.
    """
    assert frontier.plan.opened is not None
    width = best_lanes(frontier.plan.opened.packing, frontier.plan.profiles.get(device))
    if width < 2:
        return []
    heads = [head for head in frontier.heads() if head not in passed_over and _is_like(frontier, lead[0], head)]
    like = [to_the_branch(frontier, frontier.path(head)) for head in heads]
    like.sort(key=lambda path: _distance(frontier.plan, lead, path))
    share = -(-(len(like) + 1) // free)
    return like[: min(width, share) - 1]


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


def _distance(plan: SearchPlan, lead: Sequence[Span], other: Sequence[Span]) -> tuple[bool, int, str]:
    """Of paths that begin at the same step."""
    mine, its = (resume_point(plan, spans[0]) for spans in (lead, other))
    return mine != its, abs(other[-1].end - lead[-1].end), other[0].node
