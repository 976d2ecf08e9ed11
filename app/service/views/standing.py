"""How a study stands: what ended it early, what is proven of its trainer, and how its packs did.

Where a study's weights come from, what it reads, and what it is trained with: for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.domain import proofs, results
from app.domain.events import PackingProfiled
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.states import StudyState, TrialEventKind, Verdict
from app.scheduling.packs import better_width, times_faster
from app.service.views.writable import writable
from stagetree.models.pages import Environment, Environments
from stagetree.models.studies import Exactness


def exactness(plan: SearchPlan, study: Study) -> Exactness:
    """The verdict on the trainer of a study, and how far it reaches."""
    judgement = proofs.judge(plan)
    mark = proofs.of_study(plan, study, judgement)
    return Exactness(
        verdict=judgement.verdict,
        proven_to=judgement.reach,
        text=writable(_text(judgement, mark, study)),
        mark=writable(mark),
        reason=writable(judgement.reason),
        stray=[writable(each) for each in judgement.stray],
        isolated=bool(study.isolated),
        audited=study.is_audited,
        proof_steps=study.proof_steps,
    )


def marks(plan: SearchPlan, study: Study) -> Callable[[Trial], str]:
    """What stands beside the numbers of a trial for being unproven; it is empty for a proven one."""
    judgement = proofs.judge(plan)
    return lambda trial: writable(proofs.of_trial(plan, study, trial, judgement))


def _text(judgement: proofs.Judgement, mark: str, study: Study) -> str:
    """The verdict in one line, for people."""
    if mark:
        return mark
    if judgement.verdict == Verdict.EXACT:
        return f"proven to step {judgement.reach}"
    return "nothing is shared, so there is nothing to prove" if study.trials else ""


def ending_text(study: Study) -> str | None:
    """A sentence for people; None where nothing did."""
    match ending := study.ending or _by_its_tuner(study):
        case {"by": "target", "target": target}:
            return f"target {target:g} reached: {_where(ending)}"
        case {"by": "patience", "patience": patience}:
            return f"patience at its end: no better result among the last {patience} than {_where(ending)}"
        case {"by": "max_time", "max_time": seconds}:
            return f"max_time is up: {seconds:g} seconds"
    return None


def _by_its_tuner(study: Study) -> Mapping[str, Any]:
    """Why `pop` wanted nothing more of a completed study: it ends the trials, and those ends are what is recorded."""
    tuner = study.tuner
    if study.state != StudyState.COMPLETED or tuner.get("kind") != "pop":
        return {}
    overs = {event.reason.get("over") for event in study.history if event.kind == TrialEventKind.STOP}
    if "time" in overs:
        return {"by": "max_time", "max_time": tuner.get("max_time") or study.spec["max_time"]}
    return _reached(study, tuner)


def _reached(study: Study, tuner: Mapping[str, Any]) -> Mapping[str, Any]:
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


def _where(ending: Mapping[str, Any]) -> str:
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

    found = {"device": profile.device, "lanes": width, "times_faster": speed(width), "exact": profile.exact}
    if profile.other_draws:
        found["other_draws"] = profile.other_draws
    better = better_width(trials, width, profile)
    return found if better is None else found | {"better": {"packing": better, "times_faster": speed(better)}}


SHORT = 8
"""So much of a hash is enough to tell files apart by eye."""


def lineage(study: Study) -> Json:
    """`begins`: the weights that the study begins from; `inputs`: what it reads. Without those that it has not."""
    found: Json = {}
    if study.begin is not None:
        about = {name: value for name, value in study.begin.items() if name != "key"}
        found["begins"] = {"text": begins_text(study.begin), **about}
    if study.inputs:
        found["inputs"] = study.inputs
    return found


def begins_text(begin: Mapping[str, Any]) -> str:
    """In words that follow "the study" or "the trial"."""
    whole = ", with optimizer and generators" if begin["state"] else ""
    if "file" in begin:
        name = str(begin["file"]).rpartition("/")[2]
        return f"begins from {name} ({begin['sha256'][:SHORT]}){whole}"
    return f"begins from trial {begin['trial']} of study {begin['study']} at step {begin['step']}{whole}"


def begins_shortly(begin: Mapping[str, Any]) -> str:
    """The same for a list, in words that follow "begins from"."""
    if "file" in begin:
        return f"{str(begin['file']).rpartition('/')[2]} ({begin['sha256'][:SHORT]})"
    return f"{begin['study']} trial {begin['trial']} @ {begin['step']}"


def environments(plan: SearchPlan) -> Environments:
    """What the plan was trained with, on each kind of device."""
    return Environments(
        devices=[Environment(device=each.device, **each.environment) for each in plan.environments.values()]
    )
