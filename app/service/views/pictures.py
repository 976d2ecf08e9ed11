"""The data of charts by column: the study's part of the tree, its rungs, its slots over time, its history.

Pure functions from a folded plan, or from its history. Positions are the study's: `version - before`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, TypeVar

from app.domain.accounting import horizon
from app.domain.leaderboard import RungRanking, build_leaderboard, display_state
from app.domain.results import measured_value, sign
from app.domain.search_plan import Node, SearchPlan, Study, Trial
from app.domain.terms import NodeId
from app.service.plan_history import Measured, PlanHistory, SlotSpan
from app.service.views.trial_order import form_text, json_safe, schedule_text
from stagetree.models import Answer
from stagetree.models.pages import (
    BetterResult,
    Decisions,
    History,
    Marks,
    RankedRung,
    Rungs,
    Schedule,
    Schedules,
    Spans,
    Timeline,
    Tree,
    TreeNodes,
    TreeTrials,
)
from stagetree.sequences import parse
from stagetree.text import RANKED_LAST

Json = dict[str, Any]
Columns = TypeVar("Columns", bound=Answer)
Point = TypeVar("Point", bound=tuple[float, ...])

MOST_FORMS = 500
"""The most nodes for which the forms of hyper-parameters are included."""

MOST_TIMES = 500
"""The number of event times that an axis needs."""


def _columns(kind: type[Columns], rows: Sequence[Json]) -> Columns:
    """The rows as one list for each field of the answer."""
    return kind(**{name: [row[name] for row in rows] for name in kind.model_fields})


# ---------------------------------------------------------------------------------------------------------- the tree


def tree(plan: SearchPlan, study: Study, points: int) -> Tree:
    """The nodes that the study's trials pass, parents first, each with up to `points` of its metric; and its trials."""
    names = [name for name in plan.nodes if name in study.max_step_by_node]
    index, board = {name: number for number, name in enumerate(names)}, build_leaderboard(study)
    passing = Counter(name for trial in study.trials for name in trial.passes)
    means = _means(plan, study)
    rows = [
        _node(plan.nodes[name], study, index, passing[name], points)
        | {"means": downsample(means.get(name, []), points)}
        for name in names
    ]
    shows_forms = len(names) <= MOST_FORMS
    return Tree(
        count=len(names),
        nodes=_columns(TreeNodes, rows),
        forms=[_forms(plan, plan.nodes[name]) for name in names] if shows_forms else [],
        trials=TreeTrials(
            node=[index[trial.path[-1]] for trial in study.trials],
            steps=[trial.steps for trial in study.trials],
            state=[display_state(study, trial, board) for trial in study.trials],
            average_of=[
                [[part["trial"], part["step"]] for part in trial.reason.get("average_of") or ()]
                for trial in study.trials
            ],
            repeats=[[index[run.path[-1]] for run in trial.runs[1:]] for trial in study.trials],
        ),
    )


def _means(plan: SearchPlan, study: Study) -> dict[NodeId, list[tuple[int, float, float]]]:
    """By node of a trial's first repeat: step, mean and deviation over its repeats."""
    means: dict[NodeId, dict[int, tuple[int, float, float]]] = {}
    for trial in study.trials if study.spec.repeats[0] > 1 else ():
        for name, end in plan.path_ends(next(trial.single_runs())):
            here = means.setdefault(name, {})
            for step in plan.nodes[name].metrics:
                if step <= end and step not in here and (mean := measured_value(plan, study, trial, step)):
                    here[step] = (step, mean.value, mean.deviation or 0.0)
    return {name: [here[step] for step in sorted(here)] for name, here in means.items()}


