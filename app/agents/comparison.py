"""Two trials of a study side by side: where they part, and whether their results differ by more than noise."""

from __future__ import annotations

from itertools import takewhile

from app.domain.results import STANDARD_ERRORS, standard_error
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import Outcome, TrialDetail
from stagetree.text import value_text


def parting_step(one: TrialDetail, other: TrialDetail) -> int:
    """The last step that two trials share: that of the shorter one if they do not part."""
    pairs = zip(one.path, other.path, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    ends = [*one.starts[common : common + 1], *other.starts[common : common + 1]]
    return min([one.steps, other.steps, *ends]) if common else 0


def parting_text(one: TrialDetail, other: TrialDetail) -> str:
    """Where the paths of two trials through the plan part."""
    if not (step := parting_step(one, other)):
        return "they share no step"
    if step == min(one.steps, other.steps):
        return f"they do not part: all {step:,} steps of the shorter one are one training"
    return f"at step {step:,}: the {step:,} steps until there are one training"


def difference_text(study: StudyAnswer, one: TrialDetail, other: TrialDetail) -> str:
    """The difference of two results, and whether it is within noise."""
    mine, theirs = _result(one), _result(other)
    if mine is None or theirs is None:
        missing = [str(each.trial) for each in (one, other) if each.value is None]
        return f"unknown: trial {' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} no result yet"
    better = one if (mine.value < theirs.value) == (study.mode == "min") else other
    values = " and ".join(f"{value_text(each.to_json())} at step {each.step}" for each in (mine, theirs))
    if mine.value == theirs.value:
        return f"none: both have {study.metric} {values}"
    steps = "" if mine.step == theirs.step else "; they were measured at other steps, so lengths differ, too"
    noise = _noise_text(mine, theirs, parting_step(one, other))
    gap = f"{abs(mine.value - theirs.value):.3g} in {study.metric}"
    return f"trial {better.trial} is better by {gap}: {values}; {noise}{steps}"


def _result(trial: TrialDetail) -> Outcome | None:
    """The outcome that is the trial's value."""
    outcomes = (each for each in (trial.last, trial.best) if each is not None)
    return next((each for each in outcomes if each.value == trial.value), None)


def _noise_text(one: Outcome, other: Outcome, shared: int) -> str:
    """Whether the difference is noise. shared: the steps that both trials share."""
    if (error := standard_error(one, other)) is None:
        return "whether that is noise is unknown: `repeats` in the study file would measure it"
    if max(one.repeats_from, other.repeats_from) > shared:
        return (
            "whether that is noise is unknown: their repeats share beginnings that differ, and have no noise of these"
        )
    gap = abs(one.value - other.value)
    is_noise = gap < STANDARD_ERRORS * error
    errors = f"{gap / error:.1f} standard errors of the difference" if error else "repeats that are all equal"
    return f"{'within' if is_noise else 'more than'} noise: {errors}"
