"""Which checkpoints may be deleted. `app.scheduling.retention` chooses among them.

A checkpoint is required while a running chain begins with it, while a trial waits for steps that follow from it, and
while it is an average, the final state of one of a study's best trials, or a state that `keep_at` asks for. It is
orphaned once all studies whose trials reached it are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from app.domain import commands as c
from app.domain import events as e
from app.domain import results
from app.domain.objectives import BestSoFar
from app.domain.search_plan import Checkpoint, Node, PlacedCheckpoint, SearchPlan, Study, Trial
from app.domain.terms import NodeId, Place


def required_keys(plan: SearchPlan) -> set[str]:
    """The keys of the checkpoints that must not be deleted."""
    used = [*_start_checkpoints(plan), *_checkpoints_of_waiting(plan), *_checkpoints_to_keep(plan)]
    promised = [
        place for study in plan.studies.values() if not study.deleted for place in _best_checkpoints(plan, study)
    ]
    return {place.key for place in (*used, *promised)}


def decide(plan: SearchPlan, command: c.ReleaseCheckpoints | c.RecordDeleted) -> Iterator[e.Event]:
    """The events that follow from a command about checkpoints."""
    yield from _release(plan, command) if isinstance(command, c.ReleaseCheckpoints) else _record_deleted(plan, command)


def _release(plan: SearchPlan, command: c.ReleaseCheckpoints) -> Iterator[e.CheckpointReleased]:
    """Release the chosen checkpoints, except any that are required since."""
    used = required_keys(plan) | command.assigned_keys
    for place in command.checkpoints:
        if place.key not in used and find(plan, place) is not None:
            yield e.CheckpointReleased(node=place.node, step=place.step, key=place.key, reason=command.reason)


def _record_deleted(plan: SearchPlan, command: c.RecordDeleted) -> Iterator[e.Event]:
    """Record the deletions that are not recorded yet."""
    for place in [plan.released[key] for key in command.keys if key in plan.released]:
        yield e.CheckpointDropped(node=place.node, step=place.step, key=place.key, reason="deleted")
    for place in idle_weights(plan):
        if place.key in command.keys:
            yield e.WeightsDropped(key=place.key)


def orphaned_checkpoints(plan: SearchPlan) -> Iterator[PlacedCheckpoint]:
    """The checkpoints that only deleted studies reached."""
    studies = list(plan.studies.values())
    deleted, others = [s for s in studies if s.deleted], [s for s in studies if not s.deleted]
    for node in plan.nodes.values() if deleted else ():
        begin, end = _last_step(others, node), _last_step(deleted, node)
        yield from (
            PlacedCheckpoint(node.id, step, each) for step, each in node.checkpoints.items() if begin < step <= end
        )


def checkpoints(plan: SearchPlan) -> Iterator[PlacedCheckpoint]:
    """All checkpoints; a node comes before its children."""
    for node in plan.nodes.values():
        yield from (PlacedCheckpoint(node.id, step, node.checkpoints[step]) for step in sorted(node.checkpoints))


def weights_in_use(plan: SearchPlan) -> set[str]:
    """The keys of the initial weights of all studies that are not deleted."""
    studies = (study for study in plan.studies.values() if not study.deleted and study.id not in plan.struck)
    return {study.begin["key"] for study in studies if study.begin is not None}


def idle_weights(plan: SearchPlan) -> list[PlacedCheckpoint]:
    """The other initial weights, at step 0 of no node. New studies bring their own, so these stay unused."""
    used = weights_in_use(plan) if plan.weights else set()
    return [PlacedCheckpoint(NodeId(""), 0, weights) for key, weights in plan.weights.items() if key not in used]


def recorded_keys(plan: SearchPlan) -> set[str]:
    """The keys of all recorded objects: kept ones, and released ones that are still to be deleted."""
    released = {each.key for entry in plan.released.values() for each in entry.checkpoint.objects}
    return {each.key for each in kept_objects(plan)} | released


def kept_objects(plan: SearchPlan) -> list[e.StoredPart]:
    nodes = (*plan.nodes.values(), *plan.detached.values())
    checkpoints = [*(each for node in nodes for each in node.checkpoints.values()), *plan.weights.values()]
    return [each for checkpoint in checkpoints for each in checkpoint.objects]


def states_of(plan: SearchPlan, trial: Trial) -> dict[int, PlacedCheckpoint]:
    """The checkpoints on a trial's path up to its last requested step, by step; of its first repeat."""
    states: dict[int, PlacedCheckpoint] = {}
    for name, end in plan.path_ends(next(trial.single_runs())):
        here = plan.nodes[name].checkpoints
        states |= {step: PlacedCheckpoint(name, step, here[step]) for step in sorted(here) if step <= end}
    return states


def latest_before(plan: SearchPlan, name: NodeId, step: int) -> Iterator[PlacedCheckpoint]:
    """The checkpoint from which a node is trained to a step: the last one on its path, or none to train from step 0.

    If the path begins with an average that is not kept, the last one on the path to each of its states.
    """
    places = [(name, step)]
    while places:
        name, step = places.pop()
        node = plan.node(name)
        at = max((at for at in node.checkpoints if at <= step), default=None)
        if at is not None:
            yield PlacedCheckpoint(node.id, at, node.checkpoints[at])
        else:
            places += plan.origins(node)


def find(plan: SearchPlan, place: PlacedCheckpoint) -> Checkpoint | None:
    """The checkpoint at that place, if its key is still the same."""
    node = plan.nodes.get(place.node) or plan.detached.get(place.node)
    checkpoint = node.checkpoints.get(place.step) if node else None
    return checkpoint if checkpoint is not None and checkpoint.key == place.key else None


