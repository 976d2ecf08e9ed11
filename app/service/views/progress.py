"""A study's progress: steps and trials done, the time left, and why it ended early.

Also its packs, and its origin and inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.domain import accounting, results
from app.domain.accounting import Forecast
from app.domain.events import PackingProfiled
from app.domain.leaderboard import Leaderboard, RungRanking, is_waiting_at_rung
from app.domain.search_plan import Chain, SearchPlan, Study, Trial
from app.domain.terms import ChainId, NodeId, StudyState, TrialEventKind, TrialState
from app.scheduling.widths import better_width, times_faster
from app.service.views.trial_order import form_text
from stagetree.models.studies import Decision, Progress, RungStanding, StepsDone, TrialsDone, UnderWay


def ending_text(study: Study) -> str | None:
    """Why the study ended early, as a sentence; None if it did not."""
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
    """Why the tuner `pop` completed a study. The log only has the ends of its trials."""
    tuner = study.spec.tuner
    if study.state != StudyState.COMPLETED or tuner.get("kind") != "pop":
        return {}
    overs = {event.reason.get("over") for event in study.history if event.kind == TrialEventKind.STOP}
    if "time" in overs:
        return {"by": "max_time", "max_time": tuner.get("max_time") or study.spec.max_time}
    return _target_ending(study, tuner)


def _target_ending(study: Study, tuner: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first result that reached the tuner's last target; empty if none did."""
    targets, sign = tuner.get("target"), results.sign(study)
    if targets is None:
        return {}
    last = targets[-1] if isinstance(targets, list) else targets
    for event in study.history:
        value = event.metrics.get(study.spec.metric) if event.kind == TrialEventKind.RESULT else None
        if value is not None and sign * (value - last) <= 0:
            return {"by": "target", "target": last, "value": value, "trial": event.trial, "steps": event.steps}
    return {}


def _result_text(ending: Mapping[str, Any]) -> str:
    steps = ending["steps"]
    return f"{ending['value']:.6g} of trial {ending['trial']} after {steps} step" + ("" if steps == 1 else "s")


Json = dict[str, Any]


def packing(plan: SearchPlan, at_once: float | None = None) -> Json:
    """The width of the study's packs and, by kind of device, their speed-up.

    at_once: the mean number of trials in a pack; None for full packs. The field `chosen` gives the reason for an
    automatic width.
    """
    width = plan.packing or 0
    trials = width if at_once is None else at_once
    devices = [_packing_on(each, width, trials) for each in plan.profiles.values()] if width else []
    view = {"width": width, "at_once": at_once, "devices": devices}
    return view | ({"chosen": plan.packing_reason} if plan.packing_reason else {})


