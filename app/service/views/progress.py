"""How a study stands: how far it is, how long it will take, and what ended it early.

How its packs did, where its weights come from, what it reads, and what it is trained with: for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.domain import accounting, results
from app.domain.accounting import Forecast
from app.domain.events import PackingProfiled
from app.domain.leaderboard import RungRanking, rests, standing
from app.domain.search_plan import Chain, SearchPlan, Study, Trial, TrialEvent
from app.domain.terms import ChainId, NodeId, StudyState, TrialEventKind, TrialState
from app.scheduling.widths import better_width, times_faster
from app.service.views.trial_order import form_text
from stagetree.models.pages import Environment, Environments
from stagetree.models.studies import Decision, Progress, RungStanding, StepsDone, TrialsDone, UnderWay


def ending_text(study: Study) -> str | None:
    """A sentence for people; None where nothing did."""
    match ending := study.ending or _pop_ending(study):
        case {"by": "target", "target": target}:
            return f"target {target:g} reached: {_result_text(ending)}"
        case {"by": "patience", "patience": patience}:
            return f"patience ran out: none of the last {patience} results is better than {_result_text(ending)}"
        case {"by": "max_time", "max_time": seconds}:
            return f"max_time is up: {seconds:g} seconds"
        case {"by": "max_total_steps", "max_total_steps": steps}:
            return f"max_total_steps are used up: {steps:,} steps"
        case {"by": "max_slot_seconds", "max_slot_seconds": seconds}:
            return f"max_slot_seconds are used up: {seconds:g} seconds of slots"
    return None


def _pop_ending(study: Study) -> Mapping[str, Any]:
    """Why `pop` wanted nothing more of a completed study: it ends the trials, and those ends are what is recorded."""
    tuner = study.tuner
    if study.state != StudyState.COMPLETED or tuner.get("kind") != "pop":
        return {}
    overs = {event.reason.get("over") for event in study.history if event.kind == TrialEventKind.STOP}
    if "time" in overs:
        return {"by": "max_time", "max_time": tuner.get("max_time") or study.spec["max_time"]}
    return _target_ending(study, tuner)


def _target_ending(study: Study, tuner: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first result that came to the last target of the tuner's own; empty where none did."""
    targets, sign = tuner.get("target"), results.sign(study)
    if targets is None:
        return {}
    last = targets[-1] if isinstance(targets, list) else targets
    for event in study.history:
        value = event.metrics.get(study.metric) if event.kind == TrialEventKind.RESULT else None
        if value is not None and sign * (value - last) <= 0:
            return {"by": "target", "target": last, "value": value, "trial": event.trial, "steps": event.steps}
    return {}


def _result_text(ending: Mapping[str, Any]) -> str:
    return f"{ending['value']:.6g} of trial {ending['trial']} after {ending['steps']} steps"


Json = dict[str, Any]


def packing(plan: SearchPlan, at_once: float | None = None) -> Json:
    """How many trials its packs have room for and, by kind of device, how that does there.

    at_once: how many they had on the average; None for as many as there is room for. `chosen`: why they are as wide as
    they are, where that was left to be chosen.
    """
    width = plan.packing or 0
    trials = width if at_once is None else at_once
    devices = [_packing_on(each, width, trials) for each in plan.profiles.values()] if width else []
    view = {"width": width, "at_once": at_once, "devices": devices}
    return view | ({"chosen": plan.packing_reason} if plan.packing_reason else {})


def _packing_on(profile: PackingProfiled, width: int, trials: float) -> Json:
    """`better`: another width with which so many trials at once would have got on faster there; 0 is no packing.

    `exact`: whether a model had the bits that it has alone, on the batch that was measured. `other_draws`: its
    first module that draws other random numbers in a pack than alone, if one does.
    """
    if profile.refusal:
        return {"device": profile.device, "refusal": profile.refusal}

    def speed(lanes: int) -> float:
        return round(times_faster(trials, lanes, profile), 2)

    measured = {"device": profile.device, "lanes": width, "times_faster": speed(width), "exact": profile.exact}
    if profile.other_draws:
        measured["other_draws"] = profile.other_draws
    better = better_width(trials, width, profile)
    return measured if better is None else measured | {"better": {"packing": better, "times_faster": speed(better)}}


HASH_CHARACTERS = 8
"""So much of a hash is enough to tell files apart by eye."""


def lineage(study: Study) -> Json:
    """`begins`: the weights that the study begins from; `inputs`: what it reads. Without those that it has not."""
    fields: Json = {}
    if study.begin is not None:
        about = {name: value for name, value in study.begin.items() if name != "key"}
        fields["begins"] = {"text": origin_text(study.begin), **about}
    if study.inputs:
        fields["inputs"] = study.inputs
    return fields


def origin_text(begin: Mapping[str, Any]) -> str:
    """In words that follow "the study" or "the trial"."""
    whole = ", with optimizer and generators" if begin["state"] else ""
    if "study" not in begin:
        is_adopted = "dcp" in begin or "step" in begin
        adopted = ", which another program wrote: not compared up to there" if is_adopted else ""
        return f"begins from {short_origin_text(begin)}{whole}{adopted}"
    return f"begins from trial {begin['trial']} of study {begin['study']} at step {begin['step']}{whole}"


def short_origin_text(begin: Mapping[str, Any]) -> str:
    """The same for a list, in words that follow "begins from"."""
    if "study" not in begin:
        path, at = str(begin.get("file") or begin["dcp"]), f" at step {begin['step']}" if "step" in begin else ""
        return f"{path.rstrip('/').rpartition('/')[2]} ({begin['sha256'][:HASH_CHARACTERS]}){at}"
    return f"{begin['study']} trial {begin['trial']} @ {begin['step']}"


