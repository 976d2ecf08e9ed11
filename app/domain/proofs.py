"""Whether the trainer of a plan is exact, as far as that was proven, and what that means for each study and trial.

A trial needs proof where it shares steps with others or was trained on from a saved state. Until the trainer has been
seen to end such steps with the same bits as training without a break, whatever shows the trial's numbers says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain import events as e
from app.domain.failures import last_line
from app.domain.search_plan import ProvenSpan, SearchPlan, Study, Trial, covered_to
from app.domain.terms import NodeId, ProofKind, Verdict

MOST_IN_VAIN = 3
"""A proof that ended so often by an accident is not begun again: nobody waits forever."""

PACKED = "what is trained in packs is not compared"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is proven of a plan's trainer, over all kinds of devices that train it.

    reach: the last step up to which trials are proven. behind: the same of trials that were trained on from a state
    that was saved behind a change of their hyper-parameters; 0 if none of those was compared. reason: of an inexact
    trainer, the first difference and its likely cause; of an unproven one, what was not covered. stray: attributes that
    do not come back with the state. spans: of each kind of device, as of the plan. alone: by node, the steps at which a
    trial that was trained alone came out the same.
    """

    verdict: Verdict
    reach: int = 0
    reason: str = ""
    stray: tuple[str, ...] = ()
    behind: int = 0
    spans: tuple[tuple[ProvenSpan, ...], ...] = ()
    alone: Mapping[NodeId, Sequence[int]] = field(default_factory=dict)


def difference(plan: SearchPlan) -> e.ExactnessTested | None:
    """The first comparison that came out otherwise: the trainer is not exact."""
    return next((test for test in plan.tests if test.difference), None)


def unread(plan: SearchPlan, study: Study) -> list[str]:
    """The hyper-parameters of a study that its trainer has read in none of the steps of a check."""
    names = dict.fromkeys(name for test in plan.tests for name in test.unread)
    return [name for name in names if any(name in trial.hp for trial in study.trials)]


def judge(plan: SearchPlan) -> Judgement:
    """The verdict on a plan: the weakest of those on each kind of device that has trained it."""
    stray = tuple(dict.fromkeys(f"{name} {words}" for test in plan.tests for name, words in test.stray.items()))
    if (wrong := difference(plan)) is not None:
        return Judgement(Verdict.INEXACT, 0, wrong.difference, stray)
    if plan.packing:
        return Judgement(Verdict.UNPROVEN, 0, PACKED, stray)
    devices = dict.fromkeys(test.device for test in plan.tests)
    verdicts = [_of_device(plan, device, stray) for device in devices]
    if not verdicts:
        return Judgement(Verdict.UNPROVEN, 0, "no state was compared yet", stray)
    weakest = min(verdicts, key=lambda each: (each.verdict != Verdict.UNPROVEN, each.reach))
    spans = tuple(tuple(plan.spans.get(device, ())) for device in devices)
    behind = min(each.behind for each in verdicts)
    return replace(weakest, behind=behind, spans=spans, alone=_alone(plan))


def _alone(plan: SearchPlan) -> Mapping[NodeId, Sequence[int]]:
    steps: dict[NodeId, list[int]] = defaultdict(list)
    for test in plan.tests:
        if test.proof == ProofKind.WHOLE and not test.unproven:
            steps[test.node].append(test.step)
    return steps


def _of_device(plan: SearchPlan, device: str, stray: tuple[str, ...]) -> Judgement:
    tests = [test for test in plan.tests if test.device == device]
    proven = [test for test in tests if not test.unproven and test.proof != ProofKind.CHECK]
    if stray:  # bits that agree for some steps are no proof then; those of a whole trial are
        proven = [test for test in proven if test.proof == ProofKind.WHOLE]
    if reach := max((test.step for test in proven), default=0):
        behind = max((test.step for test in proven if _is_behind(plan, test)), default=0)
        return Judgement(Verdict.EXACT, reach, "", stray, behind)
    if stray:
        steps = max((test.step - test.begin for test in tests), default=0)
        return Judgement(Verdict.UNPROVEN, 0, f"{stray[0]}; nothing has shown in {steps} steps", stray)
    unproven = next((test.unproven for test in tests if test.unproven), "no training resumed from a saved state yet")
    return Judgement(Verdict.UNPROVEN, 0, f"{unproven} (on {device})", stray)


def _is_behind(plan: SearchPlan, test: e.ExactnessTested) -> bool:
    """Whether one of the two ways broke behind a change of a hyper-parameter."""
    node = plan.nodes.get(test.node)
    return node is not None and any(plan.is_behind_change(node, at) for at in (test.begin, test.since) if at)


def needs_proof(plan: SearchPlan, trial: Trial) -> bool:
    """Whether the trial shares steps with others or a pack, or was trained on from a saved state."""
    if plan.packing:
        return bool(trial.path)
    return any(plan.nodes[name].resumed_from > 0 or plan.nodes[name].trials > 1 for name in trial.passes)


def of_trial(plan: SearchPlan, study: Study, trial: Trial, judgement: Judgement) -> str:
    """What is to stand beside the trial's numbers; nothing where they are proven, or need no proof."""
    if study.isolated:
        return f"trained alone, since the trainer is not exact: {study.isolated}"
    if not needs_proof(plan, trial):
        return ""
    return _mark(judgement, _reach(plan, trial, judgement), trial.steps)


def of_study(plan: SearchPlan, study: Study, judgement: Judgement) -> str:
    """What is to stand beside the study's numbers: what is true of the trial that is proven least."""
    if study.isolated:
        return f"trained alone, since the trainer is not exact: {study.isolated}"
    shared = (trial for trial in study.trials if trial.path and needs_proof(plan, trial))
    reaches = ((_reach(plan, trial, judgement), trial.steps) for trial in shared)
    least = min(reaches, key=lambda each: each[0] - each[1], default=None)
    return "" if least is None else _mark(judgement, *least)


