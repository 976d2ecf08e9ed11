"""What another tuner would have decided, from recorded results: nothing is trained.

The log is followed as long as the changed study makes the recorded decisions. From there on the study runs on virtual
slots: as many as there were, with stages as long as recorded, and the same configurations in the same order. So an
unchanged study gives no difference. Names come from content, so a result is available if any study of the plan has it.
If a result is unknown, the last one before it on the same path replaces it; its steps count as needed, and the result
as not known. The part of a log before the study was isolated is followed unchanged: the changed tuner begins where the
real one began anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain import results
from app.domain.accounting import budget_use
from app.domain.evolve import fold
from app.domain.search_plan import Node, SearchPlan, Study, Trial, TrialEvent
from app.domain.terms import ChainOutcome, NodeId, StudyId, TrialEventKind
from app.scheduling.costs import Costs
from app.search.replay.replaying import context_of, is_decision
from app.search.samplers.base import FirstConfigurations, Proposal, Sampler
from app.search.samplers.learning import Learns, learned_trials
from app.search.tuners import TunerDriver, sampler_of
from app.search.tuners.base import End, NewTrial, Next
from app.simulation.simulator import Simulator
from app.simulation.slots import drop_devices
from stagetree.sequences import is_same_value
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.spec.file import change_fields

Json = dict[str, Any]


def what_if(log: Sequence[e.Event], name: StudyId, changes: Mapping[str, Any]) -> Json:
    """Run the study with `changes` to its study file, by dotted path. Raises `stagetree.spec.SpecError`.

    saved: steps that the study requested and would not have. needed: steps that it would request and that were never
    trained; a failed attempt counts as trained. not_known: the results that decisions needed and that are not recorded.
    """
    _check(changes)
    plan = fold(log)
    study = plan.studies[name]
    recorded, durations = RecordedResults(plan, study), _Durations(plan)
    simulator = Simulator(slots=_slots(log), measure=recorded, seconds=durations)
    recorded.world = durations.world = world = simulator.plan
    follower = _Follower(simulator, study, changes, log)
    if not all(follower.follow(event) for event in log):
        follower.continue_without_records()
        simulator.run()
    imagined = simulator.plan.studies[name]  # not from `world`, which lacks the last events
    return {
        "study": name,
        "changes": dict(changes),
        "trials": len(imagined.trials),
        "requested": imagined.requested,
        "unique": imagined.unique,
        "saved": sum(_excess(plan, study, imagined)),
        "needed": sum(_missing(plan, study, imagined, world)),
        "not_known": sum(not recorded.has(imagined.trials[line.trial], line.steps) for line in _results(imagined)),
        "best": _best(recorded, imagined),
    }


def _check(changes: Mapping[str, Any]) -> None:
    """Raises `SpecError` for changes of the space, which decides the configurations."""
    for path in changes:
        if path.split(".")[0] in ("space", "where"):
            problem = "cannot be changed: the configurations of a study are fixed"
            raise SpecError([Problem(path, problem)])


def _slots(log: Sequence[e.Event]) -> int:
    """How many slots trained the plan."""
    return len({event.slot for event in log if isinstance(event, e.ChainAssigned)}) or 1


class _Follower:
    """Feeds recorded events to a simulator, as long as the changed study makes the recorded decisions."""

    def __init__(self, simulator: Simulator, study: Study, changes: Mapping[str, Any], log: Sequence[e.Event]) -> None:
        self._simulator, self._study, self._changes = simulator, study, changes
        self._driver: TunerDriver | None = None
        struck = (isinstance(event, e.StudyIsolated) and event.study == study.id for event in log)
        self._is_struck = any(struck)  # the events up to the isolation belong to the struck part

    def follow(self, event: e.Event) -> bool:
        """Take in an event; False if it is a decision that the changed study does not make."""
        if isinstance(event, e.StudySubmitted | e.StudyReopened) and event.study == self._study.id:
            event = self._imagine(event)
        elif is_decision(event, self._study.id) and not self._is_struck and not self._agrees(event):
            return False
        self._simulator.now = max(self._simulator.now, getattr(event, "at", None) or 0.0)
        self._simulator.take([event])
        if isinstance(event, e.StudyIsolated) and event.study == self._study.id:
            self._is_struck = False
            self._driver = self._make_driver(self._simulator.plan.studies[self._study.id].spec.json)
        return True

    def continue_without_records(self) -> None:
        """From now on only this study runs; the stages under way begin anew."""
        plan = self._simulator.plan
        ended = [e.ChainEnded(chain=chain, outcome=ChainOutcome.STOPPED) for chain in plan.chains]
        self._simulator.take(ended)
        for other in [study.id for study in plan.studies.values() if not study.is_final]:
            if other != self._study.id:
                self._simulator.give(c.PauseStudy(study=other))
        assert self._driver is not None
        self._simulator.set_tuner(self._study.id, self._driver)

    def _imagine(self, event: e.StudySubmitted | e.StudyReopened) -> e.Event:
        """The event with the changed study file. Raises `SpecError`."""
        spec = StudySpec.from_dict(drop_devices(change_fields(event.spec, self._changes))).to_json()
        self._driver = self._make_driver(spec)
        return replace(event, spec=spec)

    def _make_driver(self, spec: Json) -> TunerDriver:
        """The changed tuner at its beginning."""
        beyond = sampler_of(StudySpec.from_dict(spec))
        return TunerDriver(spec, sampler=beyond and _RecordedConfigurations(self._study, beyond))

    def _agrees(self, event: e.Event) -> bool:
        assert self._driver is not None
        study = self._simulator.plan.studies[self._study.id]
        context = context_of(self._simulator.plan, study, event)
        now = max(self._simulator.now, getattr(event, "at", None) or 0.0)
        elapsed = max(context.elapsed, now - study.submitted_at)  # few reasons record it
        paid = budget_use(self._simulator.plan, study, now)
        self._driver.observe(study, replace(context, elapsed=elapsed, spent=paid))
        return _is_same(event, self._driver.next_action(), study)


def _is_same(event: e.Event, action: Next | End | None, study: Study) -> bool:
    """Whether a recorded decision is the tuner's action; the reasons may differ."""
    match event, action:
        case e.TrialAdded(), NewTrial():
            return event.steps == action.steps
        case e.TrialAdded(), c.Start():
            return event.steps == action.steps and is_same_value(event.hp, action.hp)
        case e.TrialExtended(), c.Extend():
            return (event.trial, event.steps) == (action.trial, action.steps)
        case e.TrialStopped(), c.Stop():
            return event.trial == action.trial
        case e.TrialPrioritized(), c.Prioritize():
            return (event.trial, event.priority) == (action.trial, action.priority)
        case e.StudyCompleted(), End():
            return event.reason == action.reason
        case e.StudyCompleted(), None:
            return study.active == 0
    return False


