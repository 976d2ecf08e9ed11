"""What people are shown: pure functions from a folded plan to JSON. `study` is the document of `stagetree run -o json`.

`reached` gives the last step done by each chain under way, by its heartbeat; a chain that is not in it has just begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any, get_args

from app.api.views.endings import ending_text
from app.api.views.forms import form_text
from app.api.views.lineage import begins_shortly, lineage
from app.api.views.packing import packing
from app.api.views.progress import progress
from app.api.views.proofs import exactness as proven
from app.api.views.proofs import marks
from app.api.views.writable import writable
from app.domain import accounting, exactness, results
from app.domain.events import Metrics, Stage
from app.domain.failures import group_text, groups
from app.domain.ids import ChainId, NodeId, StudyId
from app.domain.search_plan import Node, Note, SearchPlan, Study, Trial
from app.domain.stage_tree import Place, TreeStage, build_stage_tree, critical_path_steps
from app.domain.standing import Standing, meaning, prediction, standing
from app.domain.states import ChainState, ShownTrialState, StudyState, TrialState
from app.events.codec import encode
from app.events.log import StoredEvent
from app.events.rows.ports import ChainRecord
from app.events.tables import StudyRow
from app.simulation.forecast import Forecast

Json = dict[str, Any]
Busy = Mapping[NodeId, Sequence[Stage]]
"""For each node, the stages of chains under way that are still to be trained in it."""

# ------------------------------------------------------------------------------------------------------------- studies


def study(
    plan: SearchPlan,
    name: StudyId,
    *,
    now: float,
    reached: Mapping[ChainId, int] | None = None,
    expected: Forecast | None = None,
    with_trials: bool = True,
) -> Json:
    """A study with its results so far. `now` is when it is looked at, for the time a running one has taken.

    expected: how far it will go, where that is known.
    """
    found = plan.studies[name]
    view = {
        "study": found.id,
        "name": found.spec.get("name", ""),
        "state": found.state,
        "error": writable(found.error),
        "not_exact": writable(exactness.of_study(plan, found)),
        "exactness": proven(plan, found),
        "ending": ending_text(found),
        "metric": found.metric,
        "mode": found.spec.get("mode", ""),
        "value": found.spec.get("value", "last"),
        "tuner": found.tuner.get("kind", ""),
        "best": best(plan, found),
        "counts": _counts(plan, found),
        "failed": sum(trial.state == TrialState.FAILED for trial in found.trials),
        "failures": failures(plan, found),
        **costs(plan, found),
        "wall_seconds": round(found.wall_seconds(now), 3),
        "submitted_at": found.submitted_at,
        "finished_at": found.finished_at,
        "progress": progress(plan, found, reached or {}, expected),
        "notes": [_note(found, each) for each in found.notes],
    }
    view |= lineage(found)
    if plan.packing or plan.packing_reason:
        view["packing"] = packing(plan)
    return view | ({"spec": found.spec, "trials": trials(plan, found)} if with_trials else {})


def _counts(plan: SearchPlan, study: Study) -> dict[str, int]:
    """How many trials are in each of the states that they are shown in."""
    busy = _busy(plan)
    return dict.fromkeys(get_args(ShownTrialState), 0) | Counter(_state(plan, trial, busy) for trial in study.trials)


def _note(study: Study, note: Note) -> Json:
    """What somebody wrote down, with the position of its event in the study."""
    event = note.version - study.submitted_version + 1
    return {"event": event, "time": note.at, "trial": note.trial, "text": note.text}


def costs(plan: SearchPlan, study: Study) -> Json:
    """The study's steps, and the waterfall of `app.domain.accounting`."""
    steps: Json = {"requested": study.requested, "unique": study.unique, "executed": study.executed}
    rate = round(study.requested / study.unique, 3) if study.unique else None
    cost = accounting.cost(plan, study)
    shares = {"saved_by_sharing": cost.by_sharing, "saved_by_stopping": cost.by_stopping}
    rounded = {name: share and round(share, 4) for name, share in shares.items()}
    waterfall = {**asdict(cost), "taken": cost.taken, **rounded}
    return {"steps": steps, "cost": waterfall, "merge_rate": rate, "gpu_seconds": round(study.gpu_seconds, 3)}


