"""Where known trials would branch off if they were asked for more: their schedules say so before they are.

A trial that waits at a rung goes on, once it is promoted, from the last state that was kept on its way. Whoever trains
past the step at which it will leave the common way keeps the state there, while the model has it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice, takewhile

from app.domain.ids import NodeId, StudyId
from app.domain.schedule import ahead
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.stage_tree import Place
from app.domain.states import TrialEventKind, TrialState

MOST_AHEAD = 8
"""Of so many branch points of a trial is known where they are."""

MOST_LINES = 100
"""So many lines of the history of a plan's studies are read at once; the others come later."""

MOST_IN_A_STAGE = 64

_CHANGES = frozenset(TrialEventKind) - {TrialEventKind.RESULT, TrialEventKind.PRIORITIZE}


class UpcomingBranches:
    """Those of the trials of a plan that may be asked for more. It reads only what is new since it was asked last."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._read: dict[StudyId, int] = {}  # how many lines of each study's history
        self._places: dict[StudyId, dict[int, list[Place]]] = {}  # of each trial
        self._trials: dict[NodeId, Counter[int]] = defaultdict(Counter)  # at each step of a node, how many

    def inside(self, node: NodeId, start: int, end: int) -> tuple[int, ...]:
        """The steps between two others at which trials would leave a node; if too many, those where the most do."""
        self._read_on()
        found = self._trials.get(node, Counter())
        inside = Counter({step: trials for step, trials in found.items() if start < step < end})
        return tuple(sorted(step for step, _ in inside.most_common(MOST_IN_A_STAGE)))

    def _read_on(self) -> None:
        room = MOST_LINES
        for study in self._plan.studies.values():
            if study.is_final or not study.merges:
                self._forget(study.id)
                continue
            begin = self._read.get(study.id, 0)
            lines = study.history[begin : begin + room]
            self._read[study.id], room = begin + len(lines), room - len(lines)
            for number in {line.trial for line in lines if line.kind in _CHANGES}:
                self._renew(study, study.trials[number])

    def _renew(self, study: Study, trial: Trial) -> None:
        places = self._places.setdefault(study.id, {})
        self._leave(places.pop(trial.number, []))
        if found := list(branches_ahead(study, trial)):
            places[trial.number] = found
            for node, step in found:
                self._trials[node][step] += 1

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


def branches_ahead(study: Study, trial: Trial) -> Iterator[Place]:
    """The next places at which a trial would leave the nodes on its way, as far as its tuner may ask for it."""
    most = _most_steps(study)
    if trial.state not in (TrialState.ACTIVE, TrialState.COMPLETED) or trial.steps >= most:
        return iter(())
    places = islice(ahead(trial.hp, trial.steps, trial.path[-1]), MOST_AHEAD)
    return takewhile(lambda place: place[1] < most, places)


def _most_steps(study: Study) -> float:
    """The most steps that the tuner of a study asks for; those of `trials` are never asked for more than they are."""
    tuner = study.spec.get("tuner", {})
    return 0 if tuner.get("kind") == "trials" else tuner.get("max_steps") or math.inf
