"""From spans to a chain: who is charged for each stage, where it evaluates, and whose values it trains with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.domain.events import Stage
from app.domain.ids import TrialKey
from app.domain.search_plan import Node, SearchPlan
from app.scheduling.evaluations import evaluations_of_each
from app.scheduling.frontier import Span


def stages_of(plan: SearchPlan, spans: Sequence[Span]) -> tuple[Stage, ...]:
    """The stages of a chain, charged to the study of its lead trial."""
    study, _ = lead_trial(plan, spans[-1])
    return tuple(
        Stage(node=span.node, start=span.start, end=span.end, study=study, evaluate=tuple(steps))
        for span, steps in zip(spans, evaluations_of_each(plan, spans), strict=True)
    )


def lead_trial(plan: SearchPlan, span: Span) -> TrialKey:
    """The trial on whose behalf a chain that ends with `span` runs: of the most important study, the first.

    Every trial that shares the chain's stages has the same values there, so its values serve them all. Where the span
    was chosen for a study, it is one of that study's.
    """
    waiting = list(_waiting_below(plan, plan.nodes[span.node], span.end))
    waiting = [key for key in waiting if key[0] == span.study] or waiting
    return min(waiting, key=lambda key: (-plan.studies[key[0]].priority, key))


def _waiting_below(plan: SearchPlan, node: Node, step: int) -> Iterable[TrialKey]:
    """The trials of running studies that wait for a result at `step` in the node, or else for one beyond it."""
    here = [key for key in node.waiting.get(step, ()) if _runs(plan, key)]
    if here:
        return here
    for found in plan.beyond(node, step - 1):
        later = [key for at, keys in found.waiting.items() if at > step for key in keys if _runs(plan, key)]
        if later:
            return later
    return ()


def _runs(plan: SearchPlan, key: TrialKey) -> bool:
    return plan.studies[key[0]].is_running