def _start_checkpoints(plan: SearchPlan) -> Iterator[PlacedCheckpoint]:
    """The checkpoints that running chains begin with."""
    for chain in plan.chains.values():
        first = chain.stages[0]
        if first.node in plan.nodes:
            yield from latest_before(plan, first.node, first.start)


def _checkpoints_of_waiting(plan: SearchPlan) -> Iterator[PlacedCheckpoint]:
    """The checkpoints from which awaited steps are trained or evaluated."""
    for node in plan.nodes.values():
        for step in node.waiting:
            yield from latest_before(plan, node.id, step)


def steps_to_keep(plan: SearchPlan, node: NodeId, begin: int, end: int) -> list[int]:
    """The steps of a node in (begin, end] whose states studies want, and that are not kept yet."""
    steps = set[int]().union(*(study.kept_steps(node, begin, end) for study in _studies_keeping_states(plan)))
    best = (_best_on_path(plan, study, node, end) for study in _studies_keeping_best(plan, {node}))
    steps |= {step for step in _steps_to_merge(plan, node) if begin < step <= end}
    steps |= {step for step, its in filter(None, best) if its.id == node and step > begin}
    return sorted(steps - plan.nodes[node].checkpoints.keys())


def best_so_far(plan: SearchPlan, nodes: Sequence[NodeId], start: int) -> tuple[BestSoFar, ...]:
    """The best result on the path to `start` in the first node, for each study that keeps best states."""
    found = ((study, _best_on_path(plan, study, nodes[0], start)) for study in _studies_keeping_best(plan, {*nodes}))
    return tuple(
        BestSoFar(
            study.spec.objective_fields,
            best[1].metrics[best[0]] if best else {},
            study.spec.eval_every,
            _requested_steps(study, {*nodes}),
            study.spec.target if study.spec.evaluations_reach_target else None,
        )
        for study, best in found
    )


def _requested_steps(study: Study, nodes: set[NodeId]) -> tuple[int, ...]:
    """The requested steps of the study's trials that pass these nodes."""
    trials = (trial for trial in study.trials if not nodes.isdisjoint(trial.passes))
    return tuple(sorted({step for trial in trials for step in trial.requested_steps}))


def _best_on_path(plan: SearchPlan, study: Study, name: NodeId, end: int) -> tuple[int, Node] | None:
    """The step with the best result on the path to a step of a node, and its node."""
    asked = _requested_steps(study, {name})
    measured = ((step, node) for node, last in plan.path_to(name, end) for step in node.metrics if step <= last)
    measured = ((step, node) for step, node in measured if study.spec.evaluates(step) or step in asked)
    scored = ((study.spec.objectives.score(node.metrics[step]), step, node) for step, node in measured)
    best = min(
        ((score, step, node) for score, step, node in scored if score is not None), key=itemgetter(0, 1), default=None
    )
    return best and best[1:]


def _studies_keeping_best(plan: SearchPlan, nodes: set[NodeId]) -> list[Study]:
    """The studies with trials in these nodes that keep the best state of each trial."""
    studies = (study for study in plan.studies.values() if study.keeps_best_states)
    return [study for study in studies if not nodes.isdisjoint(study.max_step_by_node)]


def _checkpoints_to_keep(plan: SearchPlan) -> Iterator[PlacedCheckpoint]:
    for name, step in _places_to_merge(plan):
        if (state := plan.nodes[name].checkpoints.get(step)) is not None:
            yield PlacedCheckpoint(name, step, state)
    studies = _studies_keeping_states(plan)
    for place in checkpoints(plan) if studies else ():
        if any(study.kept_steps(place.node, place.step - 1, place.step) for study in studies):
            yield place


def _places_to_merge(plan: SearchPlan, passing: NodeId | None = None) -> Iterator[Place]:
    """The states whose means will be values of trials at rungs; of the trials that pass a node, if one is given."""
    for study in plan.studies.values():
        for number, rung in study.unmerged.items() if not study.is_final else ():
            trial = study.trials[number]
            if passing is None or passing in trial.passes:
                for step in study.spec.merged_steps(rung):
                    yield from ((node.id, step) for node in plan.nodes_of(trial, step))


def _steps_to_merge(plan: SearchPlan, node: NodeId) -> set[int]:
    """The steps of a node whose states will be part of means at rungs."""
    return {step for name, step in _places_to_merge(plan, node) if name == node}


def _studies_keeping_states(plan: SearchPlan) -> list[Study]:
    """The studies that keep states of all trials."""
    return [study for study in plan.studies.values() if study.spec.keeps_states and not study.deleted]


def _best_checkpoints(plan: SearchPlan, study: Study) -> Iterator[PlacedCheckpoint]:
    """The final states of the best trials and the states of their best results; and averages, except at rungs."""
    merges = {name for trial in study.trials if trial.merge_of is not None for name in trial.passes}
    for name in (plan.means.keys() & study.max_step_by_node.keys()) - merges:
        yield from (PlacedCheckpoint(name, step, state) for step, state in plan.nodes[name].checkpoints.items())
    for trial, result in results.rank_trials(plan, study)[: study.spec.keep_best] if study.spec.keep_best else []:
        states = states_of(plan, trial)
        yield from (states[step] for step in {max(states, default=0), result.step} & states.keys())


def _last_step(studies: Iterable[Study], node: Node) -> int:
    """The last step of a node that trials of these studies request."""
    return max((study.max_step_by_node.get(node.id, -1) for study in studies), default=-1)
