"""The answers for a study and its trials: pure functions from a folded plan to `stagetree.models`.

`study` is the document of `stagetree run -o json`. `reached` has the last step of each running chain, by its heartbeat;
a chain without one has just begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict, get_args

from app.domain import accounting, inexact_results, results, search_plan
from app.domain.accounting import Forecast
from app.domain.decide.studies import SIZE_FIELDS, current_size
from app.domain.events import Stage
from app.domain.failures import Group, group_text, groups
from app.domain.leaderboard import Leaderboard, build_leaderboard, decisions, display_state, prediction, state_text
from app.domain.sampler_inputs import learned_text
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import ChainId, ChainState, NodeId, StudyId, StudyState, TrialDisplayState, TrialState
from app.domain.trainer_check import unread_hp
from app.events import ChainRecord, StudyRecord
from app.service.views import outcomes
from app.service.views.outcomes import judged_result, marks, outcomes_of, pareto_fields, pareto_trials
from app.service.views.plans import point
from app.service.views.progress import ending_text, lineage, packing, progress, short_origin_text
from app.service.views.story import story
from app.service.views.trial_order import json_safe
from stagetree.models.answer import constructor_without_validation
from stagetree.models.studies import Cost, Failures, Share, Steps, StudyAnswer, StudyListed
from stagetree.models.trials import Averaged, Failure, Note, Prediction, Trial, TrialDetail

Busy = Mapping[NodeId, Sequence[Stage]]
"""By node, the stages that running chains have yet to train."""

Gather = Callable[[Iterable[Trial]], Iterable[Trial]]
"""What the trials of an answer are put in. `iter` makes each when the answer is read, which may be done once."""

UNUSED = Share(used=0, due=None)
_make_trial = constructor_without_validation(Trial)

# ------------------------------------------------------------------------------------------------------------- studies


def study(
    plan: SearchPlan,
    name: StudyId,
    *,
    now: float,
    reached: Mapping[ChainId, int] | None = None,
    expected: Forecast | None = None,
    slots: Share = UNUSED,
    with_trials: bool = True,
    gather: Gather = list,
) -> StudyAnswer:
    """A study with its results.

    now: the time of the query, for the duration of a running study. expected: the forecast, if there is one.
    """
    folded = plan.studies[name]
    board, order, cost = build_leaderboard(folded), results.rank_trials(plan, folded), accounting.cost(plan, folded)
    more = _spec_and_trials(plan, folded, board, gather) if with_trials else {}
    return StudyAnswer(
        study=folded.id,
        name=folded.spec.name,
        state=folded.state,
        story=story(plan, folded, order, cost),
        error=json_safe(folded.error),
        project=folded.project,
        owner=folded.owner,
        not_exact=json_safe(inexact_results.study_inexactness(plan, folded)),
        exactness=outcomes.exactness(plan, folded),
        ending=ending_text(folded),
        metric=folded.spec.metric,
        mode=folded.spec.mode,
        value=folded.spec.value,
        tuner=folded.spec.tuner.get("kind", ""),
        best=outcomes.best(plan, folded, order),
        counts=_counts(plan, folded, board),
        failed=sum(trial.state == TrialState.FAILED for trial in folded.trials),
        failures=failures(plan, folded),
        steps=Steps(requested=folded.requested, unique=folded.unique, executed=folded.executed),
        cost=_cost(cost),
        merge_rate=round(folded.requested / folded.unique, 3) if folded.unique else None,
        gpu_seconds=round(folded.gpu_seconds, 3),
        wall_seconds=round(folded.wall_seconds(now), 3),
        submitted_at=folded.submitted_at,
        finished_at=folded.finished_at,
        slots=slots,
        progress=progress(plan, folded, reached or {}, expected, board),
        grows_by=SIZE_FIELDS.get(folded.spec.kind),
        grows_from=current_size(folded),
        **_annotations(plan, folded),
    ).with_fields(**lineage(folded), **more, **pareto_fields(plan, folded), **_optional_fields(plan, folded, now))


def _spec_and_trials(plan: SearchPlan, study: Study, board: Leaderboard, gather: Gather) -> dict[str, Any]:
    return {"spec": study.spec.json, "trials": gather(_trials(plan, study, study.trials, board))}


def _optional_fields(plan: SearchPlan, study: Study, now: float) -> dict[str, Any]:
    """The sampler, and fields of a study with budgets, that packs, or whose trainer failed its check."""
    fields: dict[str, Any] = {"sampler": study.spec.tuner.get("sampler", "")}
    fields |= {"budget_left": accounting.budget_left(plan, study, now)} if study.spec.budgets else {}
    fields |= {"packing": packing(plan)} if plan.packing or plan.packing_reason else {}
    return fields if study.failed_check is None else fields | {"failed_check": study.failed_check}


def _counts(plan: SearchPlan, study: Study, board: Leaderboard) -> dict[str, int]:
    """The number of trials in each displayed state."""
    busy = _busy(plan)
    states = (_state(plan, study, trial, busy, board) for trial in study.trials)
    return dict.fromkeys(get_args(TrialDisplayState), 0) | Counter(states)


def _annotations(plan: SearchPlan, study: Study) -> dict[str, Any]:
    notes = [note(study, each) for each in study.notes]
    learned = [learned_text(each) for each in study.learned]
    told = {"learned": learned, "unread": json_safe(unread_hp(plan, study))}
    return told | {"notes": notes, "tags": study.tags, "attributes": json_safe(study.attributes)}


def note(study: Study, note: search_plan.Note) -> Note:
    """A note, with the position of its event in the study."""
    event = note.version - study.submitted_version + 1
    by, corrected = note.by, note.corrected_at
    return Note(event=event, time=note.at, trial=note.trial, text=note.text, by=by, corrected_at=corrected)


def _cost(cost: accounting.Waterfall) -> Cost:
    parts = {name: steps for name, steps in asdict(cost).items() if name in Cost.model_fields}
    return Cost(
        **parts,
        taken=cost.steps_taken,
        spared=cost.steps_saved,
        saved_by_sharing=cost.saved_by_sharing and round(cost.saved_by_sharing, 4),
        saved_by_stopping=cost.saved_by_stopping and round(cost.saved_by_stopping, 4),
    )


def failures(plan: SearchPlan, study: Study) -> list[Failures]:
    """The failed trials, grouped by equal errors, the most frequent first."""
    if not study.failed:
        return []
    reached = {trial.number: accounting.last_step(plan, trial) for trial in study.trials}
    return [_failures(group) for group in groups(study, reached)]


def _failures(group: Group) -> Failures:
    return Failures(
        trials=list(group.trials),
        kind=group.kind,
        place=json_safe(group.place),
        error=json_safe(group.error),
        steps=group.steps,
        tries=group.tries,
        where=json_safe(group.where),
        text=json_safe(group_text(group)),
    )


def list_entry(row: StudyRecord, live: Sequence[ChainRecord] = ()) -> StudyListed:
    """A study's entry in the list. live: the running chains."""
    return StudyListed(
        study=row.id,
        name=row.name,
        state=row.state,
        submitted_at=row.submitted_at,
        plan=row.stream,
        slots=share(row, live),
        begins="" if row.begins is None else str(json_safe(short_origin_text(row.begins))),
        project=row.project,
        owner=row.owner,
        tags=list(row.tags or ()),
    )


