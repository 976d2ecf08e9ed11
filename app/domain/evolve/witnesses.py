"""Which states can prove something: those whose steps may be trained again in another way than the first time."""

from __future__ import annotations

from bisect import insort

from app.domain import events as e
from app.domain.ids import digest
from app.domain.search_plan import Chain, Node, SearchPlan, Witness
from app.domain.states import ProofKind

MOST_WITNESSES = 16
"""So many of the cheapest are noted: one is enough, and some of their states will be deleted."""


def trained_by(plan: SearchPlan, node: Node, step: int) -> Chain | None:
    """The chain that comes by there; None where none is on record."""
    chain = node.saving.get(step)
    if chain is None:
        covering = (name for (name, _), (start, end) in node.running.items() if start < step <= end)
        chain = next(covering, None)
    return plan.chains.get(chain) if chain is not None else None


def broke(plan: SearchPlan, node: Node, step: int) -> int:
    """The first step at which training has broken that goes on there, with a state that is kept or, at 0, with none."""
    here: Node | None = node
    while here is not None and step not in here.checkpoints and here.start >= step:
        here = plan.nodes.get(here.parent) if here.parent is not None else None
    kept = here.checkpoints.get(step) if here is not None else None
    return kept.broke or step if kept is not None else step


def span(plan: SearchPlan, test: e.ExactnessTested) -> tuple[int, int] | None:
    """From which break to which step this shows that training comes out as it does without one.

    None where it shows a difference, or nothing; where both ways broke: they may be wrong alike; and where only metrics
    were equal, since no state is kept: they say nothing of the steps that follow.
    """
    if test.proof == ProofKind.CHECK or test.difference or test.unproven:
        return None
    kept, chain = plan.node(test.node).checkpoints.get(test.step), plan.chains.get(test.chain)
    if kept is None:
        return None
    again = chain.broke if chain is not None else test.begin
    before = kept.broke if kept.since == test.since else test.since
    return None if before and again else (before or again, test.step)


def note(plan: SearchPlan, node: Node, step: int) -> None:
    """A state is kept there. Where its training can begin elsewhere than it did, that is a proof."""
    began = node.checkpoints[step].since
    if began is None or node.alone or node.id not in plan.nodes:
        return
    inside = _latest(plan, node, step, began)
    if inside is None and began == 0:
        return  # there is no hand-over on its way
    draw = int(digest(node.id, step)[:8], 16) / 2**32
    before = inside if inside is not None else _latest(plan, node, began, 0) or 0
    is_behind = any(plan.is_behind_change(node, at) for at in (began, before) if at)
    insort(plan.witnesses, Witness(step - before, node.id, step, began, before, draw, is_behind))
    alike = [each for each in plan.witnesses if each.is_behind == is_behind]
    if len(alike) > MOST_WITNESSES:
        plan.witnesses.remove(alike[-1])
    if began > 0 and draw < max((study.audit for study in plan.studies.values() if study.is_running), default=0.0):
        again = _latest(plan, node, began, 0) or 0
        plan.audits.append(Witness(step - again, node.id, step, began, again, draw))


def _latest(plan: SearchPlan, node: Node, before: int, after: int) -> int | None:
    """The last step between these two at which a state is kept on the way to the node."""
    here: Node | None = node
    while here is not None:
        kept = max((at for at in here.checkpoints if after < at < before), default=None)
        if kept is not None:
            return kept
        if here.start <= after:
            return None
        before, here = min(before, here.start + 1), plan.nodes[here.parent] if here.parent is not None else None
    return None
