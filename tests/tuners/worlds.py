"""Studies on virtual slots, with made-up results and made-up bad luck: every number follows from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Node, Study, TrialEvent
from app.domain.terms import StudyId, TrialEventKind
from app.search.tuners import tuner_of
from app.search.tuners.base import Next, Tuner
from app.simulation.pace import Fault, no_fault, one_second_a_step
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

STUDY = StudyId("study")
SPACE = {"lr": {"loguniform": [1e-3, 1.0]}, "bs": [32, 64, 128], "wd": {"uniform": [0.0, 0.1]}}
SHARING = {
    "lr": [
        {"family": "multistep", "init": 0.1, "milestones": [milestone], "gamma": gamma}
        for milestone in (2, 3, 5, 7, 11, 13)
        for gamma in (0.1, 0.2, 0.5)
    ]
}


def spec(tuner: dict[str, Any], *, space: dict[str, Any] | None = None, **fields: Any) -> StudySpec:
    """A study with this tuner."""
    study = {"name": "study", "trainer": "made-up", "metric": "loss", "mode": "min", "tuner": tuner} | fields
    if tuner["kind"] not in ("trials", "external"):
        study["space"] = space or SPACE
    return StudySpec.from_dict(study)


def simulator(study: StudySpec, *, slots: int = 3, name: StudyId = STUDY, **options: Any) -> Simulator:
    """A simulator to which the study was submitted."""
    found = Simulator(slots=slots, **({"measure": losses(0)} | options))
    found.submit(name, study.to_json())
    return found


def run_simulator(study: StudySpec, **options: Any) -> Simulator:
    """The same, with the study at its end."""
    world = simulator(study, **options)
    world.run()
    return world


# --------------------------------------------------------------------------------------------------- results and luck


def losses(seed: int, *, nans: float = 0.0, digits: int = 3) -> Callable[[Node, int], e.Metrics]:
    """Losses that fall with the steps and are much like each other; `nans` of them are not finite."""

    def measure(node: Node, step: int) -> e.Metrics:
        rng = Random(f"{seed}/{node.id}/{step}")
        if rng.random() < nans:
            return {"loss": None, "accuracy": 0.5}
        loss = round(Random(f"{seed}/{node.id}").random() + 1 / math.sqrt(step) + rng.random() / 10, digits)
        return {"loss": loss, "accuracy": -loss}

    return measure


def stragglers(seed: int) -> Callable[[e.Stage, int], float]:
    """Times by which any stage may end before any other."""
    return lambda stage, number: (stage.end - stage.start + 1) * Random(f"{seed}/{number}").uniform(0.1, 9.0)


def faults(
    seed: int, *, fail: float = 0.0, lose: float = 0.0, misevaluate: float = 0.0
) -> Callable[[e.Stage, int, str], Fault | None]:
    """Some stages fail, some lose their worker, and in some the first evaluation raises."""

    def happens(stage: e.Stage, number: int, slot: str) -> Fault | None:
        luck = Random(f"{seed}/{number}").random()
        if luck < fail:
            return Fault.FAIL
        if luck < fail + lose:
            return Fault.LOSE
        return Fault.EVALUATE if luck < fail + lose + misevaluate else None

    return happens


def unlucky(tuner: dict[str, Any], seed: int, slots: int) -> Study:
    """A study, to its end, in which values tie, trials fail, workers are lost, and users cancel."""
    rng = Random(seed)
    luck: dict[str, Any] = {"fail": rng.choice([0, 0.1]), "lose": rng.choice([0, 0.1])}
    made_up = {"measure": losses(seed, digits=rng.choice([1, 3])), "seconds": stragglers(seed)}
    world = simulator(spec(tuner), slots=slots, faults=faults(seed, **luck), **made_up)
    study = world.plan.studies[STUDY]
    while world.advance():
        waiting = [trial.number for trial in study.trials if trial.state in ("active", "completed")]
        if rng.random() < 0.05 and waiting and not study.is_final:
            world.give(c.CancelTrial(study=STUDY, trial=rng.choice(waiting)))
    return study


CALM: dict[str, Any] = {"seconds": one_second_a_step, "faults": no_fault}


# ------------------------------------------------------------------------------------------------------------- tuners


class Table:
    """A tuner alone on a table, which hears events line by line. `log` lists its decisions, in order."""

    def __init__(self, tuner: dict[str, Any], **fields: Any) -> None:
        self.tuner: Tuner = tuner_of(spec(tuner, **fields))
        self.started, self.steps, self.log = 0, dict[int, int](), list[tuple[str, int, int]]()
        self.gone = set[int]()

    def ask(self) -> Next | None:
        """The next wishes, granted at once."""
        action = self.tuner.suggest()
        assert action == self.tuner.suggest(), "asking changes nothing"
        if action is not None:
            self._grant(action)
        return action

    def ask_all(self) -> list[Next]:
        return list(iter(self.ask, None))

    def result(self, trial: int, loss: float) -> None:
        self.tuner.observe(TrialEvent(TrialEventKind.RESULT, trial, self.steps[trial], metrics={"loss": loss}))

    def fail(self, trial: int) -> None:
        self.tuner.observe(TrialEvent(TrialEventKind.FAIL, trial, self.steps[trial], reason={"kind": "exception"}))

    def cancel(self, trial: int) -> None:
        self.tuner.observe(TrialEvent(TrialEventKind.CANCEL, trial, self.steps[trial]))

    def _grant(self, action: Any) -> None:
        kind = {"NewTrial": "start", "Start": "start", "Extend": "promote", "Stop": "stop"}[type(action).__name__]
        trial = self.started if kind == "start" else action.trial
        self.started += kind == "start"
        self.gone |= {trial} if kind == "stop" else set()
        steps = self.steps[trial] = getattr(action, "steps", self.steps.get(trial, 0))
        hp = getattr(action, "hp", {"lr": {"family": "constant", "value": 0.1}})
        self.log.append((kind, trial, steps))
        self.tuner.observe(TrialEvent(kind, trial, steps, reason=action.reason, hp=hp))


def promotions(study: Study) -> list[tuple[int, int]]:
    """(trial, steps) of every promotion, in order."""
    return [(event.trial, event.steps) for event in study.history if event.kind == TrialEventKind.PROMOTE]


def trials_at(study: Study, steps: int) -> int:
    """The number of trials with a request at this step."""
    return sum(steps in trial.requested_steps for trial in study.trials)


def numbered_events(events: Iterable[e.Event]) -> list[tuple[int, e.Event]]:
    return list(enumerate(events, start=1))