def _node(node: Node, study: Study, index: dict[NodeId, int], trials: int, points: int) -> Json:
    end, metric = study.max_step_by_node[node.id], study.spec.metric
    measured = ((step, _finite(node.metrics[step].get(metric))) for step in sorted(node.metrics) if step <= end)
    curve = downsample([(step, value) for step, value in measured if value is not None], points)
    return {
        "id": node.id,
        "parent": -1 if node.parent is None else index.get(node.parent, -1),
        "start": node.start,
        "end": end,
        "trained": max(node.start, min(end, node.trained)),
        "trials": trials,
        "running": [[start, stop] for start, stop in node.running.values()],
        "checkpoints": sorted(step for step in node.checkpoints if step <= end),
        "steps": [step for step, _ in curve],
        "values": [value for _, value in curve],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def downsample(curve: Sequence[Point], most: int) -> Sequence[Point]:
    """At most `most` points of a curve: its ends, and the minimum and maximum of each part."""
    if len(curve) <= most:
        return curve
    parts = max(1, (most - 2) // 2)
    inner, sample = curve[1:-1], [curve[0]]
    for number in range(parts):
        part = inner[number * len(inner) // parts : (number + 1) * len(inner) // parts]
        sample += sorted({min(part, key=_height), max(part, key=_height)})
    return [*sample, curve[-1]]


def _height(point: tuple[float, ...]) -> float:
    return point[1]


def _forms(plan: SearchPlan, node: Node) -> dict[str, str]:
    """The forms of hyper-parameters that differ from the node's parent."""
    before = {} if node.parent is None else plan.nodes[node.parent].segment.forms
    forms = node.segment.forms
    return {name: form_text(form) for name, form in sorted(forms.items()) if form != before.get(name)}


# ---------------------------------------------------------------------------------------------------------- the rungs


def rungs(study: Study) -> Rungs:
    """Each rung with its trials, the best first and failed ones last, and the promoted ones."""
    board = build_leaderboard(study)
    return Rungs(items=[_rung(rung, sign(study)) for rung in board.ladder()], telling=board.default_rung())


def _rung(rung: RungRanking, sign: int) -> RankedRung:
    order = rung.best_first(sign)
    return RankedRung(
        bracket=rung.bracket,
        rung=rung.number,
        steps=rung.steps,
        entered=rung.entered,
        trials=order,
        values=[rung.values.get(trial) for trial in order],
        promoted=sorted(rung.promoted),
    )


# --------------------------------------------------------------------------------------------------- slots and history


def timeline(plan_history: PlanHistory, study: Study, before: int, version: int) -> Timeline:
    """The spans of slots up to a moment. `own`: charged to the study. Times are Unix seconds; open ends are null."""
    spans = [span for span in plan_history.spans if before < span.begun <= version]
    first = next((number for number, span in enumerate(plan_history.spans) if span.begun > before), 0)
    rows = [_span(span, study, before, version) for span in spans]
    marks = [mark for mark in plan_history.marks if mark[2] >= first and mark[0] <= version]
    return Timeline(
        count=len(rows),
        at=plan_history.times[version - 1],
        spans=_columns(Spans, rows),
        marks=Marks(
            position=[mark[0] - before for mark in marks],
            at=[plan_history.times[mark[0] - 1] for mark in marks],
            kind=[mark[1] for mark in marks],
            span=[mark[2] - first for mark in marks],
            step=[mark[3] for mark in marks],
        ),
    )


def _span(span: SlotSpan, study: Study, before: int, version: int) -> Json:
    is_over = span.ended is not None and span.ended <= version
    return {
        "slot": span.slot,
        "members": list(span.members),
        "node": span.stage.node,
        "start": span.stage.start,
        "end": span.stage.end,
        "own": span.stage.study == study.id,
        "begun": span.begun - before,
        "ended": span.ended - before if is_over and span.ended else None,
        "begun_at": span.begun_at,
        "ended_at": span.ended_at if is_over else None,
        "outcome": span.outcome if is_over else "running",
        "proof": span.proof,
    }


def history(plan_history: PlanHistory, study: Study, before: int, version: int) -> History:
    """The decisions, the successive best results, and the times of events, up to a moment."""
    decisions = [each for each in plan_history.decisions(study.id, version) if each.version <= version]
    results = [each for each in plan_history.results(study.id, version) if each.version <= version]
    better = list(_better(results, study))
    some = range(before + 1, version, max(1, (version - before) // MOST_TIMES))
    return History(
        position=version - before,
        at=plan_history.times[version - 1],
        decisions=Decisions(
            position=[each.version - before for each in decisions],
            kind=[each.kind for each in decisions],
            trial=[each.trial for each in decisions],
            steps=[each.steps for each in decisions],
            reason=[json_safe(each.reason) for each in decisions],
        ),
        best=[
            BetterResult(
                position=each.version - before,
                at=each.at,
                slot_seconds=round(each.slot_seconds, 3),
                trial=each.trial,
                step=each.step,
                value=value,
            )
            for each, value in better
        ],
        times=[[at - before, plan_history.times[at - 1]] for at in (*some, version)],  # the first and last among them
    )


def _better(results: Sequence[Measured], study: Study) -> Iterator[tuple[Measured, float]]:
    """The results that improved on all before them. Failed trials count only if no other trial has a result."""
    best: float | None = None
    of_others = [each for each in results if study.trials[each.trial].state != RANKED_LAST]
    for each in of_others or results:
        value = _finite(each.metrics.get(study.spec.metric))
        if value is not None and (best is None or sign(study) * value < best):
            best = sign(study) * value
            yield each, value


# ----------------------------------------------------------------------------------------------------- hyper-parameters


def schedules(study: Study, trial: Trial, points: int) -> Schedules:
    """Each hyper-parameter at up to `points` of the trial's steps, the first and the last among them."""
    steps = horizon(study, trial)
    at = sorted({round(number * (steps - 1) / max(1, points - 1)) for number in range(points)}) if steps > 1 else [0]
    items = []
    for name, value in trial.hp.items():
        sequence = parse(value)
        values = [json_safe(sequence.at(step)) for step in at]
        items.append(Schedule(name=name, steps=at, values=values, text=json_safe(schedule_text(value, steps))))
    return Schedules(items=items)
