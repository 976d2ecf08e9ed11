"""The same plan, frontier, policies and tuners on virtual slots and in virtual time: no workers, no database, no clock.

What a study would cost is found by running it here. Events are the same as in the log, so a simulated plan can be
looked at with the same eyes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.ids import ChainId, StudyId
from app.domain.search_plan import Chain, Node, SearchPlan, evolve
from app.scheduling.chains import stages_of
from app.scheduling.costs import Costs
from app.scheduling.frontier import Frontier
from app.scheduling.policies import POLICIES, Policy
from app.scheduling.tuners import Tuner, tuner_of

Measure = Callable[[Node, int], e.Metrics]


class Unit(Costs):
    """Every step costs one second, for ever: durations are numbers of steps."""

    def refit(self, plan: SearchPlan) -> bool:
        return False

    def seconds_per_step(self, node: Node) -> float:
        return 1.0


class Simulator:
    """Virtual slots that train a plan. `now` is in seconds; `events` is everything that was decided or happened."""

    def __init__(
        self, plan: SearchPlan, *, slots: int, measure: Measure, policy: Policy = POLICIES["critical_path"]
    ) -> None:
        self.plan, self.now, self.events = plan, 0.0, list[e.Event]()
        self._frontier = Frontier(plan, Unit())
        self._measure, self._policy = measure, policy
        self._free = [f"gpu{number}" for number in reversed(range(slots))]
        self._due: list[tuple[float, int, ChainId]] = []
        self._tuners: dict[StudyId, Tuner] = {}
        self._numbers = count()

    def give(self, command: c.Command) -> None:
        """Decide a command and take in what follows."""
        self.take(decide(self.plan, command))

    def take(self, events: Iterable[e.Event]) -> None:
        """Take in events."""
        for event in events:
            evolve(self.plan, event)
            self.events.append(event)

    def run(self) -> float:
        """Until nothing is left to do; the virtual time that it took."""
        while self.advance():
            pass
        return self.now

    def advance(self) -> bool:
        """Decide, and let the next stage end; False when nothing is left to do."""
        self._decide()
        if not self._due:
            return False
        self.now, _, chain = heapq.heappop(self._due)
        self._complete(self.plan.chains[chain])
        return True

    def _decide(self) -> None:
        """What the tick does: let tuners wish, then give chains to free slots."""
        self.let_tuners_wish()
        self._frontier.refresh()
        while self._free and (choice := self._policy([self._frontier])):
            stages = stages_of(self.plan, choice[1])
            chain = ChainId(f"chain-{next(self._numbers)}")
            self.give(c.AssignChain(chain=chain, slot=self._free.pop(), stages=stages, at=self.now))
            self._frontier.refresh()
            self._await_stage(self.plan.chains[chain])

    def let_tuners_wish(self) -> None:
        """Ask the tuner of each running study what it wants."""
        for study in self.plan.studies.values():
            if study.state == "running":
                self._tune(study.id)

    def _tune(self, name: StudyId) -> None:
        study = self.plan.studies[name]
        if name not in self._tuners:
            self._tuners[name] = tuner_of(study.spec)
        tuner = self._tuners[name]
        if wishes := tuner.wishes(study):
            self.give(c.Tune(study=name, wishes=tuple(wishes)))
        if study.active == 0 and tuner.is_done(study):
            self.give(c.CloseStudy(study=name, at=self.now))

    def _await_stage(self, chain: Chain) -> None:
        stage = chain.stages[chain.index]
        heapq.heappush(self._due, (self.now + stage.end - stage.start, next(self._numbers), chain.id))

    def _complete(self, chain: Chain) -> None:
        stage = chain.stages[chain.index]
        node = self.plan.nodes[stage.node]
        asked = {step for step in node.waiting if stage.start < step <= stage.end}
        for step in sorted(asked | set(stage.evaluate)):
            self.take([e.Evaluated(node=stage.node, step=step, metrics=self._measure(node, step))])
        seconds = float(stage.end - stage.start)
        self.take([e.StageCompleted(chain=chain.id, index=chain.index, seconds=seconds)])
        self.take([e.CheckpointKept(node=stage.node, step=stage.end, key="", sha256="", size=0)])
        if chain.is_trained:
            self.take([e.ChainEnded(chain=chain.id, outcome="done")])
            self._free.append(chain.slot)
        else:
            self._await_stage(chain)