def _reach(plan: SearchPlan, trial: Trial, judgement: Judgement) -> int:
    """The last step up to which all of a trial is proven: by itself, trained alone, or by others trained like it.

    What does not come back with the state may be anything in a used object: then only what was compared itself is.
    """
    return min(_reach_of(plan, run, judgement) for run in trial.alone())


def _reach_of(plan: SearchPlan, trial: Trial, judgement: Judgement) -> int:
    alone = [step for name, end in plan.ends(trial) for step in judgement.alone.get(name, ()) if step <= end]
    return max(alone, default=0) if judgement.stray else max([*alone, _reach_of_others(plan, trial, judgement)])


def _reach_of_others(plan: SearchPlan, trial: Trial, judgement: Judgement) -> int:
    reach = min((_reach_on(plan, trial, spans, judgement.reach) for spans in judgement.spans), default=0)
    if len(trial.path) > 1:
        change = plan.nodes[trial.path[1]].start
        if any(plan.nodes[name].resumed_from > change for name in trial.path):
            return min(reach, max(judgement.behind, change))
    return reach


def compared_to(plan: SearchPlan, trial: Trial, device: str) -> int:
    """The last step up to which training like the trial's was compared on a kind of device with one without a break."""
    return _reach_on(plan, trial, plan.spans.get(device, ()), trial.steps)


def _reach_on(plan: SearchPlan, trial: Trial, spans: Sequence[ProvenSpan], most: int) -> int:
    """As far as spans follow the trial's first break without a gap, where an epoch may end, and its values are such as
    they were compared under; `most` if there is none.
    """
    broke = min((plan.nodes[name].broke for name in trial.path if plan.nodes[name].broke), default=trial.steps)
    if broke >= trial.steps:
        return most
    reach = broke
    for each in sorted(spans, key=lambda each: (each.begin, each.step)):
        reach = max(reach, each.step) if each.begin <= reach else reach
    return min(most, reach, covered_to(plan.way(trial.path[-1], trial.steps), broke, spans))


def _mark(judgement: Judgement, reach: int, steps: int) -> str:
    match judgement.verdict:
        case Verdict.INEXACT:
            return f"may be wrong, since the trainer is not exact: {judgement.reason}"
        case Verdict.UNPROVEN:
            return f"not proven to be exact: {judgement.reason}"
    if reach == 0 and judgement.stray:
        return f"not proven to be exact: {judgement.stray[0]}"
    return f"proven to step {reach} of {steps}" if steps > reach else ""


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


def fails_on(plan: SearchPlan, device: str) -> str:
    """The error with which the trainer failed on a kind of device that is given nothing for it; "" for none."""
    if not plan.check_failures or is_checked(plan, device) or next(untried_roots(plan), None) is not None:
        return ""
    return last_line(next(reversed(plan.check_failures.values())))


def untried_roots(plan: SearchPlan) -> Iterator[tuple[NodeId, Trial]]:
    """Roots with whose values the trainer has not failed yet, each with a trial that has them."""
    studies = [each for each in plan.studies.values() if each.id not in plan.unreported and not _is_tried(plan, each)]
    trials = ((root, passing(plan, studies, root, 1)) for root in plan.roots if root not in plan.check_failures)
    return ((root, trial) for root, trial in trials if trial is not None)


def _is_tried(plan: SearchPlan, study: Study) -> bool:
    """Whether the trainer has failed with enough of the study's values, or all."""
    failed = len(_errors(plan, study))
    return failed >= MOST_CHECKED or 0 < failed == sum(_trains(study, root) for root in plan.roots)


def _errors(plan: SearchPlan, study: Study) -> list[Mapping[str, Any]]:
    return [error for root, error in plan.check_failures.items() if _trains(study, root)]


def passing(plan: SearchPlan, studies: Iterable[Study], node: NodeId, step: int) -> Trial | None:
    """A trial of one of the studies, if it runs, that trains a node up to a step: others may leave it before."""
    for study in studies:
        if study.may_be_proven and study.max_step_by_node.get(node, -1) >= step:
            for trial in study.trials:
                if any(name == node and end >= step for name, end in plan.ends(trial)):
                    return trial
    return None


def _trains(study: Study, root: NodeId) -> bool:
    return study.max_step_by_node.get(root, 0) > 0


def may_train(plan: SearchPlan, device: str) -> bool:
    """Whether training may begin on a kind of device: the trainer has taken its first steps there, or need not."""
    return not _is_to_be_checked(plan) or any(test.device == device for test in plan.tests)


def is_checked(plan: SearchPlan, device: str) -> bool:
    """Whether the trainer was tried in all ways on a kind of device, or is not to be."""
    return not _is_to_be_checked(plan) or any(test.device == device and not test.goes_on for test in plan.tests)


def _is_to_be_checked(plan: SearchPlan) -> bool:
    if plan.proofs_in_vain.get(ProofKind.CHECK, 0) >= MOST_IN_VAIN:
        return False
    return any(each.checks and each.may_be_proven for each in plan.studies.values())


def is_compared(plan: SearchPlan, device: str, *, is_behind: bool = False) -> bool:
    """Whether a hand-over was compared on a kind of device, or could not be so often that nobody tries again.

    is_behind: one behind a change of a hyper-parameter.
    """
    here = [test for test in plan.tests if test.device == device and test.proof != ProofKind.CHECK]
    here = [test for test in here if not is_behind or _is_behind(plan, test)]
    return any(not test.unproven for test in here) or len(here) >= MOST_IN_VAIN
