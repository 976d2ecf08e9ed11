"""From spans to a chain: who is charged for each stage, where it evaluates, and whose values it trains with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.domain.events import Stage
from app.domain.ids import TrialKey
from app.domain.search_plan import Node, SearchPlan, Study
from app.scheduling.frontier import Span


def stages_of(plan: SearchPlan, spans: Sequence[Span]) -> tuple[Stage, ...]:
    """The stages of a chain, charged to the study of its lead trial."""
    study, _ = lead_trial(plan, spans[-1])
    return tuple(
        Stage(
            node=span.node,
            start=span.start,
            end=span.end,
            study=study,
            evaluate=tuple(evaluations(plan, plan.nodes[span.node], span.start, span.end)),
        )
        for span in spans
    )


def lead_trial(plan: SearchPlan, span: Span) -> TrialKey:
    """The trial on whose behalf a chain that ends with `span` runs: of the most important study, the first.

    Every trial that shares the chain's stages has the same values there, so its values serve them all.
    """
    waiting = _waiting_below(plan, plan.nodes[span.node], span.end)
    return min(waiting, key=lambda key: (-float(plan.studies[key[0]].spec.get("priority", 1)), key))


def evaluations(plan: SearchPlan, node: Node, start: int, end: int) -> list[int]:
    """The steps in (start, end], or just `start` when they are equal, after which to evaluate.

    Those are the steps that trials wait for, and every `eval_every` of the running studies that pass here; what has
    been evaluated already is not evaluated again.
    """
    wanted = {step for step in node.waiting if start < step <= end or start == step == end}
    for study in plan.studies.values():
        if study.is_running and node.id in study.deepest:
            wanted.update(_regular(study, start, min(end, study.deepest[node.id])))
    return sorted(step for step in wanted if step not in node.metrics)


def _regular(study: Study, start: int, end: int) -> Iterable[int]:
    every = study.spec.get("eval_every")
    return range(start + every - start % every, end + 1, every) if every else ()


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
