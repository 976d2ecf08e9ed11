"""At which steps a node is to be evaluated while it is trained."""

from __future__ import annotations

from collections.abc import Iterable

from app.domain.search_plan import Node, SearchPlan, Study


def evaluations(plan: SearchPlan, node: Node, start: int, end: int) -> list[int]:
    """The steps in (start, end], or just `start` when they are equal, after which to evaluate.

    Those are the steps that trials wait for, and every `eval_every` of the running studies that pass here; what has
    been evaluated already is not evaluated again, nor what a study has tried in vain as often as it may.
    """
    wanted = {step for step in node.waiting if start < step <= end or start == step == end}
    for study in plan.studies.values():
        if study.is_running and node.id in study.max_step_by_node:
            steps = _regular(study, start, min(end, study.max_step_by_node[node.id]))
            wanted.update(step for step in steps if node.evaluation_tries(step) <= study.max_restarts)
    return sorted(step for step in wanted if step not in node.metrics)


def _regular(study: Study, start: int, end: int) -> Iterable[int]:
    every = study.spec.get("eval_every")
    return range(start + every - start % every, end + 1, every) if every else ()