def failures(plan: SearchPlan, study: Study) -> list[Json]:
    """The failed trials, those with equal errors together, the most frequent first."""
    if not study.failed:
        return []
    reached = {trial.number: accounting.last_step(plan, trial) for trial in study.trials}
    return [writable({**asdict(group), "text": group_text(group)}) for group in groups(study, reached)]


def best(plan: SearchPlan, study: Study) -> Json | None:
    """The best trial by the study's mode, ties to the lower number; None as long as none has a value."""
    found = results.best(plan, study)
    if found is None:
        return None
    trial, (step, value) = found
    return {"trial": trial.number, "value": value, "steps": step, "hp": trial.hp, **_results(plan, study, trial)}


def _results(plan: SearchPlan, study: Study, trial: Trial) -> Json:
    """The trial's last and best results, each with its step."""
    last, best = results.last(plan, study, trial), results.best_of_curve(plan, study, trial)
    return {"last": last and last._asdict(), "best": best and best._asdict()}


def listed(row: StudyRow, live: Sequence[ChainRecord] = ()) -> Json:
    """A study in a list of them; `live` are the chains under way."""
    facts = {"name": row.name, "state": row.state, "submitted_at": row.submitted_at}
    begins = {} if row.begins is None else {"begins": writable(begins_shortly(row.begins))}
    return {"study": row.id, **facts, "plan": row.stream, "slots": share(row, live), **begins}


def share(row: StudyRow, live: Sequence[ChainRecord]) -> Json:
    """The slots that train for a study, and its share of them while it competes with others."""
    training = {chain.slot: chain for chain in live if chain.state in (ChainState.READY, ChainState.RUNNING)}
    due = row.slots_due if row.state == StudyState.RUNNING else None
    return {"used": sum(_payer(chain) == row.id for chain in training.values()), "due": due}


def _payer(chain: ChainRecord) -> str:
    stages = chain.assignment["stages"]
    return str(stages[min(chain.index, len(stages) - 1)]["study"])


# -------------------------------------------------------------------------------------------------------------- trials


def trials(plan: SearchPlan, study: Study, after: int = 0, limit: int | None = None) -> list[Json]:
    """The trials of a study, or up to `limit` of them from number `after` on."""
    busy, stands, mark = _busy(plan), standing(study), marks(plan, study)
    wanted = study.trials[after : None if limit is None else after + limit]
    return [_trial(plan, study, trial, busy, stands) | mark(trial) for trial in wanted]


def trial(plan: SearchPlan, trial: Trial) -> Json:
    """All there is to know of one trial."""
    study = plan.studies[trial.study]
    curve = [{"step": step, "metrics": writable(_finite(metrics))} for step, metrics in plan.curve(trial)]
    detail = {"asked": trial.requested_steps, "reason": trial.reason, "path": trial.path, "curve": curve}
    detail["not_exact"] = writable(exactness.of_trial(plan, trial))
    detail["notes"] = [_note(study, each) for each in study.notes if each.trial == trial.number]
    shown = _trial(plan, study, trial, _busy(plan), standing(study))
    shown |= {name: part for name, part in lineage(study).items() if name == "begins"}
    return shown | marks(plan, study)(trial) | detail | ({"failure": writable(trial.error)} if trial.error else {})


def _trial(plan: SearchPlan, study: Study, trial: Trial, busy: Busy, stands: Standing) -> Json:
    found, state, rung = results.result(plan, study, trial), _state(plan, trial, busy), stands.rung(trial.number)
    view: Json = {
        "trial": trial.number,
        "state": state,
        "standing": writable(meaning(study, trial, state, stands)),
        "steps": trial.steps,
        "trained": accounting.last_step(plan, trial),
        "value": None if found is None else found.value,
        **_results(plan, study, trial),
        "rung": None if rung is None else rung.number,
        "rank": stands.rank(trial.number),
        "hp": trial.hp,
    }
    judged = prediction(trial, stands)
    view |= {} if judged is None else {"prediction": judged}
    return view | ({"error": writable(view["standing"])} if trial.error else {})


