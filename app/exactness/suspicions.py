"""Suspicions: values that a saved state did not restore, although all compared bits were equal.

A verification also compares the objects of both trainings. Each difference is a suspicion, because it may take effect
later: a counter may matter only after step 1,000. A suspicion is settled by a whole trial that passed the same
resumption, was trained again without a break, and gave the same numbers. It then also settles the same names at later
resumptions, for trials of at most its length: they train fewer steps after resuming.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from app.domain.search_plan import SearchPlan, Trial
from app.domain.terms import NodeId, VerificationKind

MOST_NAMED = 3
"""The number of names in the text of one suspicion."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """names: the values that differed after training resumed at `step`; with from_evaluation, the leaves of the state
    that the evaluation of the node at `step` changed. settled_steps: it is settled for trials of up to this length.
    """

    step: int
    node: NodeId
    names: frozenset[str]
    from_evaluation: bool = False
    settled_steps: int = 0

    def concerns(self, plan: SearchPlan, trial: Trial) -> bool:
        """Whether the suspicion is not settled for a trial that resumed at that step, or that trained past the
        evaluation, which only other trials requested.
        """
        if trial.steps <= self.settled_steps:
            return False
        if self.from_evaluation:
            study = plan.studies[trial.study]
            is_its_own = study.spec.evaluates(self.step) or self.step in trial.requested_steps
            return not is_its_own and any(name == self.node and end > self.step for name, end in plan.path_ends(trial))
        return any(end > self.step and self.step in plan.nodes[name].resumed for name, end in plan.path_ends(trial))

    @property
    def text(self) -> str:
        names = ", ".join(sorted(self.names)[:MOST_NAMED])
        if self.from_evaluation:
            return f"evaluate() changed {names} at step {self.step}"
        return f"{names} did not come back with the state of step {self.step}"


def suspicions(plan: SearchPlan) -> Iterator[Suspicion]:
    """The suspicions of a plan, settled or open."""
    for test in plan.tests:
        if test.stray and test.proof in (VerificationKind.HANDOVER, VerificationKind.EVALUATION):
            from_evaluation = test.proof == VerificationKind.EVALUATION
            step = test.step if from_evaluation else max(test.begin, test.since)
            yield Suspicion(step, test.node, frozenset(test.stray), from_evaluation)


def open_suspicions(plan: SearchPlan) -> list[Suspicion]:
    """The suspicions that are not settled for the plan's longest trial."""
    found = list(suspicions(plan))
    wholes = whole_trials(plan) if found else []
    if not wholes:
        return found
    compared = [(each, max((t.steps for t in wholes if each.concerns(plan, t)), default=0)) for each in found]
    longest = max(trial.steps for study in plan.studies.values() for trial in study.trials)
    settled = [replace(each, settled_steps=_settled_steps(each, compared)) for each in found]
    return [each for each in settled if each.settled_steps < longest]


def _settled_steps(suspicion: Suspicion, compared: Iterable[tuple[Suspicion, int]]) -> int:
    """The trial length up to which each of the names is settled.

    compared: suspicions, each with the length of the longest whole trial that it concerns.
    """
    kind, step = suspicion.from_evaluation, suspicion.step
    before = [(each.names, to) for each, to in compared if each.from_evaluation == kind and each.step <= step]
    return min(max((to for names, to in before if name in names), default=0) for name in suspicion.names)


def whole_trials(plan: SearchPlan) -> list[Trial]:
    """The trials that were trained again from step 0 to their end without a break, with the same result."""
    equal = {
        (test.node, test.step)
        for test in plan.tests
        if test.proof == VerificationKind.WHOLE and not (test.begin or test.difference or test.unproven)
    }
    if not equal:
        return []
    trials = (trial for study in plan.studies.values() for trial in study.trials if trial.path)
    return [trial for trial in trials if (trial.path[-1], trial.steps) in equal]
