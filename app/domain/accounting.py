"""What a study cost, and what it would have cost: a waterfall of training steps whose parts add up.

    alone - stopped_early - unfinished - shared - known + repeated = run

alone          every trial that was started, trained by itself to the end. The end is the tuner's `max_steps` or, where
               there is none, and for trials that came from a user, the steps that the trial was asked for.
stopped_early  steps of it that the tuner decided against: what lies beyond the steps that a trial was asked for, once
               the tuner stopped that trial or the study is completed. As long as a trial may still be asked for more,
               they are not saved.
unfinished     steps of it that nobody trained, and that are not saved either: those still to come and, of a study that
               is over, those of trials that failed, were cancelled, or could have gone on.
shared         steps that a trial of the study took together with another one of it, counted for all but one.
known          steps of the study that were trained, and charged to another study: before it, or beside it.
repeated       steps that were run for the study and gave nothing new: again, from the state before a step where none
               was kept and a later trial parts, or after an accident; or lost by one.
run            steps that workers ran for the study, which is all that it paid for.

Saved is stopped_early + shared + known. Everything is a function of the folded plan, so of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.ids import NodeId
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.states import StudyState, TrialState


@dataclass(frozen=True, slots=True)
class Cost:
    """The waterfall of one study, in steps."""

    alone: int
    stopped_early: int
    unfinished: int
    shared: int
    known: int
    repeated: int
    run: int

    @property
    def saved(self) -> int:
        return self.stopped_early + self.shared + self.known

    @property
    def share(self) -> float | None:
        """The saved part of what training alone would have taken by now; None as long as nothing was trained."""
        finished = self.alone - self.unfinished
        return self.saved / finished if finished else None


def cost(plan: SearchPlan, study: Study) -> Cost:
    """What the study cost so far."""
    ends = [horizon(study, trial) for trial in study.trials]
    served = [trained_steps(plan, trial) for trial in study.trials]
    stopped = sum(end - trial.steps for end, trial in zip(ends, study.trials, strict=True) if _is_over(study, trial))
    distinct = sum(_trained(plan, name, end) for name, end in study.max_step_by_node.items())
    return Cost(
        alone=sum(ends),
        stopped_early=stopped,
        unfinished=sum(ends) - sum(served) - stopped,
        shared=sum(served) - distinct,
        known=distinct - study.fresh,
        repeated=study.executed - study.fresh,
        run=study.executed,
    )


def horizon(study: Study, trial: Trial) -> int:
    """The steps that the trial would take if nobody stopped it."""
    most = study.max_steps if trial.reason.get("by") == "tuner" else None
    return max(trial.steps, most or 0)


def trained_steps(plan: SearchPlan, trial: Trial) -> int:
    """The steps of the trial, of those it was asked for, that are trained: by whomever, and for whomever."""
    return sum(_trained(plan, name, end) for name, end in plan.ends(trial))


def _trained(plan: SearchPlan, name: NodeId, end: int) -> int:
    """The trained steps of a node up to a step."""
    node = plan.nodes[name]
    return max(0, min(end, node.trained) - node.start)


def _is_over(study: Study, trial: Trial) -> bool:
    """Whether the tuner decided that the trial is not trained any further."""
    if trial.state == TrialState.STOPPED:
        return True
    return trial.state == TrialState.COMPLETED and study.state == StudyState.COMPLETED