def _packing_on(profile: PackingProfiled, width: int, trials: float) -> Json:
    """`better`: a width with which that many trials at once would be faster there; 0 is no packing.

    `exact`: whether a model was bitwise equal to itself alone, on the measured batch. `other_draws`: the first module
    that draws other random numbers in a pack than alone, if any.
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
"""The characters of a hash that people compare."""


def lineage(study: Study) -> Json:
    """`begins`: the weights that the study begins from; `inputs`: the files it reads. Empty ones are left out."""
    fields: Json = {}
    if study.begin is not None:
        about = {name: value for name, value in study.begin.items() if name != "key"}
        fields["begins"] = {"text": origin_text(study.begin), **about}
    if study.inputs:
        fields["inputs"] = study.inputs
    return fields


def origin_text(begin: Mapping[str, Any]) -> str:
    """The origin as a predicate for "the study" or "the trial"."""
    whole = ", with optimizer and generators" if begin["state"] else ""
    if "study" not in begin:
        is_adopted = "dcp" in begin or "step" in begin
        adopted = ", which another program wrote: not compared up to there" if is_adopted else ""
        return f"begins from {short_origin_text(begin)}{whole}{adopted}"
    return f"begins from trial {begin['trial']} of study {begin['study']} at step {begin['step']}{whole}"


def short_origin_text(begin: Mapping[str, Any]) -> str:
    """The origin as an object of "begins from", short enough for a list."""
    if "study" not in begin:
        path, at = str(begin.get("file") or begin["dcp"]), f" at step {begin['step']}" if "step" in begin else ""
        return f"{path.rstrip('/').rpartition('/')[2]} ({begin['sha256'][:HASH_CHARACTERS]}){at}"
    return f"{begin['study']} trial {begin['trial']} @ {begin['step']}"


NAMED = 8
"""The most trials that are listed for a stage."""

DECISIONS = (TrialEventKind.PROMOTE, TrialEventKind.STOP)


def progress(
    plan: SearchPlan, study: Study, reached: Mapping[ChainId, int], expected: Forecast | None, board: Leaderboard
) -> Progress:
    """Trials and steps done and expected, the rungs, the running stages, and the last decision."""
    running = list(_running(plan, study, reached))
    steps = _steps(plan, study, running, expected)
    trials = TrialsDone(
        # A trial is done at its first result or its end; a later extension does not change that.
        done=sum(
            trial.state != TrialState.ACTIVE or plan.metrics(trial, trial.requested_steps[0]) is not None
            for trial in study.trials
        ),
        resting=sum(is_waiting_at_rung(study, trial, board) for trial in study.trials),
        expected=_expected_trials(study, expected),
    )
    return Progress(
        trials=trials,
        steps=steps,
        seconds_left=_seconds_left(study, steps, len({run.slot for run in running})),
        rungs=[_rung(rung) for rung in board.ladder()],
        last=_last_decision(study),
        running=running,
    )


def _expected_trials(study: Study, expected: Forecast | None) -> int | None:
    """The expected number of trials; None if users or programs add them."""
    tuner = study.spec.tuner
    if study.is_final or tuner.get("kind") in ("grid", "trials"):
        return len(study.trials) or None
    number = expected.trials if expected else tuner.get("num_trials")
    return number and max(number, len(study.trials))


def _steps(plan: SearchPlan, study: Study, running: Sequence[UnderWay], expected: Forecast | None) -> StepsDone:
    """The unique steps that are trained, including running ones, and the expected total."""
    trained, left = accounting.recorded_steps(plan, study), _outstanding(plan, study)
    under_way = sum(run.step - run.start for run in running if run.study == study.id and run.proof is None)
    to_come = max(0, expected.steps - study.unique) if expected and not study.is_final else 0
    return StepsDone(done=trained + min(under_way, left), expected=trained + left + to_come)


def _outstanding(plan: SearchPlan, study: Study) -> int:
    """The unique steps that active trials still wait for."""
    ends: dict[NodeId, int] = {}
    for trial in study.trials:
        if trial.state == TrialState.ACTIVE:
            for name, end in plan.path_ends(trial):
                ends[name] = max(end, ends.get(name, 0))
    return sum(max(0, end - plan.nodes[name].trained) for name, end in ends.items())


def _seconds_left(study: Study, steps: StepsDone, slots: int) -> float | None:
    """The time left at the pace of completed stages on `slots` slots; None while these are too few."""
    left = steps.expected - steps.done
    if study.is_final or not study.executed or not slots or 20 * study.executed < study.executed + left:
        return None  # the start of the first stages would dominate the estimate
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
        tied=rung.count_tied(),
    )


def _last_decision(study: Study) -> Decision | None:
    """The tuner's last decision about a trial, with its reason."""
    event = next((event for event in reversed(study.history) if event.kind in DECISIONS), None)
    if event is None:
        return None
    return Decision(kind=event.kind, trial=event.trial, steps=event.steps, reason=dict(event.reason))


def _running(plan: SearchPlan, study: Study, reached: Mapping[ChainId, int]) -> Iterator[UnderWay]:
    chains = [chain for chain in plan.chains.values() if not chain.is_trained]
    nodes = {chain.stages[chain.index].node for chain in chains} & study.max_step_by_node.keys()
    verifies = any(chain.proof is not None for chain in chains)
    passing: dict[NodeId, list[Trial]] = {node: [] for node in nodes}
    for trial in study.trials:
        if verifies or trial.state == TrialState.ACTIVE:
            for node in nodes.intersection(trial.passes):
                passing[node].append(trial)
    for chain in chains:
        if (node := chain.stages[chain.index].node) in nodes:
            yield _running_stage(plan, chain, passing[node], reached.get(chain.id, 0))


def _running_stage(plan: SearchPlan, chain: Chain, passing: list[Trial], reached: int) -> UnderWay:
    """A slot's running stage, and the active trials it serves or the trials it verifies. `study` is charged for it."""
    stage = chain.stages[chain.index]
    step = min(max(reached, stage.start), stage.end)
    concerned = passing if chain.proof else [trial for trial in passing if trial.state == TrialState.ACTIVE]
    served = [trial.number for trial in concerned if trial.steps > stage.start]
    forms = plan.nodes[stage.node].segment.forms
    return UnderWay(
        slot=chain.slot,
        members=list(chain.members),
        study=stage.study,
        node=stage.node,
        start=stage.start,
        end=stage.end,
        step=step,
        since=chain.at,
        proof=chain.proof,
        trials=served[:NAMED],
        trial_count=len(served),
        forms={name: form_text(form) for name, form in sorted(forms.items())},
    )
