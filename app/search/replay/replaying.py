"""Folds the log event by event, and compares each recorded decision with the one that is derived again.

Each event must be able to follow the events before it, so that logs are found that were cut, reordered or edited.
Names, times, costs and keys are only checked for being possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from app.domain import checkpoint_needs, results
from app.domain import events as e
from app.domain.commands import Extend, Prioritize, Start, Stop
from app.domain.evolve import evolve, struck_studies
from app.domain.leaderboard import RungRanking, build_leaderboard
from app.domain.search_plan import Chain, SearchPlan, Study, Trial, TrialEvent
from app.domain.terms import ChainOutcome, NodeId, StudyId, TrialEventKind, average_id, canonical_json
from app.search.samplers import Proposal
from app.search.tuners.base import Context, End, NewTrial
from app.search.tuners.base import context_of as context_at
from app.search.tuners.driver import TunerDriver

Json = dict[str, Any]


@dataclass
class Replay:
    """The result of replaying a study.

    events: the number of folded events. history: every result and decision, in the order of the log. difference: the
    first event that does not follow from those before it, with a sentence that says why, or None. A log that cannot be
    followed any further ends there.
    """

    study: StudyId
    plan: SearchPlan = field(default_factory=SearchPlan)
    events: int = 0
    decisions: int = 0
    history: list[Json] = field(default_factory=list)
    difference: Json | None = None
    standing: dict[int, Json] = field(default_factory=dict)  # rung and bracket of each trial

    @property
    def identical(self) -> bool:
        return self.difference is None

    def to_json(self) -> Json:
        """The output of `stagetree replay -o json`."""
        fields: Json = {"study": self.study, "identical": self.identical, "events": self.events}
        if self.difference is not None:
            fields["difference"] = self.difference
        is_whole = self.difference is None or "type" not in self.difference["recorded"]
        standing = self._standing() if is_whole and self.study in self.plan.studies else {}
        return {**fields, "decisions": self.decisions, **standing, "history": self.history}

    def _standing(self) -> Json:
        """The state of the study at the last replayed event."""
        study = self.plan.studies[self.study]
        steps = {"requested": study.requested, "unique": study.unique, "executed": study.executed}
        plan = [self._node(name) for name in study.max_step_by_node]
        return {"state": study.state, "best": self._best(study), "steps": steps, "plan": plan, "rungs": self.rungs()}

    def _node(self, name: NodeId) -> Json:
        """A node of the study, and its progress at that point."""
        node = self.plan.nodes[name]
        last_step = self.plan.studies[self.study].max_step_by_node[name]
        standing = {"checkpoints": sorted(node.checkpoints), "evaluated": sorted(node.metrics)}
        return {"node": name, "parent": node.parent, "start": node.start, "asked": last_step, **standing}

    def _best(self, study: Study) -> Json | None:
        winner = results.best(self.plan, study)
        return winner and {"trial": winner[0].number, "value": winner[1].value, "steps": winner[1].step}

    def rungs(self) -> list[Json]:
        """The rungs at the last replayed event, each with its results, best first."""
        study = self.plan.studies[self.study]
        ladder = [rung for rung in build_leaderboard(study).ladder() if rung.values]
        return [_rung(rung, results.sign(study)) for rung in ladder]


def _rung(rung: RungRanking, sign: int) -> Json:
    trials = [
        {"trial": trial, "value": rung.values[trial], "steps": rung.steps, "promoted": trial in rung.promoted}
        for trial in rung.best_first(sign)
        if trial in rung.values
    ]
    return {"bracket": rung.bracket, "rung": rung.number, "trials": trials}


RUNG = ("rung", "bracket")


def lines(replayed: Replay, number: int, event: e.Event, study: Study, before: int) -> Iterator[Json]:
    """The lines of history that an event added."""
    for line in study.history[before:]:
        if line.kind in ("start", "promote"):
            replayed.standing[line.trial] = {name: line.reason[name] for name in RUNG if name in line.reason}
        yield _line(number, study, line, replayed.standing[line.trial])
    if isinstance(event, e.StudyCompleted | e.StudyFailed | e.StudyCancelled) and event.study == study.id:
        yield {"event": number, "kind": "complete", "state": study.state}


def _line(number: int, study: Study, event: TrialEvent, standing: Json) -> Json:
    line: Json = {"event": number, "kind": event.kind, "trial": event.trial, **standing, "steps": event.steps}
    if event.kind == TrialEventKind.RESULT:
        line |= {"value": event.metrics.get(study.spec.metric), "metrics": dict(event.metrics)}
    return {**line, "reason": dict(event.reason)}


COUNTED = ("trial", "step", "steps", "index", "size", "seconds")
"""Fields that are never negative."""

HINTS: dict[type, dict[str, Any]] = {cls: get_type_hints(cls) for cls in (*get_args(e.Event), e.Stage)}
"""The types of the fields of each event."""


class DoesNotFollow(Exception):
    """An event cannot follow those before it; the message says why."""


def check(plan: SearchPlan, event: e.Event) -> None:
    """Check that an event can follow the plan's events. Raises `DoesNotFollow`, and LookupError for an unknown
    reference.
    """
    _check_fields(event)
    if plan.opened is None and not isinstance(event, e.PlanOpened):
        raise DoesNotFollow("the plan was not opened before")
    match event:
        case e.PlanOpened() if plan.opened is not None:
            raise DoesNotFollow("the plan was opened before")
        case e.StudySubmitted() if event.study in plan.studies:
            raise DoesNotFollow(f"study {event.study} was submitted before")
        case e.StudySubmitted() if event.begin is not None:
            _check_begin(plan, event.begin)
        case e.InputsSeen() if len(event.inputs) != len(plan.studies[event.study].inputs):
            raise DoesNotFollow(f"study {event.study} has {len(plan.studies[event.study].inputs)} inputs")
        case e.WeightsDropped() if event.key not in {weights.key for weights in checkpoint_needs.idle_weights(plan)}:
            raise DoesNotFollow(f"no weights were kept under {event.key} that no study needs")
        case e.NoteAdded() if event.trial is not None:
            _trial(plan, event.study, event.trial)
        case e.NoteCorrected() if event.note >= len(plan.studies[event.study].notes):
            raise DoesNotFollow(f"study {event.study} has {len(plan.studies[event.study].notes)} notes")
        case e.AverageNamed():
            _check_average(plan, event)
        case e.TrialAdded():
            _check_added(plan, event)
        case e.TrialExtended():
            _check_extended(plan, event)
        case e.PackingChosen() if plan.packing is not None:
            raise DoesNotFollow(f"its packs already have {plan.packing} lanes")
        case e.ChainAssigned():
            _check_chain(plan, event)
        case e.StageCompleted() if plan.packing is None:
            raise DoesNotFollow("how many lanes its packs have was not chosen before")
        case e.StageCompleted() | e.StageFailed() if event.index != (at := plan.chains[event.chain].index):
            raise DoesNotFollow(f"it is about stage {event.index} of chain {event.chain}, which is at stage {at}")
        case e.ChainEnded():
            _check_end(plan.chains[event.chain], event)
        case e.Evaluated() | e.CheckpointKept():
            _check_place(plan, event)


def broken_log(number: int, event: e.Event, error: Exception) -> Json:
    """The line that ends a replay whose log cannot be followed any further."""
    match error:
        case DoesNotFollow():
            why = str(error)
        case LookupError():
            why = f"it speaks of {error}, and nothing before it made that"
        case _:
            why = f"{type(error).__name__}: {'; '.join(str(error).splitlines())}"
    where = f"event {number}" if number > 0 else f"the event {1 - number} before the study was submitted"
    problem = f"the log cannot be followed past {where}, a {type(event).__name__}: {why}"
    return {"event": number, "problem": problem, "recorded": {"type": type(event).__name__}, "derived": None}


# -------------------------------------------------------------------------------------------------------------- fields


def _check_fields(event: Any) -> None:
    for name, hint in HINTS[type(event)].items():
        value = getattr(event, name)
        if not _fits(value, hint) or (name in COUNTED and value is not None and value < 0):
            raise DoesNotFollow(f"its {name} is {value!r}")
        for stage in value if hint == tuple[e.Stage, ...] else ():
            _check_fields(stage)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value matches the field's annotation."""
    if type(value) is hint and hint is not float:  # the common case: `get_origin` is slow
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is dict:
        key, held = arguments
        return isinstance(value, dict) and all(_fits(k, key) and _fits(v, held) for k, v in value.items())
    if origin in (tuple, list):
        return isinstance(value, origin) and all(_fits(each, arguments[0]) for each in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Any:
        return True
    if hint is NoneType:
        return value is None
    return _is_one(value, getattr(hint, "__supertype__", hint))


def _is_one(value: Any, cls: Any) -> bool:
    """Whether it is an instance of the class, or a word of the enumeration."""
    return isinstance(value, cls) or (issubclass(cls, str) and cls is not str and value in [*cls])


# -------------------------------------------------------------------------------------------------------------- trials


def _check_begin(plan: SearchPlan, begin: Json) -> None:
    """A study's initial weights are its plan's."""
    if not _fits(begin["size"], int) or begin["size"] < 0 or not _fits(begin["key"], str):
        raise DoesNotFollow(f"its initial weights are {begin!r}")
    opened = plan.opened.begin if plan.opened else None
    if opened != {name: begin[name] for name in ("sha256", "state")}:
        raise DoesNotFollow("it begins from other weights than its plan")


def _check_added(plan: SearchPlan, event: e.TrialAdded) -> None:
    due = len(plan.studies[event.study].trials)
    if event.trial != due:
        raise DoesNotFollow(f"it adds trial {event.trial} of study {event.study}, and trial {due} would be next")
    _check_reason(event.reason)
    _check_repeats(event, len(event.data_seeds) or 1)
    for path in (event.path, *event.repeats):
        _check_path(plan, path, event.steps, None)


def _check_extended(plan: SearchPlan, event: e.TrialExtended) -> None:
    trial = _trial(plan, event.study, event.trial)
    if event.steps <= trial.steps:
        raise DoesNotFollow(f"trial {event.trial} of study {event.study} already has {trial.steps} requested steps")
    _check_reason(event.reason)
    _check_repeats(event, len(trial.runs))
    for run, path in zip(trial.runs, (event.path, *event.repeats), strict=True):
        _check_path(plan, path, event.steps, run.path[-1])


def _check_repeats(event: e.TrialAdded | e.TrialExtended, runs: int) -> None:
    if len(event.repeats) != runs - 1:
        raise DoesNotFollow(f"it has paths of {len(event.repeats) + 1} repeats, and trial {event.trial} has {runs}")


def _trial(plan: SearchPlan, study: StudyId, number: int) -> Trial:
    return plan.trial((study, number))


def _check_reason(reason: Mapping[str, Any]) -> None:
    for name in ("rung", "bracket"):
        if not _fits(reason.get(name), int | None):
            raise DoesNotFollow(f"the {name} in its reason is {reason[name]!r}")


def _check_path(plan: SearchPlan, path: Mapping[NodeId, int], steps: int, parent: NodeId | None) -> None:
    """Nodes follow each other, and known nodes have their known places."""
    after, path = -1 if parent is None else plan.nodes[parent].start, dict(path)
    if parent is None and next(iter(path), "") in plan.means:
        parent, after = next(iter(path.items()))
        del path[parent]  # an average, which has no steps of its own
        if after != plan.means[parent][0].step:
            raise DoesNotFollow(f"its path begins at step {after} with average {parent}, which is not its place")
    elif parent is None and next(iter(path.values()), 1) != 0:
        raise DoesNotFollow("its path does not begin at step 0")
    for name, start in path.items():
        node, before = plan.nodes.get(name), after - (parent in plan.means)
        if not before < start < steps or (node is not None and (node.parent, node.start) != (parent, start)):
            raise DoesNotFollow(f"its path has node {name} at step {start}, which is not its place")
        parent, after = name, start


def _check_average(plan: SearchPlan, event: e.AverageNamed) -> None:
    """Its name follows from its states, which are possible."""
    at = max((share.step for share in event.shares), default=-1)
    if (event.node, event.step) != (average_id(event.shares), at):
        raise DoesNotFollow(f"average {event.node} is not what the mean of its states is called")
    if missing := [share.node for share in event.shares if share.node not in plan.nodes and not plan.struck]:
        raise DoesNotFollow(f"there is no node {missing[0]}")


# -------------------------------------------------------------------------------------------------------------- chains


def _check_chain(plan: SearchPlan, event: e.ChainAssigned) -> None:
    if event.chain in plan.chains:
        raise DoesNotFollow(f"chain {event.chain} was assigned before")
    if not event.stages:
        raise DoesNotFollow("it has no stages")
    _check_slot(plan, event)
    before: e.Stage | None = None
    for stage in event.stages:
        _check_stage(plan, stage, before, is_proof=event.proof is not None)
        before = stage


def _check_slot(plan: SearchPlan, event: e.ChainAssigned) -> None:
    """A slot trains one chain, or the chains of one pack, which are assigned at once; or it is lent to one."""
    slots = {event.slot, *event.members}
    if len(slots) <= len(event.members):
        raise DoesNotFollow(f"a slot of {event.slot}, {', '.join(event.members)} is there twice")
    at_work = [chain for chain in plan.chains.values() if not chain.is_trained]
    busy = [chain for chain in at_work if not slots.isdisjoint((chain.slot, *chain.members))]
    if (event.members and busy) or len(busy) >= (plan.packing or 1) or any(chain.at != event.at for chain in busy):
        raise DoesNotFollow(f"slot {event.slot} has chain {busy[0].id}")


def _check_stage(plan: SearchPlan, stage: e.Stage, before: e.Stage | None, *, is_proof: bool) -> None:
    node, where = plan.node(stage.node), f"from step {stage.start} to {stage.end} of node {stage.node}"
    if stage.study not in plan.studies:
        raise DoesNotFollow(f"there is no study {stage.study}")
    if not node.start <= stage.start <= stage.end:
        raise DoesNotFollow(f"there is no stage {where}")
    if node.id in plan.detached:  # only a struck study used it, so the plan keeps no record of it
        return
    if any(not stage.start <= step <= stage.end for step in stage.evaluate):
        raise DoesNotFollow(f"the stage {where} does not come by the steps {stage.evaluate}")
    if before is None and not is_proof and not plan.can_begin(node, stage.start):
        raise DoesNotFollow(f"there is no checkpoint for the stage {where}")
    if before is not None and (before.end != stage.start or before.node not in (node.id, node.parent)):
        raise DoesNotFollow(f"the stage {where} does not begin where the one before it ends")


def _check_end(chain: Chain, event: e.ChainEnded) -> None:
    if event.outcome == ChainOutcome.DONE and not chain.is_trained and chain.proof is None:
        raise DoesNotFollow(f"chain {chain.id} is at stage {chain.index} of {len(chain.stages)}, and cannot be done")


def _check_place(plan: SearchPlan, event: e.Evaluated | e.CheckpointKept) -> None:
    """A worker reports on the stages of its chain, up to the one under way."""
    node = plan.node(event.node)
    for chain in plan.chains.values():
        for stage in chain.stages[: chain.index + 1]:
            if stage.node == node.id and stage.start <= event.step <= stage.end:
                return
    raise DoesNotFollow(f"no chain trains node {event.node} at step {event.step}")


NOT_DERIVED = ("by", "sample", "asked", "price", "alpha")
"""Fields of a trial's reason that are not the tuner's: who requested it, and how its configuration was chosen."""


def is_decision(event: e.Event, study: StudyId) -> bool:
    if isinstance(event, e.StudyCompleted):
        return event.study == study
    if isinstance(event, e.TrialAdded):
        return event.study == study and event.reason.get("by") == "tuner"
    if isinstance(event, e.TrialExtended):
        return event.study == study and event.reason.get("by") != "user"
    return isinstance(event, e.TrialStopped | e.TrialPrioritized) and event.study == study


def recorded_decision(event: e.Event, with_hp: bool) -> Json:
    match event:
        case e.TrialAdded():
            reason = {name: value for name, value in event.reason.items() if name not in NOT_DERIVED}
            start = {"kind": "start", "steps": event.steps, "reason": reason}
            return {**start, "hp": event.hp} if with_hp else start
        case e.TrialExtended():
            return {"kind": "promote", "trial": event.trial, "steps": event.steps, "reason": dict(event.reason)}
        case e.TrialStopped():
            return {"kind": "stop", "trial": event.trial, "reason": dict(event.reason)}
        case e.TrialPrioritized():
            return _priority_decision(event)
        case e.StudyCompleted() if event.reason:
            return {"kind": "complete", "reason": dict(event.reason)}
    return {"kind": "complete"}


def _priority_decision(made: e.TrialPrioritized | Prioritize) -> Json:
    return {"kind": "prioritize", "trial": made.trial, "priority": made.priority, "reason": dict(made.reason)}


def context_of(plan: SearchPlan, study: Study, event: e.Event) -> Context:
    """What the tuner saw beside the history when it made the decision."""
    if isinstance(event, e.StudyCompleted):
        return context_at(plan, study, event.at, 1)
    return replace(Context.from_reason(getattr(event, "reason", {})), spent=context_at(plan, study, 0.0, 1).spent)


def describe_decision(decision: Json | None) -> str:
    """A decision in a few words."""
    match decision:
        case None:
            return "to wait"
        case {"kind": "start", "steps": steps}:
            return f"a new trial for {steps} steps" + (f" with {decision['hp']}" if "hp" in decision else "")
        case {"kind": "promote", "trial": trial, "steps": steps}:
            return f"the promotion of trial {trial} to {steps} steps"
        case {"kind": "stop", "trial": trial}:
            return f"the end of trial {trial}"
        case {"kind": "prioritize", "trial": trial, "priority": priority}:
            return f"priority {priority:g} for trial {trial}"
        case {"reason": {"by": by}}:
            return f"the end of the study by its {by}"
    return "the end of the study"


class Judge:
    """Derives the decisions of a study's tuner. Raises what tuners and study files raise."""

    def __init__(self, spec: Json) -> None:
        self._driver = TunerDriver(spec)

    def decision(self, study: Study, context: Context) -> Json | None:
        """The next decision; None if there is none."""
        self._driver.observe(study, context)
        action = self._driver.next_action()
        match action:
            case NewTrial() | Start():
                drawn = Proposal(action.hp) if isinstance(action, Start) else self._driver.foreseen() or Proposal({})
                why = {name: value for name, value in drawn.reason.items() if name not in NOT_DERIVED}
                own = action.recorded_reason if isinstance(action, Start) else action.reason
                start = {"kind": "start", "steps": action.steps, "reason": {**own, **why}}
                return {**start, "hp": drawn.hp} if drawn.hp else start
            case Extend():
                return {
                    "kind": "promote",
                    "trial": action.trial,
                    "steps": action.steps,
                    "reason": dict(action.reason),
                }
            case Stop():
                return {"kind": "stop", "trial": action.trial, "reason": dict(action.reason)}
            case Prioritize():
                return _priority_decision(action)
            case End():
                return {"kind": "complete", "reason": dict(action.reason)}
        return {"kind": "complete"} if study.active == 0 else None


Numbered = tuple[int, e.Event]


def replay(
    log: Iterable[Numbered], study: StudyId, *, at: int | None = None, struck: frozenset[StudyId] | None = None
) -> Replay:
    """Replay one study of a plan's log, up to event number `at`. Other studies of the plan are folded, not judged.

    struck: the struck studies, whose decisions are not derived. If it is not given, the whole log is read first to find
    them.
    """
    replayed = Replay(study)
    judge: Judge | None = None
    events: Iterator[Numbered] = takewhile(lambda numbered: at is None or numbered[0] <= at, log)
    if struck is None:
        held = list(events)
        struck, events = struck_studies(event for _, event in held), iter(held)
    replayed.plan.struck = struck
    for number, event in events:
        try:
            judge = _follow(replayed, judge, number, event)
        except Exception as error:  # an edited file can hold anything
            replayed.difference = replayed.difference or broken_log(number, event, error)
            break
    return replayed


def _follow(replayed: Replay, judge: Judge | None, number: int, event: e.Event) -> Judge | None:
    """Compare one event with the tuner's decision, and fold it; returns the judge from there on."""
    study = replayed.study
    if judge is not None and is_decision(event, study):
        _compare(replayed, judge, number, event)
    check(replayed.plan, event)
    before = len(replayed.plan.studies[study].history) if study in replayed.plan.studies else 0
    evolve(replayed.plan, event)
    replayed.events += 1
    if study in replayed.plan.studies:
        replayed.history += lines(replayed, number, event, replayed.plan.studies[study], before)
    if isinstance(event, e.StudySubmitted | e.StudyReopened) and event.study == study:
        return Judge(event.spec)
    if isinstance(event, e.StudyIsolated) and event.study == study:  # its tuner begins anew
        return Judge(replayed.plan.studies[study].spec.json)
    return judge


def _compare(replayed: Replay, judge: Judge, number: int, event: e.Event) -> None:
    """Derive the decision that was recorded as event `number`."""
    study = replayed.plan.studies[replayed.study]
    replayed.decisions += 1
    if replayed.difference is not None:
        return
    derived = judge.decision(study, context_of(replayed.plan, study, event))
    recorded = recorded_decision(event, with_hp=derived is not None and "hp" in derived)
    if canonical_json(recorded) != canonical_json(derived):
        ours, theirs = describe_decision(recorded), describe_decision(derived)
        problem = f"event {number} was recorded as {ours}, and the tuner's decision is {theirs}"
        replayed.difference = {"event": number, "problem": problem, "recorded": recorded, "derived": derived}
