"""The check of a trainer before anything of its plan is trained: what it found, and what follows from that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.domain.failures import last_line
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import NodeId, VerificationKind

MAX_FAILED_VERIFICATIONS = 3
"""A proof that ended so often by an accident is not begun again: nothing waits forever."""

MOST_CHECKED = 2
"""A trainer that fails at the first steps of so many of a study's trials with other values fails for all of them."""


def check_error(plan: SearchPlan, study: Study) -> Mapping[str, Any] | None:
    """Why a study fails before anything is trained for it; None while it has values left with which to try the trainer.

    Where the values of one trial fail, they may be to blame, and others are tried. What other studies ask for has no
    part in it: their values may be right where these are wrong, or wrong where these are right. Once a study was
    trained, it is the slots that fail on which the trainer was tried last: they are given nothing of it.
    """
    if not study.checks:
        return None
    if study.id in plan.unreported:
        return plan.unreported[study.id]
    return _errors(plan, study)[-1] if _is_tried(plan, study) and not study.executed else None


def check_error_on(plan: SearchPlan, device: str) -> str:
    """The error with which the trainer failed on a kind of device that is given nothing for it; "" for none."""
    if not plan.check_failures or is_checked(plan, device) or next(untried_roots(plan), None) is not None:
        return ""
    return last_line(next(reversed(plan.check_failures.values())))


def untried_roots(plan: SearchPlan) -> Iterator[tuple[NodeId, Trial]]:
    """Roots with whose values the trainer has not failed yet, each with a trial that has them."""
    studies = [each for each in plan.studies.values() if each.id not in plan.unreported and not _is_tried(plan, each)]
    trials = ((root, trial_through(plan, studies, root, 1)) for root in plan.roots if root not in plan.check_failures)
    return ((root, trial) for root, trial in trials if trial is not None)


def _is_tried(plan: SearchPlan, study: Study) -> bool:
    """Whether the trainer has failed with enough of the study's values, or all."""
    failed = len(_errors(plan, study))
    return failed >= MOST_CHECKED or 0 < failed == sum(_trains(study, root) for root in plan.roots)


def _errors(plan: SearchPlan, study: Study) -> list[Mapping[str, Any]]:
    return [error for root, error in plan.check_failures.items() if _trains(study, root)]


def trial_through(plan: SearchPlan, studies: Iterable[Study], node: NodeId, step: int) -> Trial | None:
    """A trial of one of the studies, if it runs, that trains a node up to a step: others may leave it before."""
    for study in studies:
        if study.can_be_verified and study.max_step_by_node.get(node, -1) >= step:
            for trial in study.trials:
                if any(name == node and end >= step for name, end in plan.path_ends(trial)):
                    return trial
    return None


def _trains(study: Study, root: NodeId) -> bool:
    return study.max_step_by_node.get(root, 0) > 0


def can_train(plan: SearchPlan, device: str) -> bool:
    """Whether training may begin on a kind of device: the trainer has taken its first steps there, or need not."""
    return not _is_to_be_checked(plan) or any(test.device == device for test in plan.tests)


def is_checked(plan: SearchPlan, device: str) -> bool:
    """Whether the trainer was tried in all ways on a kind of device, or is not to be."""
    return not _is_to_be_checked(plan) or any(test.device == device and not test.goes_on for test in plan.tests)


def _is_to_be_checked(plan: SearchPlan) -> bool:
    if plan.failed_verifications.get(VerificationKind.CHECK, 0) >= MAX_FAILED_VERIFICATIONS:
        return False
    return any(each.checks and each.can_be_verified for each in plan.studies.values())


def unread_hp(plan: SearchPlan, study: Study) -> list[str]:
    """The hyper-parameters of a study that its trainer has read in none of the steps of a check."""
    names = dict.fromkeys(name for test in plan.tests for name in test.unread)
    return [name for name in names if any(name in trial.hp for trial in study.trials)]
