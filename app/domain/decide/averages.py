"""Averages: a node that begins with the mean of states of other nodes, evaluated and continued like any other node.

Its id is a hash of the averaged states and their weights, so studies share equal averages. It has no steps of its own:
its only state is the mean, at the last step of its sources, and continued training happens in its children. Sources
are summed in a fixed order, latest step first, then by name, because the order decides the last bits. The first source
provides everything that is not averaged, such as the optimizer's state, and its trial the values for the evaluation.

Izmailov et al. (2018, stochastic weight averaging) average weights along a trajectory, and Wortsman et al. (2022, model
soups, eq. 1 with all weights equal) average several runs from one trunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from app.domain import checkpoint_needs, results
from app.domain import events as e
from app.domain.commands import AverageTrials, Start
from app.domain.decide.studies import reopen_if_ended
from app.domain.events import Json, MeanShare
from app.domain.pricing import Price, price
from app.domain.schedule import path_from
from app.domain.search_plan import AVERAGE_OF, SearchPlan, Study, Trial, get_trial
from app.domain.terms import NodeId, Place, Refused, TrialState, average_id
from app.domain.trial_requests import TrialRequests, branch_hp, run_seeds


@dataclass(frozen=True, slots=True)
class Source:
    """A state of a trial, as one term of a mean."""

    trial: Trial
    share: MeanShare


def average(plan: SearchPlan, command: AverageTrials, trials: TrialRequests) -> Iterator[e.Event]:
    """Add a trial that begins with a mean, and extend it if `steps` requests more steps. Raises `Refused`."""
    study = plan.studies[command.study]
    if study.isolated:
        raise Refused(f"each trial of study {study.id} is trained alone, and what others are made of is not kept")
    sources = _merge_sources(_sources(plan, study, command))
    shares = tuple(source.share for source in sources)
    name, at, first = average_id(shares), shares[0].step, sources[0].trial
    hp = first.hp
    if command.hp and command.steps is None:
        raise Refused("steps: must say for how many steps in all the average is trained on, as hp is given")
    if command.steps is not None and command.steps <= at:
        raise Refused(f"steps: must be more than the {at} at which the average is, got {command.steps}")
    if command.hp and command.steps is not None:
        hp = branch_hp(first, at, command.hp, command.steps)
    yield from reopen_if_ended(study, command.time)
    if name not in plan.means:
        yield e.AverageNamed(node=name, step=at, shares=shares)
    parts = [{"trial": each.trial.number, "step": each.share.step, "weight": each.share.weight} for each in sources]
    added = trials.add(hp, at, {"by": "user", AVERAGE_OF: parts}, [{name: at}])
    yield added
    if command.steps is not None:
        nodes = path_from(hp, at, command.steps, name, study.spec.seed)
        yield trials.extend_along(added.trial, hp, command.steps, {"by": "user"}, nodes)


def average_of_run(plan: SearchPlan, study: Study, action: Start, trials: TrialRequests) -> Iterator[e.Event]:
    """Add a tuner's trial that is the mean of states of one trial, of each of its repeats its own. Raises `Refused`."""
    original = get_trial(study, action.average_of[0].trial)
    if study.isolated:
        raise Refused(f"each trial of study {study.id} is trained alone, and keeps no states of which there is a mean")
    named, paths = set[NodeId](), list[dict[NodeId, int]]()
    for run in original.single_runs():
        sources = _merge_sources(
            Source(run, MeanShare(plan.node_of(run, step).id, step, weight)) for _, step, weight in action.average_of
        )
        shares = tuple(source.share for source in sources)
        name = average_id(shares)
        if name not in plan.means and name not in named:
            yield e.AverageNamed(node=name, step=action.steps, shares=shares)
        named.add(name)
        paths.append({name: action.steps})
    reason = {"by": "tuner", **action.recorded_reason}
    yield trials.add(action.hp, action.steps, reason, paths, run_seeds(original))


def _sources(plan: SearchPlan, study: Study, command: AverageTrials) -> Iterator[Source]:
    """The requested states with their weights."""
    places = list(_places(plan, study, command))
    weights = command.weights or (1.0,) * len(places)
    if len(weights) != len(places):
        raise Refused(f"weights: must be as many as the {len(places)} states, got {len(weights)}")
    if not all(isfinite(weight) and weight > 0 for weight in weights):
        raise Refused(f"weights: must be finite and more than 0, got {', '.join(map(str, weights))}")
    for (trial, step), weight in zip(places, weights, strict=True):
        for node in plan.nodes_of(trial, step):
            yield Source(trial, MeanShare(node.id, step, float(weight)))