class _RecordedConfigurations:
    """The recorded configurations of a study in their order, followed by its sampler's."""

    def __init__(self, study: Study, beyond: Sampler) -> None:
        own = (trial for trial in study.trials if trial.reason.get("by") == "tuner" and trial.trunk is None)
        self._had = [Proposal(trial.hp, _sampler_fields(trial.reason)) for trial in own]
        self._beyond = beyond
        inner = beyond.then if isinstance(beyond, FirstConfigurations) else beyond
        if study.learned and isinstance(inner, Learns):
            inner.learn(learned_trials(study.learned))

    @property
    def adaptive(self) -> bool:
        return self._beyond.adaptive

    def observe(self, event: TrialEvent) -> None:
        self._beyond.observe(event)

    def propose(self, number: int) -> Proposal | None:
        return self._had[number] if number < len(self._had) else self._beyond.propose(number)

    def size(self) -> int | None:
        return self._beyond.size()


def _sampler_fields(reason: Mapping[str, Any]) -> Json:
    """The fields of a trial's reason from which a sampler learns, even if another one sampled it."""
    return {"sample": reason["sample"], "asked": reason.get("asked", 0)} if "sample" in reason else {}


class RecordedResults:
    """Evaluates a virtual model by looking up the record of its name and step, or an earlier one on its path.

    A configuration without any record gets the worst result of its study.
    """

    def __init__(self, plan: SearchPlan, study: Study) -> None:
        self._plan, self.world = plan, SearchPlan()
        metric, sign = study.spec.metric, results.sign(study)
        measured: list[e.Metrics] = [
            dict(line.metrics) for line in study.history if line.metrics.get(metric) is not None
        ]
        default: e.Metrics = dict.fromkeys(study.spec.objectives.metrics, 0.0)
        self._worst: e.Metrics = max(measured, key=lambda metrics: sign * (metrics[metric] or 0.0), default=default)

    def __call__(self, node: Node, step: int) -> e.Metrics:
        for ancestor, last in reversed(self.world.path_to(node.id, step)):
            recorded = self._plan.nodes[ancestor.id].metrics if ancestor.id in self._plan.nodes else {}
            at = max((each for each in recorded if each <= last), default=None)
            if at is not None:
                return recorded[at]
        return self._worst

    def has(self, trial: Trial, step: int) -> bool:
        """Whether a trial's result was measured."""
        names = (node.id for node in self.world.nodes_of(trial, step))
        return all(name in self._plan.nodes and step in self._plan.nodes[name].metrics for name in names)


class _Durations:
    """Recorded or estimated durations of stages."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan, self.world, self._costs = plan, SearchPlan(), Costs()
        self._costs.refit(plan)

    def __call__(self, stage: e.Stage, number: int) -> float:
        node = self._plan.nodes.get(stage.node) or self.world.nodes[stage.node]
        return (stage.end - stage.start) * self._costs.seconds_per_step(node)


def _last_trained_step(plan: SearchPlan, name: NodeId, world: SearchPlan) -> int:
    """The last trained step of a node, in any study; its start if there is none."""
    node = plan.nodes.get(name)
    if node is None:
        return world.nodes[name].start
    return max((*node.checkpoints, *node.metrics, *(plan.nodes[child].start for child in node.children), node.start))


def _missing(plan: SearchPlan, study: Study, imagined: Study, world: SearchPlan) -> Iterator[int]:
    """For each node, the steps of the changed study that no study has."""
    for name, end in imagined.max_step_by_node.items():
        yield max(0, end - max(_last_trained_step(plan, name, world), study.max_step_by_node.get(name, 0)))


def _excess(plan: SearchPlan, study: Study, imagined: Study) -> Iterator[int]:
    """For each node, the steps of the study that the changed one does not have."""
    for name, end in study.max_step_by_node.items():
        yield max(0, end - max(imagined.max_step_by_node.get(name, 0), plan.nodes[name].start))


def _best(recorded: RecordedResults, study: Study) -> Json | None:
    """The best of the trials' last measured results."""
    last: dict[int, TrialEvent] = {}
    for line in _results(study):
        if study.spec.objectives.score(line.metrics) is not None and recorded.has(study.trials[line.trial], line.steps):
            last[line.trial] = line
    trial = results.best_trial(study, {number: line.metrics for number, line in last.items()})
    if trial is None:
        return None
    return {"trial": trial, "value": last[trial].metrics[study.spec.metric], "steps": last[trial].steps}


def _results(study: Study) -> list[TrialEvent]:
    return [line for line in study.history if line.kind == TrialEventKind.RESULT]
