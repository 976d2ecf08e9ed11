"""What did not come back with a state, though all bits were equal: a reason to compare a whole trial.

Two objects that trained the same steps in two ways are looked at, and anything in which they differ is a suspicion: a
counter may matter only from step 1,000 on. It is no mark. It is settled by a whole trial that was trained again without
a break, through the same resumption, and came out the same. That settles the same names where training resumed later,
too, for trials that are no longer: fewer steps lie behind their resumptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from app.domain.search_plan import SearchPlan, Trial
from app.domain.terms import NodeId, VerificationKind

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Suspicion:
    """names: what differed after training resumed at `step`; or what the evaluation at `step` of a node changed in the
    state, where is_of_evaluation is true. settled_steps: steps; it is settled for trials that are no longer.
    """

    step: int
    node: NodeId
    names: frozenset[str]
    is_of_evaluation: bool = False
    settled_steps: int = 0

    def concerns(self, plan: SearchPlan, trial: Trial) -> bool:
        """Whether a trial resumed at that step; or went on behind that evaluation, which it did not ask for.

        Not so, where that is settled for a trial of its length.
        """
        if trial.steps <= self.settled_steps:
            return False
        if self.is_of_evaluation:
            study = plan.studies[trial.study]
            is_its_own = study.evaluates(self.step) or self.step in trial.requested_steps
            return not is_its_own and any(name == self.node and end > self.step for name, end in plan.path_ends(trial))
        return any(end > self.step and self.step in plan.nodes[name].resumed for name, end in plan.path_ends(trial))

    @property
    def text(self) -> str:
        names = ", ".join(sorted(self.names)[:MOST_NAMED])
        if self.is_of_evaluation:
            return f"evaluate() changed {names} at step {self.step}"
        return f"{names} did not come back with the state of step {self.step}"


def suspicions(plan: SearchPlan) -> Iterator[Suspicion]:
    """All of them, settled or open."""
    for test in plan.tests:
        if test.stray and test.proof in (VerificationKind.HANDOVER, VerificationKind.EVALUATION):
            is_of_evaluation = test.proof == VerificationKind.EVALUATION
            step = test.step if is_of_evaluation else max(test.begin, test.since)
            yield Suspicion(step, test.node, frozenset(test.stray), is_of_evaluation)


def open_suspicions(plan: SearchPlan) -> list[Suspicion]:
    """The suspicions that no whole trial has settled for the longest trial."""
    found = list(suspicions(plan))
    wholes = whole_trials(plan) if found else []
    if not wholes:
        return found
    compared = [(each, max((t.steps for t in wholes if each.concerns(plan, t)), default=0)) for each in found]
    longest = max(trial.steps for study in plan.studies.values() for trial in study.trials)
    settled = [replace(each, settled_steps=_settled_steps(each, compared)) for each in found]
    return [each for each in settled if each.settled_steps < longest]


def _settled_steps(suspicion: Suspicion, compared: Iterable[tuple[Suspicion, int]]) -> int:
    """compared: suspicions, each with the steps of the longest whole trial through it."""
    kind, step = suspicion.is_of_evaluation, suspicion.step
    before = [(each.names, to) for each, to in compared if each.is_of_evaluation == kind and each.step <= step]
    return min(max((to for names, to in before if name in names), default=0) for name in suspicion.names)


def whole_trials(plan: SearchPlan) -> list[Trial]:
    """The trials that were trained again from step 0 to their end without a break, and came out the same."""
    equal = {
        (test.node, test.step)
        for test in plan.tests
        if test.proof == VerificationKind.WHOLE and not (test.begin or test.difference or test.unproven)
    }
    if not equal:
        return []
    trials = (trial for study in plan.studies.values() for trial in study.trials if trial.path)
    return [trial for trial in trials if (trial.path[-1], trial.steps) in equal]