def _places(plan: SearchPlan, study: Study, command: AverageTrials) -> Iterator[tuple[Trial, int]]:
    """The requested trials, each with the step of its state."""
    chosen = _choose_trials(plan, study, command)
    if command.last is None:
        yield from ((trial, _result_step(plan, study, trial)) for trial in chosen)
        return
    if len(chosen) != 1:
        raise Refused(f"last: must be of one trial, got {len(chosen)}")
    states = list(checkpoint_needs.states_of(plan, chosen[0]))
    if not 2 <= command.last <= len(states):
        text = f"trial {chosen[0].number} has {len(states)} states that are kept; see keep_at and keep_every"
        raise Refused(f"last: must be from 2 to the number of states, got {command.last}: {text}")
    yield from ((chosen[0], step) for step in states[-command.last :])


def _choose_trials(plan: SearchPlan, study: Study, command: AverageTrials) -> list[Trial]:
    if bool(command.trials) == (command.best is not None):
        raise Refused("trials: must name the trials to average, or best say how many of the best, and not both")
    if command.best is None:
        chosen = [get_trial(study, number) for number in command.trials]
    else:
        chosen = [trial for trial, _ in _rank_candidates(plan, study)[: command.best]]
        if len(chosen) < command.best:
            raise Refused(f"best: must be at most the {len(chosen)} trials that have a result, got {command.best}")
    for trial in chosen:
        if trial.state in (TrialState.FAILED, TrialState.CANCELLED):
            raise Refused(f"trials: trial {trial.number} is {trial.state}, and has no state to average")
    return chosen


def _rank_candidates(plan: SearchPlan, study: Study) -> list[tuple[Trial, results.MeasuredValue]]:
    """The trials to choose from, best first. Averages are left out, since they would count their parts twice."""
    gone = (TrialState.FAILED, TrialState.CANCELLED)
    ranked = results.rank_trials(plan, study)
    return [each for each in ranked if not is_average(plan, each[0]) and each[0].state not in gone]


def _result_step(plan: SearchPlan, study: Study, trial: Trial) -> int:
    """The step of the trial's value; without a value, its last requested step."""
    measured = results.result(plan, study, trial)
    return trial.steps if measured is None else measured.step


def _merge_sources(sources: Iterable[Source]) -> list[Source]:
    """The distinct states in the order of summation; equal weights become 1. Raises `Refused` for fewer than two."""
    by_place = dict[Place, Source]()
    for each in sources:
        name, step, weight = each.share
        before = by_place[name, step].share.weight if (name, step) in by_place else 0.0
        by_place[name, step] = Source(each.trial, MeanShare(name, step, before + weight))
    if len(by_place) < 2:
        raise Refused("an average needs at least two different states: these trials have one")
    are_equal = len({each.share.weight for each in by_place.values()}) == 1
    ordered = sorted(by_place.values(), key=lambda each: (-each.share.step, each.share.node))
    return [Source(each.trial, each.share._replace(weight=1.0)) for each in ordered] if are_equal else ordered


# ------------------------------------------------------------------------------------------------- consequences


def is_average(plan: SearchPlan, trial: Trial) -> bool:
    """Whether a trial begins with a mean of states."""
    return trial.path[0] in plan.means


def branch_path(plan: SearchPlan, trial: Trial, at: int, hp: Json, steps: int) -> dict[NodeId, int] | None:
    """The path of a branch of an average; None for a branch of any other trial. Raises `Refused`."""
    if not is_average(plan, trial):
        return None
    begin, name = plan.start_step(trial), trial.path[0]
    if at < begin:
        raise Refused(f"at: must be at least {begin}, since trial {trial.number} begins there as an average, got {at}")
    return {name: begin, **path_from(hp, begin, steps, name, plan.studies[trial.study].spec.seed)}


def price_of(
    plan: SearchPlan, study: Study, paths: Sequence[dict[NodeId, int]], steps: int, shares: Sequence[MeanShare]
) -> Price:
    """The price of a trial that may begin with an average: its own steps, and those to restore deleted sources."""
    spans = dict[NodeId, tuple[int, int]]()
    node = plan.nodes.get(next(iter(paths[0])))
    for share in shares if node is None or not node.resumable else ():
        resumed = max((each.step for each in checkpoint_needs.latest_before(plan, share.node, share.step)), default=0)
        for each, leaves in plan.path_to(share.node, share.step):
            begin, end = max(each.start, resumed), min(leaves, each.reached)
            if end > begin:
                first, last = spans.get(each.id, (begin, end))
                spans[each.id] = min(first, begin), max(last, end)
    after = price(plan, study, paths, steps)
    return replace(after, again=after.again + sum(end - begin for begin, end in spans.values()))
