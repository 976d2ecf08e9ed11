"""The exactness verdict on a study, and the marks of its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from app.domain.search_plan import Resumption, SearchPlan, Study, Trial
from app.domain.terms import NodeId, Verdict, VerificationKind
from app.exactness.suspicions import Suspicion, open_suspicions, whole_trials

PACKED = "training in packs is not compared"

COSTLY_STEPS = 32
"""Cost is not given as the reason why a resumption was not compared if comparing it takes no more steps than this."""

MOST_NAMED = 5
"""The number of steps or trials that one sentence names."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a study.

    reason: if the trainer is inexact, the first difference and its likely cause; if trials are unchecked, which and
    why. unchecked: the steps of the resumptions that were not compared. compared: the number of distinct steps of
    resumptions that were.
    """

    verdict: Verdict
    reason: str = ""
    unchecked: tuple[int, ...] = ()
    compared: int = 0


def judge(plan: SearchPlan, study: Study) -> Judgement:
    if study.isolated:
        return Judgement(Verdict.INEXACT, study.isolated)
    if not any(depends_on_sharing(plan, trial) for trial in study.trials):
        return Judgement(Verdict.UNSHARED)
    if (wrong := plan.first_difference) is not None:
        return Judgement(Verdict.INEXACT, wrong.difference)
    if plan.packing:
        return Judgement(Verdict.UNCHECKED, PACKED)
    needed = {step for trial in study.trials for step, *_ in _resumption_steps(plan, trial)}
    unchecked = {each.step for each in plan.uncompared_resumptions} & needed
    if reason := _unchecked_trials(plan, study):
        return Judgement(Verdict.UNCHECKED, reason, tuple(sorted(unchecked)), len(needed - unchecked))
    is_whole = any(whole.study == study.id for whole in whole_trials(plan))
    return Judgement(Verdict.VERIFIED if is_whole else Verdict.CHECKED, "", (), len(needed))


def trial_marks(plan: SearchPlan, study: Study) -> Callable[[Trial], str]:
    """A function that returns the mark of a trial; "" if its numbers were compared or need no comparison."""
    if study.isolated:
        return lambda trial: ""
    if (wrong := plan.first_difference) is not None:
        return partial(_inexact, plan, wrong.difference)
    if plan.packing:
        return lambda trial: f"unchecked: {PACKED}" if trial.path else ""
    cause_of = _causes(plan)
    return lambda trial: f"unchecked: {cause.text_about('it')}" if (cause := cause_of(trial)) else ""


def _inexact(plan: SearchPlan, reason: str, trial: Trial) -> str:
    return f"may be wrong: the trainer is not exact: {reason}" if depends_on_sharing(plan, trial) else ""


class _Cause(NamedTuple):
    """Why a trial is unchecked. names_trial: whether the text is a predicate that follows the trial's name."""

    text: str
    names_trial: bool = False

    def text_about(self, trials: str) -> str:
        return f"{trials} {self.text}" if self.names_trial else self.text


def _causes(plan: SearchPlan) -> Callable[[Trial], _Cause | None]:
    """A function that returns why a trial is unchecked, or None if it is checked."""
    uncompared_resumptions, suspicions = frozenset(plan.uncompared_resumptions), tuple(open_suspicions(plan))
    if not uncompared_resumptions and not suspicions:
        return lambda trial: None
    return partial(_cause, plan, uncompared_resumptions, suspicions)


def _cause(
    plan: SearchPlan, uncompared_resumptions: frozenset[Resumption], suspicions: Iterable[Suspicion], trial: Trial
) -> _Cause | None:
    if not_compared := sorted({each.step for each in resumptions_of(plan, trial) & uncompared_resumptions}):
        why = not_compared_reason(plan, not_compared)
        many = len(not_compared) > 1
        states = f"{'states of steps' if many else 'state of step'} {numbers_text(not_compared)}"
        return _Cause(f"resumed from the {states}, which {why}", names_trial=True)
    return next(
        (_Cause(f"{each.text}, and no whole trial was compared") for each in suspicions if each.concerns(plan, trial)),
        None,
    )