def share(row: StudyRecord, live: Sequence[ChainRecord]) -> Share:
    """The slots that train for a study, and its fair share while it competes with others."""
    training = {chain.slot: chain for chain in live if chain.state in (ChainState.READY, ChainState.RUNNING)}
    due = row.slots_due if row.state == StudyState.RUNNING else None
    return Share(used=sum(_payer(chain) == row.id for chain in training.values()), due=due)


def _payer(chain: ChainRecord) -> str:
    return chain.stages[min(chain.index, len(chain.stages) - 1)].study if chain.stages else ""


# -------------------------------------------------------------------------------------------------------------- trials


def trials(plan: SearchPlan, study: Study, after: int = 0, limit: int | None = None) -> list[Trial]:
    """The trials of a study, or up to `limit` of them from number `after` on."""
    chosen = study.trials[after : None if limit is None else after + limit]
    return list(_trials(plan, study, chosen, build_leaderboard(study)))


def _trials(plan: SearchPlan, study: Study, chosen: Sequence[search_plan.Trial], board: Leaderboard) -> Iterator[Trial]:
    if not chosen:  # as in the answer to its submission
        return
    busy, mark, front = _busy(plan), marks(plan, study), pareto_trials(plan, study)
    for trial in chosen:
        yield _trial(plan, study, trial, busy, board, mark(trial), front)


