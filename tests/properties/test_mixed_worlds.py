"""Several studies of any tuner on one plan, with every command and accident; and what must hold at the end, recounted.

A result is made of the values that were trained with, step by step, so a wrong state or a wrong metric cannot hide.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.evolve import fold
from app.domain.search_plan import Node, Study, Trial
from app.domain.terms import Refused, StudyId, digest
from app.scheduling.costs import Costs
from app.scheduling.fair_share import fair_share
from app.scheduling.retention import deletion_order
from app.search.replay import replay
from stagetree.sequences import parse
from tests.plans import POLICIES, max_examples
from tests.strategies import sequences
from tests.tuners.test_every_tuner import KINDS
from tests.tuners.worlds import SHARING, faults, numbered_events, simulator, spec, stragglers

ENDINGS: list[dict[str, Any]] = [{"target": 0.05}, {"patience": 5}, {"max_time": 60}]


class World:
    """Up to five studies whose rates are `rates`, and users who interfere. `seed` decides everything else."""

    def __init__(self, seed: int, rates: list[Any]) -> None:
        self.rng, self.seed, self.rates = Random(seed), seed, rates
        luck = {"fail": self.rng.choice([0, 0.05]), "lose": self.rng.choice([0, 0.1])}
        luck["misevaluate"] = self.rng.choice([0, 0.1])
        policy = self.rng.choice([fair_share, *POLICIES.values()])
        options: dict[str, Any] = {"measure": self.measure, "seconds": stragglers(seed), "faults": faults(seed, **luck)}
        self.simulator = simulator(
            self.study(), slots=self.rng.choice([1, 4, 30]), name=StudyId("study-0"), policy=policy, **options
        )
        self.plan = self.simulator.plan
        for number in range(1, self.rng.randint(1, 5)):
            self.advance(self.rng.randrange(20))
            self.simulator.submit(StudyId(f"study-{number}"), self.study().to_json())
        self.advance(10_000)
        for study in list(self.plan.studies.values()):
            self.try_to(c.ResumeStudy(study=study.id))
        self.simulator.run()

    def study(self) -> Any:
        tuner = dict(self.rng.choice(list(KINDS.values())))
        tuner |= {"fixed": []} if "fixed" in tuner else {}
        fields: dict[str, Any] = {"merge": self.rng.random() < 0.8, "priority": self.rng.choice([1, 1, 2])}
        fields |= {"weight": self.rng.choice([1, 3])}
        if tuner["kind"] == "median" or self.rng.random() < 0.5:
            fields["eval_every"] = self.rng.choice([2, 3])
        if self.rng.random() < 0.3:
            fields |= self.rng.choice(ENDINGS)
        return spec(tuner, space={"lr": self.rates}, **fields)

    def advance(self, stages: int) -> None:
        for _ in range(stages):
            if not self.simulator.advance():
                return
            if self.rng.random() < 0.1:
                self.interfere(self.rng.choice(list(self.plan.studies.values())))

    def interfere(self, study: Study) -> None:
        trial = self.rng.randrange(len(study.trials) or 1)
        hp = {"lr": self.rng.choice(self.rates)}
        commands: list[c.Command] = [
            c.CancelTrial(study=study.id, trial=trial),
            c.AddTrial(study=study.id, hp=hp, steps=self.rng.randint(1, 9)),
            c.AskForTrials(study=study.id, actions=(c.Extend(trial=trial, steps=self.rng.randint(1, 12)),)),
            c.PauseStudy(study=study.id),
            c.ResumeStudy(study=study.id),
            c.ResumeStudy(study=study.id),
            c.ReopenStudy(study=study.id, trials=self.rng.randint(1, 3), at=self.simulator.now),
            c.ApplyTunerActions(study=study.id, actions=()),
        ]
        if self.rng.random() < 0.03:
            commands = [c.CancelStudy(study=study.id, at=self.simulator.now)]
        self.try_to(self.rng.choice(commands))
        self.drop_a_checkpoint()
        self.release_checkpoints()

    def try_to(self, command: c.Command) -> None:
        try:
            self.simulator.give(command)
        except Refused as refused:
            assert str(refused)

    def drop_a_checkpoint(self) -> None:
        kept = [
            (node.id, step, found.key) for node in self.plan.nodes.values() for step, found in node.checkpoints.items()
        ]
        if kept and self.rng.random() < 0.3:
            node, step, key = self.rng.choice(kept)
            self.simulator.take([e.CheckpointDropped(node=node, step=step, key=key, reason="it is gone")])

    def release_checkpoints(self) -> None:
        """Release checkpoints over the limit, and now and then all that are unused; some are deleted only later."""
        chosen = list(deletion_order(self.plan, Costs()))
        if chosen and self.rng.random() < 0.3:
            some = tuple(chosen[: self.rng.choice([1, 3, len(chosen)])])
            self.try_to(c.ReleaseCheckpoints(checkpoints=some, reason="budget"))
        if self.rng.random() < 0.5:
            self.try_to(c.RecordDeleted(keys=tuple(self.plan.released)))

    def measure(self, node: Node, step: int) -> e.Metrics:
        way = self.simulator.plan.ancestry(node.id)
        ends = [*(below.start for below in way[1:]), step]
        return result([at.segment.values(t) for at, end in zip(way, ends, strict=True) for t in range(at.start, end)])


def result(values: list[dict[str, Any]]) -> e.Metrics:
    luck = Random(digest(values))
    return {"loss": None if luck.random() < 0.05 else round(luck.random(), 6)}


def values_of(trial: Trial, steps: int) -> list[dict[str, Any]]:
    """The trial's own values, from its sequences alone. None for a merge, whose state is a mean of others."""
    if trial.merge_of is not None:
        return []
    taken = {name: parse(sequence).take(steps) for name, sequence in sorted(trial.hp.items())}
    return [{name: values[step] for name, values in taken.items()} for step in range(steps)]


