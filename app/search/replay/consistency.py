"""Checks that an event can follow the events before it: it finds logs that were cut, reordered or edited.

Names, times, costs and keys are only checked for being possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from app.domain import checkpoint_needs
from app.domain import events as e
from app.domain.search_plan import Chain, SearchPlan, Trial
from app.domain.terms import ChainOutcome, NodeId, StudyId, average_id
from app.search.replay.report import Json

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