def environments(plan: SearchPlan) -> Environments:
    """What the plan was trained with, on each kind of device."""
    return Environments(
        devices=[Environment(device=each.device, **each.environment) for each in plan.environments.values()]
    )


NAMED = 8
"""The most trials that are named for a stage."""

DECISIONS = (TrialEventKind.PROMOTE, TrialEventKind.STOP)


def progress(
    plan: SearchPlan, study: Study, reached: Mapping[ChainId, int], expected: Forecast | None = None
) -> Progress:
    """Trials and steps done of those expected, the rungs, what slots do for the study, and its last decision."""
    running = list(_running(plan, study, reached))
    steps, stands = _steps(plan, study, running, expected), standing(study)
    trials = TrialsDone(
        done=sum(_is_tried(plan, trial) for trial in study.trials),
        resting=sum(rests(study, trial, stands) for trial in study.trials),
        expected=_expected_trials(study, expected),
    )
    return Progress(
        trials=trials,
        steps=steps,
        seconds_left=_seconds_left(study, steps, len({run.slot for run in running})),
        rungs=[_rung(rung) for rung in stands.ladder()],
        last=_last_decision(study),
        running=running,
    )


def _is_tried(plan: SearchPlan, trial: Trial) -> bool:
    """Whether the trial came to its first result, or to an end. It stays so when it is asked for more."""
    return trial.state != TrialState.ACTIVE or plan.metrics(trial, trial.requested_steps[0]) is not None


def _expected_trials(study: Study, expected: Forecast | None) -> int | None:
    """How many trials the study will have had; None where that is for others to say."""
    tuner = study.tuner
    if study.is_final or tuner.get("kind") in ("grid", "trials"):
        return len(study.trials) or None
    number = expected.trials if expected else tuner.get("num_trials")
    return number and max(number, len(study.trials))


def _steps(plan: SearchPlan, study: Study, running: Sequence[UnderWay], expected: Forecast | None) -> StepsDone:
    """The different steps that are trained, those under way included, and how many there will be."""
    trained, left = accounting.on_record(plan, study), _outstanding(plan, study)
    under_way = sum(run.step - run.start for run in running if run.study == study.id)
    to_come = max(0, expected.steps - study.unique) if expected and not study.is_final else 0
    return StepsDone(done=trained + min(under_way, left), expected=trained + left + to_come)


def _outstanding(plan: SearchPlan, study: Study) -> int:
    """The different steps that trials still wait for: none of those that failed or were cancelled."""
    ends: dict[NodeId, int] = {}
    for trial in study.trials:
        if trial.state == TrialState.ACTIVE:
            for name, end in plan.ends(trial):
                ends[name] = max(end, ends.get(name, 0))
    return sum(max(0, end - plan.nodes[name].trained) for name, end in ends.items())


def _seconds_left(study: Study, steps: StepsDone, slots: int) -> float | None:
    """At the pace of its completed stages, on so many slots; None as long as these are too few to say it."""
    left = steps.expected - steps.done
    if study.is_final or not study.executed or not slots or 20 * study.executed < study.executed + left:
        return None  # the first steps, and their start, would decide it
    return float(round(left * study.gpu_seconds / study.executed / slots, 1))


def _rung(rung: RungRanking) -> RungStanding:
    return RungStanding(
        bracket=rung.bracket,
        rung=rung.number,
        steps=rung.steps,
        entered=rung.entered,
        arrived=len(rung.values),
        failed=len(rung.failed),
        promoted=len(rung.promoted),
    )


def _last_decision(study: Study) -> Decision | None:
    """The last thing that the tuner decided about a trial, with its reason."""
    event = next((event for event in reversed(study.history) if event.kind in DECISIONS), None)
    return None if event is None else _decision(event)


def _decision(event: TrialEvent) -> Decision:
    return Decision(kind=event.kind, trial=event.trial, steps=event.steps, reason=dict(event.reason))


def _running(plan: SearchPlan, study: Study, reached: Mapping[ChainId, int]) -> Iterator[UnderWay]:
    chains = [chain for chain in plan.chains.values() if not chain.is_trained]
    nodes = {chain.stages[chain.index].node for chain in chains} & study.max_step_by_node.keys()
    passing = _passing(study, nodes)
    for chain in chains:
        if (node := chain.stages[chain.index].node) in nodes:
            yield _running_stage(plan, chain, passing[node], reached.get(chain.id, 0))


def _passing(study: Study, nodes: set[NodeId]) -> dict[NodeId, list[Trial]]:
    """The study's trials that are not over, by those of the nodes that they pass."""
    by_node: dict[NodeId, list[Trial]] = {node: [] for node in nodes}
    for trial in study.trials:
        if trial.state == TrialState.ACTIVE:
            for node in nodes.intersection(trial.passes):
                by_node[node].append(trial)
    return by_node


def _running_stage(plan: SearchPlan, chain: Chain, passing: list[Trial], reached: int) -> UnderWay:
    """What a slot is doing, and for which of the trials that pass there. `study` is the one that is charged for it."""
    stage = chain.stages[chain.index]
    step = min(max(reached, stage.start), stage.end)
    served = [trial.number for trial in passing if trial.steps > stage.start]
    forms = plan.nodes[stage.node].segment.forms
    return UnderWay(
        slot=chain.slot,
        members=list(chain.members),
        study=stage.study,
        node=stage.node,
        start=stage.start,
        end=stage.end,
        step=step,
        trials=served[:NAMED],
        trial_count=len(served),
        forms={name: form_text(form) for name, form in sorted(forms.items())},
    )
