"""Algorithm 1 of the TreeML paper: the outstanding stages, rebuilt from the plan and never stored.

This is the readable definition. The scheduler updates the same result incrementally (`app.scheduling.frontier`), and
its tests compare the two.

A promoted trial resumes from the last state saved on its path. Schedules predict where known trials would branch off if
they were extended. A chain that trains past such a step saves the state there, so that the trial can resume from it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from operator import itemgetter

from app.domain.schedule import upcoming_nodes
from app.domain.search_plan import NO_PROGRESS, Node, Progresses, SearchPlan, Study, Trial, TrialEvent
from app.domain.terms import NodeId, StudyId, TrialEventKind, TrialState
from app.domain.terms import Place as Place


@dataclass(frozen=True, slots=True)
class TreeStage:
    """Train `node` from `start` to `end`.

    parent: the stage that ends where this one begins; for an average, the last stage that it needs. None if the stage
    begins at a checkpoint, at step 0, or at the end of a running stage. ready: whether it can begin now.
    """

    node: NodeId
    start: int
    end: int
    parent: Place | None
    ready: bool


def build_stage_tree(plan: SearchPlan, progress: Progresses = NO_PROGRESS) -> list[TreeStage]:
    """The stage tree for all requests of running studies that no running stage will serve (BuildStageTree).

    A running stage does not serve steps that it has passed, according to `progress`. Parents come before their
    children. Each stage is the part between two needed places, so no step is in two stages.
    """
    begins: dict[Place, Place] = {}  # the lookup table L: needed place -> place to resume from
    for node in plan.nodes.values():
        for step in node.waiting:
            if any(plan.waiting_studies(node, step)):
                _find_latest_checkpoint(plan, (node.id, step), begins, progress)
    return sorted(
        _build_tree(plan, begins),
        key=lambda stage: (stage.start, stage.end, _average_depth(plan, stage.node), stage.node),
    )


def _average_depth(plan: SearchPlan, name: NodeId) -> int:
    """The depth of nested averages up to this one, which may all be at one step; 0 for other nodes."""
    shares = plan.means.get(name, ())
    return 1 + max(_average_depth(plan, share.node) for share in shares) if shares else 0


def _find_latest_checkpoint(plan: SearchPlan, place: Place, begins: dict[Place, Place], progress: Progresses) -> None:
    """FindLatestCheckpoint, as a loop over the ancestors. An average has several parents."""
    places = [place]
    while places:
        place = places.pop()
        node, step = plan.nodes[place[0]], place[1]
        if place in begins or node.covers(step, progress) or step in node.saving:
            continue
        resume = latest_state(node, step, progress)
        begins[place] = (node.id, node.start if resume is None else resume)
        if resume is None:
            places += plan.missing_states(node)


def latest_state(node: Node, step: int, progress: Progresses = NO_PROGRESS) -> int | None:
    """The last step up to `step` with a state of the node that is saved, or that a running stage will save."""
    return max((at for at in (*node.resumable, *node.upcoming_states(progress)) if at <= step), default=None)


def _build_tree(plan: SearchPlan, begins: dict[Place, Place]) -> Iterator[TreeStage]:
    """BuildTree: cuts the path from each place to resume from at the needed places, and links stages to parents."""
    reached: dict[Place, list[int]] = defaultdict(list)
    for (name, step), (_, resume) in begins.items():
        reached[name, resume].append(step)
    for (name, resume), steps in reached.items():
        node, start = plan.nodes[name], resume
        for end in sorted(steps):
            parent = (name, start) if start > resume else _parent_place(plan, node, start, begins)
            yield TreeStage(name, start, end, parent, parent is None and plan.can_begin(node, start))
            start = end


def _parent_place(plan: SearchPlan, node: Node, start: int, begins: dict[Place, Place]) -> Place | None:
    """The needed place in a parent that must be trained first; None if the stage can begin or is inside its node."""
    if start > node.start or plan.can_begin(node, start):
        return None
    return max((place for place in plan.missing_states(node) if place in begins), key=itemgetter(1), default=None)


def critical_path_steps(stages: list[TreeStage]) -> int:
    """The length of the critical path in steps, a lower bound for any number of slots."""
    ends: dict[Place, int] = {}
    for stage in stages:
        before = ends.get(stage.parent, 0) if stage.parent else 0
        ends[stage.node, stage.end] = before + stage.end - stage.start
    return max(ends.values(), default=0)


MOST_AHEAD = 8
"""Most predicted branch points of a trial."""

MOST_LINES, MOST_CHANGES = 5_000, 20
"""Most lines of the studies' histories, and most changes of trials among them, that one tick of the scheduler reads.
Later ticks read the rest."""

MOST_BRANCH_STEPS = 64

_CHANGES = frozenset(TrialEventKind) - {TrialEventKind.RESULT, TrialEventKind.PRIORITIZE}


class UpcomingBranches:
    """The places where trials of a plan would branch off if they were extended, updated from new lines of histories."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._read: dict[StudyId, int] = {}  # how many lines of each study's history
        self._places: dict[StudyId, dict[int, list[Place]]] = {}  # by study and trial
        self._trials: dict[NodeId, Counter[int]] = defaultdict(Counter)  # at each step of a node, how many
        self._lines = self._changes = 0  # how many may still be read
        self.begin_tick()

    def begin_tick(self) -> None:
        """Reset the limits for a new tick of the scheduler."""
        self._lines, self._changes = MOST_LINES, MOST_CHANGES

    def branch_steps(self, node: NodeId, start: int, end: int) -> tuple[int, ...]:
        """The steps between `start` and `end` where trials would leave a node; if too many, the most common ones."""
        ends = self._trials.get(node, Counter())
        inside = Counter({step: trials for step, trials in ends.items() if start < step < end})
        return tuple(sorted(step for step, _ in inside.most_common(MOST_BRANCH_STEPS)))

    @property
    def is_behind(self) -> bool:
        """Whether there are unread lines."""
        return any(self._read.get(study.id, 0) < len(study.history) for study in self._sharing_studies())

    def read_new_events(self) -> dict[NodeId, set[int]]:
        """Read new lines up to the limits. Returns the new branch steps of each node."""
        for name in self._read.keys() - {study.id for study in self._sharing_studies()}:
            self._forget(name)
        new = defaultdict[NodeId, set[int]](set)
        for study in self._sharing_studies():
            begin = self._read.get(study.id, 0)
            unread = range(begin, min(len(study.history), begin + self._lines))
            read = list(_limit_changes(map(study.history.__getitem__, unread), self._changes))
            changed = [line.trial for line in read if line.kind in _CHANGES]
            for number in dict.fromkeys(changed):
                for node, step in self._update_trial(study, study.trials[number]):
                    new[node].add(step)
            self._read[study.id] = begin + len(read)
            self._lines, self._changes = self._lines - len(read), self._changes - len(changed)
        return new

    def _sharing_studies(self) -> list[Study]:
        """The studies that share nodes with others and have not ended."""
        return [study for study in self._plan.studies.values() if study.spec.merge and not study.is_final]

    def _update_trial(self, study: Study, trial: Trial) -> list[Place]:
        """Update the branch points of a trial. Returns the places where no trial branched before."""
        places, ahead = self._places.setdefault(study.id, {}), list(upcoming_branches(study, trial))
        new = [place for place in ahead if not self._trials.get(place[0], Counter())[place[1]]]
        for node, step in ahead:
            self._trials[node][step] += 1
        self._remove_places(places.pop(trial.number, []))
        if ahead:
            places[trial.number] = ahead
        return new

    def _forget(self, study: StudyId) -> None:
        self._read.pop(study, None)
        for places in self._places.pop(study, {}).values():
            self._remove_places(places)

    def _remove_places(self, places: list[Place]) -> None:
        for node, step in places:
            self._trials[node][step] -= 1
            if not self._trials[node][step]:
                del self._trials[node][step]
            if not self._trials[node]:
                del self._trials[node]


def _limit_changes(lines: Iterable[TrialEvent], changes: int) -> Iterator[TrialEvent]:
    """The lines up to the given number of changes."""
    for line in lines:
        changes -= line.kind in _CHANGES
        if changes < 0:
            return
        yield line


def upcoming_branches(study: Study, trial: Trial) -> Iterator[Place]:
    """The next places at which a trial would leave the nodes on its path, if its tuner may extend it that far."""
    can_be_extended = trial.trunk is None and not study.spec.requests_all_at_once
    most = (study.spec.max_steps or math.inf) if can_be_extended else 0
    if trial.state not in (TrialState.ACTIVE, TrialState.COMPLETED) or trial.steps >= most:
        return iter(())
    following = (upcoming_nodes(run.hp, trial.steps, run.path[-1], study.spec.seed) for run in trial.runs)
    return chain.from_iterable(
        takewhile(lambda place: place[1] < most, islice(nodes, MOST_AHEAD)) for nodes in following
    )