def _unchecked_trials(plan: SearchPlan, study: Study) -> str:
    """The unchecked trials that share the first cause, the cause, and the number of others; "" if all are checked."""
    cause_of, trials = _causes(plan), dict[_Cause, list[int]]()
    for trial in study.trials:
        if cause := cause_of(trial):
            trials.setdefault(cause, []).append(trial.number)
    if not trials:
        return ""
    (cause, numbers), *others = trials.items()
    named = f"trial{'s' if len(numbers) > 1 else ''} {numbers_text(numbers)}"
    text = cause.text_about(named) if cause.names_trial else f"{named}: {cause.text}"
    rest = sum(len(each) for _, each in others)
    return f"{text}; {rest} more {'trial is' if rest == 1 else 'trials are'} unchecked" if rest else text


def not_compared_reason(plan: SearchPlan, steps: list[int]) -> str:
    """Why resumptions were not compared, as a predicate of their states."""
    tried = (test for test in plan.tests if test.unproven and test.proof != VerificationKind.CHECK)
    reason = next((test.unproven for test in tried if max(test.begin, test.since) in steps), "")
    if reason:
        return f"could not be compared: {reason}"
    costs = min((each.cost for step in steps for each in plan.witnesses.get(step, ())), default=0)
    were = "were" if len(steps) > 1 else "was"
    return f"{were} not compared" + (f", since that takes {costs} steps" if costs > COSTLY_STEPS else "")


def numbers_text(numbers: Iterable[int]) -> str:
    """Steps or trials as text, such as "8 and 11", or "8, 11 and 3 more"."""
    ordered = sorted(numbers)
    named, others = [str(each) for each in ordered[:MOST_NAMED]], len(ordered) - MOST_NAMED
    *first, last = [*named, f"{others} more"] if others > 0 else named
    return f"{', '.join(first)} and {last}" if first else last


def depends_on_sharing(plan: SearchPlan, trial: Trial) -> bool:
    """Whether a trial shares steps with other trials, was trained in a pack, or resumed from a saved state."""
    if plan.packing:
        return bool(trial.path)
    return any(plan.nodes[name].trials > 1 or plan.nodes[name].resumed for name in trial.passes)


def resumptions_of(plan: SearchPlan, trial: Trial) -> set[Resumption]:
    """The resumptions that a trial's numbers depend on."""
    return {plan.resumption(node, trial.steps, step) for step, node in _resumption_steps(plan, trial)}


def _resumption_steps(plan: SearchPlan, trial: Trial) -> Iterator[tuple[int, NodeId]]:
    """The steps of the resumptions that a trial depends on, each with the last node of the resumed run."""
    for run in trial.runs:
        ends = [*(plan.nodes[name].start for name in run.path[1:]), trial.steps]
        for name, end in zip(run.path, ends, strict=True):
            for step, is_evaluated in plan.nodes[name].resumed.items():
                if step < end or (step == end and is_evaluated):
                    yield step, run.path[-1]


NOTHING_RESUMED = "checked: no training resumed from a saved state"

TEXTS: Mapping[Verdict, str] = {
    Verdict.VERIFIED: "verified: every step at which trials part was compared, and a whole trial was equal",
    Verdict.CHECKED: "checked: every step at which trials part was compared",
    Verdict.UNSHARED: "nothing is shared: no result rests on a saved state",
}


def verdict_text(study: Study, judgement: Judgement) -> str:
    """The verdict as one line of text."""
    match judgement.verdict:
        case Verdict.INEXACT if study.isolated:
            return f"inexact, so each trial is trained alone: {judgement.reason}"
        case Verdict.INEXACT:
            return f"inexact, and shared results may be wrong: {judgement.reason}"
        case Verdict.UNCHECKED:
            return f"unchecked: {judgement.reason}"
        case Verdict.CHECKED if not judgement.compared:
            return NOTHING_RESUMED
    return TEXTS[judgement.verdict] if study.trials else ""
