"""The results of a trainer's check, which runs before any training of its plan, and their consequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.domain.failures import last_line
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.slots import is_cpu
from app.domain.terms import NodeId, VerificationKind

MAX_FAILED_VERIFICATIONS = 3
"""A verification that ended by an accident this often is given up, so that nothing waits forever."""

MOST_CHECKED = 2
"""If the check fails with the values of this many trials of a study, it counts as failed for all."""


def check_error(plan: SearchPlan, study: Study) -> Mapping[str, Any] | None:
    """The error that fails a study before any of its training; None while there are values left to check.

    An error may be due to the values of one trial, so the check is repeated with others. Values of other studies do not
    count. After the first training of the study, an error excludes the kind of device instead: see `check_error_on`.
    """
    if not study.spec.check:
        return None
    if study.id in plan.unreported:
        return plan.unreported[study.id]
    return _errors(plan, study)[-1] if _is_tried(plan, study) and not study.executed else None


def failed_check(plan: SearchPlan, study: Study) -> int | None:
    """The trial with whose values the check failed, if that fails the study."""
    error = check_error(plan, study)
    trial = None if error is None else trial_through(plan, [study], error["node"], 1)
    return None if trial is None else trial.number


def check_failure_text(error: Mapping[str, Any]) -> str:
    """A failed check as a sentence, with the slot and the line that raised, and below it the traceback, if any."""
    text, where = str(error["error"]).strip(), "the CPU" if is_cpu(error["slot"]) else f"slot {error['slot']}"
    _, _, line = error.get("place", "").partition(" in ")
    place = f" in {line}" if line else ""
    sentence = f"The trainer failed its check on {where}: {last_line(error)}{place}"
    return f"{sentence}\n\n{text}" if "\n" in text else sentence


def check_error_on(plan: SearchPlan, device: str) -> str:
    """The error of the check that excludes a kind of device from the plan; "" for none."""
    if not plan.check_failures or is_checked(plan, device) or next(untried_roots(plan), None) is not None:
        return ""
    return last_line(next(reversed(plan.check_failures.values())))


def untried_roots(plan: SearchPlan) -> Iterator[tuple[NodeId, Trial]]:
    """Roots with values for which the check has not failed, each with a trial that has these values."""
    studies = [each for each in plan.studies.values() if each.id not in plan.unreported and not _is_tried(plan, each)]
    trials = ((root, trial_through(plan, studies, root, 1)) for root in plan.roots if root not in plan.check_failures)
    return ((root, trial) for root, trial in trials if trial is not None)


def _is_tried(plan: SearchPlan, study: Study) -> bool:
    """Whether the check has failed with enough of the study's values, or all."""
    failed = len(_errors(plan, study))
    return failed >= MOST_CHECKED or 0 < failed == sum(_trains(study, root) for root in plan.roots)


def _errors(plan: SearchPlan, study: Study) -> list[Mapping[str, Any]]:
    return [error for root, error in plan.check_failures.items() if _trains(study, root)]


def trial_through(plan: SearchPlan, studies: Iterable[Study], node: NodeId, step: int) -> Trial | None:
    """A trial of one of the studies that trains a node up to a step, if the study can be verified."""
    for study in studies:
        if study.can_be_verified and study.max_step_by_node.get(node, -1) >= step:
            for trial in study.trials:
                if any(name == node and end >= step for name, end in plan.path_ends(trial)):
                    return trial
    return None


def _trains(study: Study, root: NodeId) -> bool:
    return study.max_step_by_node.get(root, 0) > 0


def can_train(plan: SearchPlan, device: str) -> bool:
    """Whether training may begin on a kind of device: its first steps passed the check, or need none."""
    return not _is_to_be_checked(plan) or any(test.device == device for test in plan.tests)


def is_checked(plan: SearchPlan, device: str) -> bool:
    """Whether the check is complete on a kind of device, or not required."""
    return not _is_to_be_checked(plan) or any(test.device == device and not test.goes_on for test in plan.tests)


def _is_to_be_checked(plan: SearchPlan) -> bool:
    if plan.failed_verifications.get(VerificationKind.CHECK, 0) >= MAX_FAILED_VERIFICATIONS:
        return False
    return any(each.spec.check and each.can_be_verified for each in plan.studies.values())


def unread_hp(plan: SearchPlan, study: Study) -> list[str]:
    """The hyper-parameters of a study that its trainer did not read in any step of the check."""
    names = dict.fromkeys(name for test in plan.tests for name in test.unread)
    return [name for name in names if any(name in trial.hp for trial in study.trials)]
