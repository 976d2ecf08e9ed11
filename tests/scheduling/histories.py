"""All that may come to be in the log of a plan: actions of users, tuners and slots, in any order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.search_plan import Chain, ChainProgress, Study, Trial
from app.domain.terms import ChainId, ChainOutcome, Refused
from app.scheduling.costs import Costs
from app.scheduling.frontier import Frontier
from tests.plans import POLICIES, Story, steps

FEW = st.integers(0, 1)
STEPS = st.integers(1, 12)


@st.composite
def hyper_parameters(draw: st.DrawFn) -> dict[str, Any]:
    """Few different values, so that many trials begin alike and part at many places."""
    milestones = sorted(draw(st.sets(st.integers(1, 10), max_size=3)))
    values = [draw(FEW) for _ in range(len(milestones) + 1)]
    return {"lr": steps(*values, milestones=milestones), "bs": steps(1, draw(FEW), milestones=[draw(STEPS)])}


def trials() -> st.SearchStrategy[list[tuple[dict[str, Any], int]]]:
    return st.lists(st.tuples(hyper_parameters(), STEPS), min_size=1, max_size=3)


class Histories(RuleBasedStateMachine):
    """All that may come to be in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.story, self.costs = Story(), Costs()
        self.plan = self.story.plan
        self.frontier = Frontier(self.plan, self.costs)
        self.steps_run = 0

    # ------------------------------------------------------------------------------------------ users and tuners

    @initialize(first=trials(), merge=st.sampled_from([True, True, False]), second=trials())
    def begin(self, first: list[Any], merge: bool, second: list[Any]) -> None:
        self.story.submit(*first)
        self.story.submit(*second, merge=merge, priority=2, eval_every=2)

    @rule(wanted=trials(), priority=st.integers(1, 2), every=st.sampled_from([1, 5]))
    @precondition(lambda self: len(self.plan.studies) < 4)
    def submit(self, wanted: list[Any], priority: int, every: int) -> None:
        self.story.submit(*wanted, priority=priority, eval_every=every)

    @rule(data=st.data(), wanted=trials())
    @precondition(lambda self: self.open())
    def add(self, data: st.DataObject, wanted: list[Any]) -> None:
        study = data.draw(st.sampled_from(self.open()))
        self.story.give(
            c.ApplyTunerActions(study=study.id, actions=tuple(c.Start(hp=hp, steps=asked) for hp, asked in wanted))
        )

    @rule(data=st.data(), priority=st.integers(-1, 2))
    @precondition(lambda self: any(study.trials for study in self.open()))
    def prioritize(self, data: st.DataObject, priority: int) -> None:
        study = data.draw(st.sampled_from([study for study in self.open() if study.trials]))
        action = c.Prioritize(trial=data.draw(st.sampled_from(study.trials)).number, priority=float(priority))
        command = c.ApplyTunerActions(study=study.id, actions=(action,))
        self.story.give(command)
        self.is_settled(command)

    @rule(data=st.data(), more=st.integers(1, 5), kind=st.sampled_from(["extend", "extend", "stop", "cancel"]))
    @precondition(lambda self: any(study.trials for study in self.open()))
    def change(self, data: st.DataObject, more: int, kind: str) -> None:
        study = data.draw(st.sampled_from([study for study in self.open() if study.trials]))
        trial = data.draw(st.sampled_from(study.trials))
        command: dict[str, c.Command] = {
            "extend": c.ApplyTunerActions(
                study=study.id, actions=(c.Extend(trial=trial.number, steps=trial.steps + more),)
            ),
            "stop": c.ApplyTunerActions(study=study.id, actions=(c.Stop(trial=trial.number),)),
            "cancel": c.CancelTrial(study=study.id, trial=trial.number),
        }
        if kind != "cancel" or trial.state == "active":
            self.story.give(command[kind])
            if kind != "extend":
                self.is_settled(command[kind])

    @rule(data=st.data(), more=st.integers(0, 4))
    @precondition(lambda self: any(len(study.trials) > 1 for study in self.open()))
    def average(self, data: st.DataObject, more: int) -> None:
        study = data.draw(st.sampled_from([study for study in self.open() if len(study.trials) > 1]))
        numbers = data.draw(st.sets(st.integers(0, len(study.trials) - 1), min_size=2, max_size=3))
        last = max(study.trials[number].steps for number in numbers)
        wanted = c.AverageTrials(study=study.id, trials=tuple(numbers), steps=last + more if more else None, time=1.0)
        with suppress(Refused):  # they may have failed, or have one state
            self.story.give(wanted)

    @rule(data=st.data())
    @precondition(lambda self: self.failed_trials())
    def retry(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(self.failed_trials()))
        if trial.error and trial.error["kind"] != "nan":
            self.story.give(c.RetryTrial(study=trial.study, trial=trial.number, at=2.0))

    def failed_trials(self) -> list[Trial]:
        """The trials that may be tried again."""
        studies = [study for study in self.plan.studies.values() if study.state != "cancelled"]
        return [study.trials[number] for study in studies for number in study.failed]

    @rule(data=st.data(), kind=st.sampled_from([*["pause", "resume", "resume"] * 3, "close", "cancel"]))
    @precondition(lambda self: self.open())
    def control(self, data: st.DataObject, kind: str) -> None:
        study = data.draw(st.sampled_from(self.open())).id
        command: dict[str, c.Command] = {
            "pause": c.PauseStudy(study=study),
            "resume": c.ResumeStudy(study=study),
            "close": c.CloseStudy(study=study, at=1.0),
            "cancel": c.CancelStudy(study=study, at=1.0),
        }
        self.story.give(command[kind])
        self.is_settled(command[kind])

    # ------------------------------------------------------------------------------------------ slots

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    @precondition(lambda self: len(self.plan.chains) < 3)
    def assign(self, policy: str) -> None:
        if chain := self.story.take(self.frontier, policy):
            known = [stage for stage in chain.stages for step in stage.evaluate if step in self.node(stage).metrics]
            assert not known, "nothing is evaluated twice"
            progress = dict(self.frontier.progress)
            again = c.AssignChain(chain=chain.id, slot="gpu0", stages=chain.stages, at=0.0, progress=progress)
            self.is_settled(again)
            with pytest.raises(Refused):
                decide(self.plan, replace(again, chain=ChainId("another")))

    @rule(data=st.data(), seconds=st.floats(0.1, 9), value=st.sampled_from([0.5, 0.5, 0.5, None]), keep=st.booleans())
    @precondition(lambda self: self.training())
    def complete(self, data: st.DataObject, seconds: float, value: float | None, keep: bool) -> None:
        stage = self.story.train(data.draw(self.one(self.training())), seconds, value)
        self.steps_run += stage.end - stage.start
        if keep and stage.end in self.node(stage).saving:
            self.story.keep(stage.node, stage.end)

    @rule(data=st.data(), keep=st.booleans(), intermediate=st.booleans())
    @precondition(lambda self: self.training())
    def look_inside(self, data: st.DataObject, keep: bool, intermediate: bool) -> None:
        """Inside a stage a state is kept, because of a new request or in case, and a request is answered."""
        chain = data.draw(self.one(self.training()))
        stage = chain.stages[chain.index]
        if stage.end - stage.start > 1:
            step = data.draw(st.integers(stage.start + 1, stage.end - 1))
            if keep:
                self.story.keep(stage.node, step, intermediate=intermediate)
            if step in self.frontier.extra_eval_steps(chain):
                self.story.evaluate(stage.node, step)

    @rule(data=st.data(), saving=st.booleans())
    @precondition(lambda self: self.training())
    def report_progress(self, data: st.DataObject, saving: bool) -> None:
        """A heartbeat reports the step of a stage; some states that it passed may be on their way."""
        chain = data.draw(self.one(self.training()))
        stage, known = chain.stages[chain.index], self.frontier.progress.get(chain.id, ChainProgress(0))
        step = data.draw(st.integers(max(stage.start, min(known.step, stage.end)), stage.end))
        passed = range(stage.start + 1, step + 1)
        coming = frozenset({data.draw(st.sampled_from(passed))} if saving and passed else ())
        self.frontier.set_progress(chain.id, ChainProgress(step, coming))

    @rule(data=st.data())
    @precondition(lambda self: any(node.saving for node in self.plan.nodes.values()))
    def save(self, data: st.DataObject) -> None:
        places = [(node.id, step) for node in self.plan.nodes.values() for step in node.saving]
        self.story.keep(*data.draw(self.one(places)))

    @rule(data=st.data())
    @precondition(lambda self: any(chain.is_trained for chain in self.plan.chains.values()))
    def end_chain(self, data: st.DataObject) -> None:
        self.story.end(data.draw(self.one([chain for chain in self.plan.chains.values() if chain.is_trained])))

    @rule(data=st.data(), kind=st.sampled_from(["lost", "undelivered", "stopped", "failed"]))
    @precondition(lambda self: self.plan.chains)
    def break_off(self, data: st.DataObject, kind: str) -> None:
        chain = data.draw(self.one(list(self.plan.chains.values())))
        if chain.is_trained:
            self.story.give(c.LoseChain(chain=chain.id))
            return
        stage = chain.stages[chain.index]
        run = data.draw(st.integers(0, stage.end - stage.start))
        if kind in ("lost", "undelivered"):
            outcome = ChainOutcome(kind)
            command = c.LoseChain(chain=chain.id, outcome=outcome, steps=run, died_alone=kind == "lost")
            poisoned = [event for event in self.story.give(command) if isinstance(event, e.StageFailed)]
            self.steps_run += 0 if poisoned else run
            self.is_settled(command)
        elif kind == "stopped":
            if 0 < run < stage.end - stage.start:
                self.story.keep(stage.node, stage.start + run)
            self.story.end(chain, "stopped", steps=run)
            self.steps_run += run
        else:
            sound = stage.start + run - (stage.start == stage.end)
            self.story.happen(
                e.StageFailed(
                    chain=chain.id, index=chain.index, step=sound, kind="exception", error="Boom", seconds=1.0
                )
            )
            self.steps_run += run

    @rule(data=st.data())
    @precondition(lambda self: any(node.checkpoints for node in self.plan.nodes.values()))
    def drop(self, data: st.DataObject) -> None:
        places = [(node.id, step) for node in self.plan.nodes.values() for step in node.checkpoints]
        self.story.drop(*data.draw(self.one(places)))

    def is_settled(self, command: c.Command) -> None:
        """Deciding again yields nothing."""
        try:
            assert decide(self.plan, command) == ()
        except Refused as refused:
            assert str(refused)

    # ------------------------------------------------------------------------------------------ what there is

    def open(self) -> list[Study]:
        return [study for study in self.plan.studies.values() if not study.is_final]

    def training(self) -> list[Chain]:
        return [chain for chain in self.plan.chains.values() if not chain.is_trained]

    def node(self, stage: e.Stage) -> Any:
        return self.plan.nodes[stage.node]

    def one(self, things: list[Any]) -> st.SearchStrategy[Any]:
        return st.sampled_from(things)
