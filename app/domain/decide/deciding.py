"""Who decides which command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from app.domain import commands as c
from app.domain import events as e
from app.domain import keeping
from app.domain.asking import Trials
from app.domain.decide import chains, studies, trials
from app.domain.decide.finding import open_study_of, study_of
from app.domain.search_plan import SearchPlan
from stagetree.limits import LIMITS, Limits


def decide(plan: SearchPlan, command: c.Command, limits: Limits = LIMITS) -> tuple[e.Event, ...]:
    """The events that follow from a command. Raises `Refused` with a sentence that says why."""
    match command:
        case c.ApplyTunerActions() | c.AddTrial() | c.AskForTrials() | c.CancelTrial() | c.RetryTrial():
            return tuple(_of_trials(plan, command, limits))
        case c.ChoosePacking():
            return tuple(chains.choose_packing(plan, command))
        case c.AssignChain():
            return tuple(chains.assign(plan, command))
        case c.AssignProof():
            return tuple(chains.assign_proof(plan, command))
        case c.LoseChain():
            return tuple(chains.lose(plan, command))
        case c.ReleaseCheckpoints() | c.RecordDeleted():
            return tuple(keeping.decide(plan, command))
        case c.SubmitStudy():
            return tuple(studies.submit(plan, command, limits))
        case _:
            return tuple(_of_studies(plan, command, limits))


def _of_trials(plan: SearchPlan, command: c.TrialCommand, limits: Limits) -> Iterator[e.Event]:
    match command:
        case c.ApplyTunerActions():
            study = study_of(plan, command.study)
            return trials.tune(study, command.actions, Trials(plan, study, limits))
        case c.AddTrial():
            study = open_study_of(plan, command.study)
            return iter([Trials(plan, study, limits).add(command.hp, command.steps, {"by": "user"})])
        case c.AskForTrials():
            study = open_study_of(plan, command.study)
            return trials.ask(study, command.actions, Trials(plan, study, limits))
        case c.CancelTrial():
            return trials.cancel(study_of(plan, command.study), command.trial)
        case c.RetryTrial():
            return trials.retry(study_of(plan, command.study), command)
        case _:
            assert_never(command)


def _of_studies(plan: SearchPlan, command: c.StudyCommand, limits: Limits) -> Iterator[e.Event]:
    study = study_of(plan, command.study)
    match command:
        case c.PauseStudy():
            return studies.pause(open_study_of(plan, study.id))
        case c.ResumeStudy():
            return studies.resume(open_study_of(plan, study.id))
        case c.ReopenStudy():
            return studies.reopen(study, command.trials, command.at, limits)
        case c.CancelStudy():
            return studies.cancel(study, command.at)
        case c.CompleteStudy():
            return studies.complete(study, command.at)
        case c.CloseStudy():
            return studies.close(study, command.at)
        case c.EndStudy():
            return studies.end(study, command)
        case c.FailStudy():
            return studies.fail(study, command.error, command.at)
        case c.CheckFailures():
            return studies.check_failures(plan, study, command.at)
        case c.IsolateStudy():
            return studies.isolate(plan, study, command.at)
        case c.RequestAudit():
            return studies.request_audit(study, command.at)
        case c.EndAudit():
            return studies.end_audit(plan, study, command.at)
        case c.DeleteStudy():
            return studies.delete(study, command.at)
        case c.AddNote():
            return studies.add_note(study, command)
        case _:
            assert_never(command)
