"""In what a result is not exact, in sentences: 2 stages went on under another torch (2.13.0 after 2.12.0)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from app.domain import inputs
from app.domain.events import Stage
from app.domain.ids import NodeId
from app.domain.search_plan import SearchPlan, Study, Trial

WITHOUT_PACK = "trained without their pack, which had failed"
"""Why stages of a plan with packs may differ in their last bits from others: see `ExactnessLost`."""


def is_without_pack(plan: SearchPlan, stage: Stage) -> bool:
    """Whether some of a stage was trained alone after its pack had failed."""
    noted = plan.nodes[stage.node].not_exact if stage.node in plan.nodes else ()
    return any(reason == WITHOUT_PACK and stage.start < step <= stage.end for step, reason in noted)


def of_study(plan: SearchPlan, study: Study) -> list[str]:
    """Of all stages that its trials pass, whoever they were trained for."""
    return [*_sentences(plan, study.max_step_by_node.items()), *inputs.problems(plan, study)]


def of_trial(plan: SearchPlan, trial: Trial) -> list[str]:
    """Of the stages on its way."""
    return [*_sentences(plan, plan.ends(trial)), *inputs.problems(plan, plan.studies[trial.study])]


def _sentences(plan: SearchPlan, ends: Iterable[tuple[NodeId, int]]) -> list[str]:
    noted = (step_and_reason for name, end in ends for step_and_reason in _up_to(plan, name, end))
    counts = Counter(reason for _, reason in noted)
    return [f"{count} {'stage' if count == 1 else 'stages'} {reason}" for reason, count in counts.items()]


def _up_to(plan: SearchPlan, name: NodeId, end: int) -> Iterable[tuple[int, str]]:
    return ((step, reason) for step, reason in plan.nodes[name].not_exact if step <= end)