RATES = st.just(SHARING["lr"]) | st.lists(sequences().map(lambda each: each.to_json()), min_size=2, max_size=8)
"""Decays that share beginnings, or sequences of all families."""


@max_examples(20)
@given(seed=st.integers(0, 10**9), rates=RATES)
def test_invariants_hold_under_any_events(seed: int, rates: list[Any]) -> None:
    world = World(seed, rates)
    plan = world.plan
    for study in plan.studies.values():
        assert study.is_final
        results_are_its_own(world, study)
        counters_are_right(world, study)
        found = replay(numbered_events(world.simulator.events), study.id)
        assert found.identical, found.difference
    nothing_begins_with_what_is_gone(world)
    assert not plan.chains
    assert not any(node.waiting or node.running or node.saving for node in plan.nodes.values())
    assert sum(study.executed for study in plan.studies.values()) == sum(node.steps_run for node in plan.nodes.values())
    again = fold(world.simulator.events)
    assert again.nodes == plan.nodes and again.studies == plan.studies


def nothing_begins_with_what_is_gone(world: World) -> None:
    """The state that a chain begins with exists, and stays until the chain ends. A mean begins with its parts."""
    there, begun, means = dict[tuple[str, int], str](), dict[str, set[str]](), dict[str, list[tuple[str, int]]]()
    parents = {node.id: node.parent for node in world.plan.nodes.values()}
    for event in world.simulator.events:
        match event:
            case e.CheckpointKept():
                there[event.node, event.step] = event.key
            case e.AverageNamed():
                means[event.node] = [(node, step) for node, step, _ in event.shares]
            case e.ChainAssigned():
                first = event.stages[0]
                key = there.get((first.node, first.start)) or there.get((parents[first.node], first.start))
                keys = {key} if key or first.node not in means else {there.get(part) for part in means[first.node]}
                assert None not in keys or (first.start == 0 and parents[first.node] is None)
                begun[event.chain] = {each for each in keys if each}
            case e.ChainEnded() | e.StageFailed():
                begun.pop(event.chain, None)
            case e.CheckpointReleased():
                assert not any(event.key in keys for keys in begun.values())
                there.pop((event.node, event.step), None)
            case e.CheckpointDropped():
                if there.get((event.node, event.step)) == event.key:
                    del there[event.node, event.step]


def results_are_its_own(world: World, study: Study) -> None:
    """Every result of the tuner and every point of a curve comes from the trial's own values."""
    for line in study.history:
        if line.kind == "result":
            assert line.metrics == result(values_of(study.trials[line.trial], line.steps))
    for trial in study.trials:
        for step, metrics in world.plan.curve(trial):
            assert metrics == result(values_of(trial, step))


def counters_are_right(world: World, study: Study) -> None:
    assert study.active == sum(trial.state == "active" for trial in study.trials) == 0
    assert study.requested == sum(trial.steps for trial in study.trials if trial.merge_of is None)
    passed = {
        (name, step)
        for trial in study.trials
        for name, end in world.plan.path_ends(trial)
        for step in range(world.plan.nodes[name].start, end)
    }
    assert study.unique == len(passed)
    assert study.num_results == sum(line.kind == "result" for line in study.history)