def _state(plan: SearchPlan, trial: Trial, busy: Busy) -> str:
    if trial.state != "active":
        return trial.state
    return "running" if any(_passes(stage, end) for stage, end in _on_path(plan, trial, busy)) else "waiting"


def _on_path(plan: SearchPlan, trial: Trial, busy: Busy) -> Iterator[tuple[Stage, int]]:
    """The stages under way in the nodes of a trial, each with the step up to which the trial goes along."""
    for name, end in plan.ends(trial):
        yield from ((stage, end) for stage in busy.get(name, ()))


def _passes(stage: Stage, end: int) -> bool:
    return stage.start < end or stage.start == stage.end == end


def _busy(plan: SearchPlan) -> Busy:
    busy: dict[NodeId, list[Stage]] = {}
    for chain in plan.chains.values():
        for stage in chain.stages[chain.index :] if chain.proof is None else ():
            busy.setdefault(stage.node, []).append(stage)
    return busy


def _finite(metrics: Mapping[str, float | None]) -> Metrics:
    return {name: value if value is not None and isfinite(value) else None for name, value in metrics.items()}


# -------------------------------------------------------------------------------------------------- plan and stage tree


def plan(plan: SearchPlan, stream: str) -> Json:
    """The whole search plan, with all studies on it."""
    opened = plan.opened
    assert opened is not None
    common: Json = {"trainer": opened.trainer, "trainer_version": opened.trainer_version}
    common |= {"trainer_args": opened.trainer_args, "seed": opened.seed}
    nodes = [_node(plan, node) for node in plan.nodes.values()]
    return {
        "plan": stream,
        **common,
        "studies": [study.id for study in plan.studies.values() if not study.deleted],
        "nodes": nodes,
    }


def _node(plan: SearchPlan, node: Node) -> Json:
    return {
        "id": node.id,
        "parent": node.parent,
        "start": node.start,
        "forms": {name: form_text(form) for name, form in sorted(node.segment.forms.items())},
        "studies": [
            study.id for study in plan.studies.values() if node.id in study.max_step_by_node and not study.deleted
        ],
        "checkpoints": sorted(node.checkpoints),
        "metrics": [{"step": step, "metrics": writable(_finite(node.metrics[step]))} for step in sorted(node.metrics)],
        "waiting": [
            {"step": step, "study": study, "trial": number}
            for step in sorted(node.waiting)
            for study, number in sorted(node.waiting[step])
        ],
        "running": [
            {"chain": chain, "start": start, "end": end} for (chain, _), (start, end) in sorted(node.running.items())
        ],
    }


def stage_tree(plan: SearchPlan, study: Study) -> Json:
    """The outstanding stages that serve the study, parents first."""
    stages = build_stage_tree(plan)
    serving = _serving(plan, study, stages)
    wanted = [stage for stage in stages if (stage.node, stage.end) in serving]
    return {"stages": [_stage(stage) for stage in wanted], "critical_path_steps": critical_path_steps(wanted)}


def _serving(plan: SearchPlan, study: Study, stages: Sequence[TreeStage]) -> set[Place]:
    """The ends of the stages that lead to a step for which a trial of the study waits."""
    ending = {(stage.node, stage.end): stage for stage in stages}
    found: set[Place] = set()
    for name in study.max_step_by_node:
        for step, keys in plan.nodes[name].waiting.items():
            place: Place | None = (name, step) if any(key[0] == study.id for key in keys) else None
            while place in ending and place not in found:
                found.add(place)
                place = ending[place].parent
    return found


def _stage(stage: TreeStage) -> Json:
    parent = None if stage.parent is None else {"node": stage.parent[0], "step": stage.parent[1]}
    return {"node": stage.node, "start": stage.start, "end": stage.end, "parent": parent, "ready": stage.ready}


# -------------------------------------------------------------------------------------------------------------- events


def event(recorded: StoredEvent, before: int) -> Json:
    """A fact in its place: in its study, which was submitted behind version `before` of its plan, and in the plan."""
    name, _, data = encode(recorded.event)
    place = {"position": recorded.version - before, "version": recorded.version}
    return {**place, "type": name, "data": writable(data), "at": recorded.at}
