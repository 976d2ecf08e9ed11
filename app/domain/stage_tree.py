"""Algorithm 1 of the TreeML paper: the stages that are outstanding now, rebuilt from the plan and never stored.

This is the definition, written to be read. The scheduler keeps the same answer up to date from event to event
(`app.scheduling.frontier`), and is tested against this.

A trial that waits at a rung goes on, once it is promoted, from the last state that was kept on its way: schedules say
where known trials would branch off before they are asked for more. Whoever trains past the step at which a trial will
leave the common way keeps the state there, while the model has it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from operator import itemgetter

from app.domain.schedule import ahead
from app.domain.search_plan import NO_PROGRESS, Node, Progresses, SearchPlan, Study, Trial, TrialEvent
from app.domain.terms import NodeId, StudyId, TrialEventKind, TrialState
from app.domain.terms import Place as Place


@dataclass(frozen=True, slots=True)
class TreeStage:
    """Train `node` from `start` to `end`.

    parent: the stage that ends where this one begins, None when it begins at a checkpoint, at step 0, or where a stage
    under way will end. Of an average, the last of the stages that it waits for. ready: it can begin now.
    """

    node: NodeId
    start: int
    end: int
    parent: Place | None
    ready: bool


def build_stage_tree(plan: SearchPlan, progress: Progresses = NO_PROGRESS) -> list[TreeStage]:
    """The stage tree that serves every request of a running study which no stage under way will serve (BuildStageTree).

    What a stage under way has passed already, as far as `progress` tells, it will not serve.

    Stages come in an order in which a parent precedes its children; each is the part between two places that someone
    needs, so that no step is in two stages.
    """
    begins: dict[Place, Place] = {}  # the lookup table L: what must be reached -> where to resume for it
    for node in plan.nodes.values():
        for step in node.waiting:
            if any(plan.waiting_studies(node, step)):
                _find_latest_checkpoint(plan, (node.id, step), begins, progress)
    return sorted(
        _build_tree(plan, begins),
        key=lambda stage: (stage.start, stage.end, _averages_on_the_way(plan, stage.node), stage.node),
    )


def _averages_on_the_way(plan: SearchPlan, name: NodeId) -> int:
    """How many averages are made one after the other, with this one: they may all be at one step."""
    shares = plan.means.get(name, ())
    return 1 + max(_averages_on_the_way(plan, share.node) for share in shares) if shares else 0


def _find_latest_checkpoint(plan: SearchPlan, place: Place, begins: dict[Place, Place], progress: Progresses) -> None:
    """FindLatestCheckpoint, as a loop over the ancestors; an average has several ways to go back."""
    places = [place]
    while places:
        place = places.pop()
        node, step = plan.nodes[place[0]], place[1]
        if place in begins or node.covers(step, progress) or step in node.saving:
            continue
        resume = latest(node, step, progress)
        begins[place] = (node.id, node.start if resume is None else resume)
        if resume is None:
            places += plan.missing_states(node)


def latest(node: Node, step: int, progress: Progresses = NO_PROGRESS) -> int | None:
    """The last step up to `step` at which the state of the node is kept, or will be when a stage under way is over."""
    return max((at for at in (*node.resumable, *node.upcoming_states(progress)) if at <= step), default=None)


def _build_tree(plan: SearchPlan, begins: dict[Place, Place]) -> Iterator[TreeStage]:
    """BuildTree: cuts what resumes at the same place where the next place begins, and hangs stages under stages."""
    reached: dict[Place, list[int]] = defaultdict(list)
    for (name, step), (_, resume) in begins.items():
        reached[name, resume].append(step)
    for (name, resume), steps in reached.items():
        node, start = plan.nodes[name], resume
        for end in sorted(steps):
            parent = (name, start) if start > resume else _entry(plan, node, start, begins)
            yield TreeStage(name, start, end, parent, parent is None and plan.can_begin(node, start))
            start = end


def _entry(plan: SearchPlan, node: Node, start: int, begins: dict[Place, Place]) -> Place | None:
    """The place that must be trained up to first, when `start` is the beginning of the node."""
    if start > node.start or plan.can_begin(node, start):
        return None
    return max((place for place in plan.missing_states(node) if place in begins), key=itemgetter(1), default=None)


def critical_path_steps(stages: list[TreeStage]) -> int:
    """The most steps that one after another must be trained: no number of slots is faster."""
    ends: dict[Place, int] = {}
    for stage in stages:
        before = ends.get(stage.parent, 0) if stage.parent else 0
        ends[stage.node, stage.end] = before + stage.end - stage.start
    return max(ends.values(), default=0)


MOST_AHEAD = 8
"""Of so many branch points of a trial is known where they are."""

MOST_LINES, MOST_CHANGES = 5_000, 20
"""So many lines of the histories of a plan's studies are read in one look of the scheduler, and so many of those that
say where a trial goes on; the others come with the next look.
"""

MOST_IN_A_STAGE = 64

_FIXED = frozenset(("trials", "grid", "random"))
"""Kinds of tuners that ask for no more of a trial than they did when it began."""

_CHANGES = frozenset(TrialEventKind) - {TrialEventKind.RESULT, TrialEventKind.PRIORITIZE}


class UpcomingBranches:
    """Those of the trials of a plan that may be asked for more. It reads only what is new since it was asked last."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._read: dict[StudyId, int] = {}  # how many lines of each study's history
        self._places: dict[StudyId, dict[int, list[Place]]] = {}  # of each trial
        self._trials: dict[NodeId, Counter[int]] = defaultdict(Counter)  # at each step of a node, how many
        self._lines = self._changes = 0  # how many may still be read
        self.begin_look()

    def begin_look(self) -> None:
        """The scheduler looks again: as much may be read as in each of its looks."""
        self._lines, self._changes = MOST_LINES, MOST_CHANGES

    def inside(self, node: NodeId, start: int, end: int) -> tuple[int, ...]:
        """The steps between two others at which trials would leave a node; if too many, those where the most do."""
        ends = self._trials.get(node, Counter())
        inside = Counter({step: trials for step, trials in ends.items() if start < step < end})
        return tuple(sorted(step for step, _ in inside.most_common(MOST_IN_A_STAGE)))

    @property
    def is_behind(self) -> bool:
        """Whether there are lines that were not read yet."""
        return any(self._read.get(study.id, 0) < len(study.history) for study in self._counted())

    def read_on(self) -> dict[NodeId, set[int]]:
        """Read what is new, or as much of it as may be read; the steps of each node that were unknown before."""
        for name in self._read.keys() - {study.id for study in self._counted()}:
            self._forget(name)
        new = defaultdict[NodeId, set[int]](set)
        for study in self._counted():
            begin = self._read.get(study.id, 0)
            unread = range(begin, min(len(study.history), begin + self._lines))
            read = list(_first(map(study.history.__getitem__, unread), self._changes))
            changed = [line.trial for line in read if line.kind in _CHANGES]
            for number in dict.fromkeys(changed):
                for node, step in self._renew(study, study.trials[number]):
                    new[node].add(step)
            self._read[study.id] = begin + len(read)
            self._lines, self._changes = self._lines - len(read), self._changes - len(changed)
        return new

    def _counted(self) -> list[Study]:
        """The studies whose trials may branch off those of others."""
        return [study for study in self._plan.studies.values() if study.merges and not study.is_final]

    def _renew(self, study: Study, trial: Trial) -> list[Place]:
        """A trial may part elsewhere now; the places at which none did before."""
        places, ahead = self._places.setdefault(study.id, {}), list(branches_ahead(study, trial))
        new = [place for place in ahead if not self._trials.get(place[0], Counter())[place[1]]]
        for node, step in ahead:
            self._trials[node][step] += 1
        self._leave(places.pop(trial.number, []))
        if ahead:
            places[trial.number] = ahead
        return new

    def _forget(self, study: StudyId) -> None:
        self._read.pop(study, None)
        for places in self._places.pop(study, {}).values():
            self._leave(places)

    def _leave(self, places: list[Place]) -> None:
        for node, step in places:
            self._trials[node][step] -= 1
            if not self._trials[node][step]:
                del self._trials[node][step]
            if not self._trials[node]:
                del self._trials[node]


def _first(lines: Iterable[TrialEvent], changes: int) -> Iterator[TrialEvent]:
    """The first lines, with at most that many changes."""
    for line in lines:
        changes -= line.kind in _CHANGES
        if changes < 0:
            return
        yield line


def branches_ahead(study: Study, trial: Trial) -> Iterator[Place]:
    """The next places at which a trial would leave the nodes on its way, as far as its tuner may ask for it."""
    most = 0 if trial.cooldown_of is not None else _most_steps(study)
    if trial.state not in (TrialState.ACTIVE, TrialState.COMPLETED) or trial.steps >= most:
        return iter(())
    return chain.from_iterable(
        takewhile(lambda place: place[1] < most, islice(ahead(run.hp, trial.steps, run.path[-1]), MOST_AHEAD))
        for run in trial.runs
    )


def _most_steps(study: Study) -> float:
    """The most steps that the tuner of a study asks for; 0 where it never asks for more."""
    return 0 if study.kind in _FIXED else study.max_steps or math.inf
