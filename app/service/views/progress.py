"""How far a study is, and how long it will take: from its trials, its rungs, and a forecast of what is to come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from app.domain import accounting
from app.domain.ids import ChainId, NodeId
from app.domain.search_plan import Chain, SearchPlan, Study, Trial, TrialEvent
from app.domain.standing import RungRanking, rests, standing
from app.domain.states import TrialEventKind, TrialState
from app.service.views.writable import form_text
from app.simulation.preview import Forecast
from stagetree.models.studies import Decision, Progress, RungStanding, StepsDone, TrialsDone, UnderWay

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
    found = expected.trials if expected else tuner.get("num_trials")
    return found and max(found, len(study.trials))


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
    """At the pace so far, on so many slots; None as long as nothing can be said."""
    if study.is_final or not study.executed or not slots:
        return None
    left = steps.expected - steps.done
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
            yield _under_way(plan, chain, passing[node], reached.get(chain.id, 0))


def _passing(study: Study, nodes: set[NodeId]) -> dict[NodeId, list[Trial]]:
    """The study's trials that are not over, by those of the nodes that they pass."""
    found: dict[NodeId, list[Trial]] = {node: [] for node in nodes}
    for trial in study.trials:
        if trial.state == TrialState.ACTIVE:
            for node in nodes.intersection(trial.path):
                found[node].append(trial)
    return found


def _under_way(plan: SearchPlan, chain: Chain, passing: list[Trial], reached: int) -> UnderWay:
    """What a slot is doing, and for which of the trials that pass there. `study` is the one that is charged for it."""
    stage = chain.stages[chain.index]
    step = min(max(reached, stage.start), stage.end)
    served = [trial.number for trial in passing if trial.steps > stage.start]
    forms = plan.nodes[stage.node].segment.forms
    return UnderWay(
        slot=chain.slot,
        study=stage.study,
        node=stage.node,
        start=stage.start,
        end=stage.end,
        step=step,
        trials=served[:NAMED],
        trial_count=len(served),
        forms={name: form_text(form) for name, form in sorted(forms.items())},
    )
