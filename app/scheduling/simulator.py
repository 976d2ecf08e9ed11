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
from app.domain.evolve import evolve
from app.domain.ids import ChainId, StudyId
from app.domain.search_plan import Chain, Node, SearchPlan
from app.domain.states import ChainOutcome, FailureKind
from app.scheduling.chains import stages_of
from app.scheduling.costs import Costs
from app.scheduling.frontier import Frontier
from app.scheduling.policies import POLICIES, Policy
from app.scheduling.tuners import TunerDriver
from app.scheduling.tuners.surroundings import context_of
from stagetree.limits import LIMITS, Limits

Measure = Callable[[Node, int], e.Metrics]

Seconds = Callable[[e.Stage, int], float]
"""How long a stage takes; the number counts stages as they begin, so that a stage that is repeated may take longer."""

Mishap = Callable[[e.Stage, int], str | None]
"""What goes wrong in a stage: "fail" (the user's code raises), "lose" (its worker dies), or None."""


def one_second_a_step(stage: e.Stage, number: int) -> float:
    return float(stage.end - stage.start)


def no_mishap(stage: e.Stage, number: int) -> str | None:
    return None


class Unit(Costs):
    """Every step costs one second, for ever: durations are numbers of steps."""

    def refit(self, plan: SearchPlan) -> bool:
        return False

    def seconds_per_step(self, node: Node) -> float:
        return 1.0


class Simulator:
    """Virtual slots that train a plan. `now` is in seconds; `events` is everything that was decided or happened.

    spare_every: inside a stage, a checkpoint is kept after each so many steps, as workers do where it costs little.
    watch: told how many events there are by now; what it raises ends the simulation.
    """

    def __init__(
        self,
        plan: SearchPlan,
        *,
        slots: int,
        measure: Measure,
        policy: Policy = POLICIES["critical_path"],
        seconds: Seconds = one_second_a_step,
        mishap: Mishap = no_mishap,
        spare_every: int | None = None,
        limits: Limits = LIMITS,
        watch: Callable[[int], None] = lambda events: None,
    ) -> None:
        self.plan, self.now, self.events = plan, 0.0, list[e.Event]()
        self._frontier = Frontier(plan, Unit())
        self._measure, self._policy, self._seconds, self._mishap = measure, policy, seconds, mishap
        self._free = [f"gpu{number}" for number in reversed(range(slots))]
        self._spare_every = spare_every
        self._limits, self._watch = limits, watch
        self._due: list[tuple[float, int, ChainId, float]] = []
        self._begun = count()
        self._drivers: dict[StudyId, TunerDriver] = {}
        self._slots = slots
        self._numbers = count()

    def give(self, command: c.Command) -> tuple[e.Event, ...]:
        """Decide a command and take in what follows."""
        events = decide(self.plan, command, self._limits)
        self.take(events)
        return events

    def take(self, events: Iterable[e.Event]) -> None:
        """Take in events."""
        for event in events:
            evolve(self.plan, event)
            self.events.append(event)
        self._watch(len(self.events))

    def run(self) -> float:
        """Until nothing is left to do; the virtual time that it took."""
        while self.advance():
            pass
        return self.now

    def advance(self) -> bool:
        """Decide, and let the next stage end, one way or another; False when nothing is left to do."""
        self._decide()
        if not self._due:
            return False
        self.now, number, name, seconds = heapq.heappop(self._due)
        chain = self.plan.chains[name]
        match self._mishap(chain.stages[chain.index], number):
            case "fail":
                self._fail(chain)
            case "lose":
                self._lose(chain)
            case _:
                self._complete(chain, seconds)
        return True

    def _decide(self) -> None:
        """What the tick does: let tuners action, then give chains to free slots."""
        self.run_tuners()
        self._frontier.refresh()
        while self._free and (choice := self._policy([self._frontier])):
            stages = stages_of(self.plan, choice[1])
            chain = ChainId(f"chain-{next(self._numbers)}")
            self.give(c.AssignChain(chain=chain, slot=self._free.pop(), stages=stages, at=self.now))
            self._frontier.refresh()
            self._await_stage(self.plan.chains[chain])

    def think(self, study: StudyId, driver: TunerDriver) -> None:
        """Let this driver decide for a study, instead of the one that its study file asks for."""
        self._drivers[study] = driver

    def run_tuners(self) -> None:
        """Ask the tuner of each running study what it wants."""
        for study in self.plan.studies.values():
            if study.is_running:
                self._tune(study.id)

    def _tune(self, name: StudyId) -> None:
        study = self.plan.studies[name]
        if name not in self._drivers or self._drivers[name].spec is not study.spec:
            self._drivers[name] = TunerDriver(study.spec)
        driver = self._drivers[name]
        context = context_of(self.plan, study, self.now, self._slots)
        while (actions := driver.actions(study, self._slots, context)) and self.give(
            c.ApplyTunerActions(study=name, actions=actions)
        ):
            pass
        if driver.is_done(study):
            self.give(c.CloseStudy(study=name, at=self.now))

    def _await_stage(self, chain: Chain) -> None:
        number = next(self._begun)
        seconds = self._seconds(chain.stages[chain.index], number)
        heapq.heappush(self._due, (self.now + seconds, number, chain.id, seconds))

    def _fail(self, chain: Chain) -> None:
        """The user's code raises in the first step of the stage under way."""
        stage = chain.stages[chain.index]
        step, kind, error = min(stage.start, stage.end - 1), FailureKind.EXCEPTION, "it was meant to fail"
        self.take([e.StageFailed(chain=chain.id, index=chain.index, step=step, kind=kind, error=error, seconds=0.0)])
        self._free.append(chain.slot)

    def _lose(self, chain: Chain) -> None:
        """The worker dies at the end of the stage under way, before anything was kept."""
        stage = chain.stages[chain.index]
        self.give(c.LoseChain(chain=chain.id, steps=stage.end - stage.start))
        self._free.append(chain.slot)

    def _complete(self, chain: Chain, seconds: float) -> None:
        stage = chain.stages[chain.index]
        node = self.plan.nodes[stage.node]
        asked = {step for step in node.waiting if stage.start < step <= stage.end}
        for step in sorted(asked | set(stage.evaluate)):
            self.take([e.Evaluated(node=stage.node, step=step, metrics=self._measure(node, step))])
        self._keep_spares(stage)
        self.take([e.StageCompleted(chain=chain.id, index=chain.index, seconds=seconds)])
        self.take([e.CheckpointKept(node=stage.node, step=stage.end, key="", sha256="", size=0)])
        if chain.is_trained:
            self.take([e.ChainEnded(chain=chain.id, outcome=ChainOutcome.DONE)])
            self._free.append(chain.slot)
        else:
            self._await_stage(chain)

    def _keep_spares(self, stage: e.Stage) -> None:
        """Checkpoints inside the stage, for whoever branches there later."""
        every = self._spare_every or stage.end - stage.start + 1
        for step in range(stage.start + every, stage.end, every):
            self.take([e.CheckpointKept(node=stage.node, step=step, key="", sha256="", size=0, spare=True)])