def trial(plan: SearchPlan, trial: search_plan.Trial) -> TrialDetail:
    """One trial with all its details."""
    study = plan.studies[trial.study]
    mark = marks(plan, study)(trial)
    shown = _trial(plan, study, trial, _busy(plan), build_leaderboard(study), mark, pareto_trials(plan, study))
    more: dict[str, Any] = {"failure": Failure(**json_safe(trial.error))} if trial.error else {}
    more |= {name: part for name, part in lineage(study).items() if name == "begins"}
    if parents := trial.reason.get("average_of"):
        more["average_of"] = [_averaged_part(plan, study, each) for each in parents]
    return TrialDetail(
        **shown,
        asked=trial.requested_steps,
        reason=trial.reason,
        decisions=json_safe(decisions(study, trial.number)),
        path=list(trial.path),
        starts=[plan.nodes[name].start for name in trial.path],
        repeats=[list(run.path) for run in trial.runs[1:]],
        curve=[point(step, metrics) for step, metrics in plan.curve(trial)],
        not_exact=json_safe(inexact_results.trial_inexactness(plan, trial)),
        notes=[note(study, each) for each in study.notes if each.trial == trial.number],
    ).with_fields(**more)


def _averaged_part(plan: SearchPlan, study: search_plan.Study, part: dict[str, Any]) -> Averaged:
    result = results.result(plan, study, study.trials[part["trial"]])
    return Averaged(**part, value=None if result is None else result.value)


class _OptionalFields(TypedDict, total=False):
    """The fields of a trial that are left out if empty."""

    prediction: Prediction
    cooldown_of: int
    merge_of: int
    error: str
    exactness: str
    metrics: dict[str, float]
    violation: float
    front: bool


def _trial(
    plan: SearchPlan,
    study: Study,
    trial: search_plan.Trial,
    busy: Busy,
    board: Leaderboard,
    mark: str,
    front: Collection[int],
) -> Trial:
    state, rung, (last, best) = (
        _state(plan, study, trial, busy, board),
        board.rung(trial.number),
        outcomes_of(plan, study, trial),
    )
    text, result = json_safe(state_text(study, trial, state, board)), best if study.spec.value == "best" else last
    more = _OptionalFields()
    if (judged := judged_result(plan, study, trial)) is not None:
        more["metrics"], more["violation"], more["front"] = *judged, trial.number in front
    if (foretold := prediction(trial, board)) is not None:
        more["prediction"] = Prediction.model_validate(foretold)
    if trial.cooldown_of is not None:
        more["cooldown_of"] = trial.cooldown_of
    if trial.merge_of is not None:
        more["merge_of"] = trial.merge_of
    if trial.error:
        more["error"] = text
    if mark:
        more["exactness"] = mark
    return _make_trial(
        trial=trial.number,
        state=state,
        standing=text,
        steps=trial.steps,
        trained=accounting.last_step(plan, trial),
        value=None if result is None else result.value,
        last=last,
        best=best,
        rung=None if rung is None else rung.number,
        rank=board.rank(trial.number),
        hp=trial.hp,
        **more,
    )


def _state(plan: SearchPlan, study: Study, trial: search_plan.Trial, busy: Busy, board: Leaderboard) -> str:
    if trial.state != TrialState.ACTIVE:
        return display_state(study, trial, board)
    return "running" if any(_passes(stage, end) for stage, end in _stages_on_path(plan, trial, busy)) else "waiting"


def _stages_on_path(plan: SearchPlan, trial: search_plan.Trial, busy: Busy) -> Iterator[tuple[Stage, int]]:
    """The running stages on a trial's path, each with the step up to which the trial shares it."""
    for name, end in plan.path_ends(trial):
        yield from ((stage, end) for stage in busy.get(name, ()))


def _passes(stage: Stage, end: int) -> bool:
    return stage.start < end or stage.start == stage.end == end


def _busy(plan: SearchPlan) -> Busy:
    busy: dict[NodeId, list[Stage]] = {}
    for chain in plan.chains.values():
        for stage in chain.stages[chain.index :] if chain.proof is None else ():
            busy.setdefault(stage.node, []).append(stage)
    return busy
