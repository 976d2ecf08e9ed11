"""The trainers of the bank by name, the studies that try them, and how what a study shows is held against the truth."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from alone import Alone, Curve
from cluster import Cluster
from stacks import Json
from toys import switch

from app.domain.search_plan import SearchPlan, Study, Trial
from app.exactness import judge, trial_marks
from app.registry import TrainerSource
from stagetree import Trainer

FOLDER = Path(__file__).parent
WRONG = ("wrong_state", "wrong_chance", "wrong_process", "wrong_modules", "wrong_between", "wrong_late")
RIGHT = ("right", "right_modules", "right_between", "right_evaluation")
LEFT = ("wrong_left",)
"""What they leave in a process would make the next trial in it wrong; none of it reaches one."""
SAVED = ("saving-rounds", "saving-counts")
"""A trial alone is saved where its hyper-parameters change, too: what that changes is marked, and not undone."""


def trainers(modules: Iterable[str]) -> Iterator[tuple[str, type[Trainer]]]:
    """The trainers that these files define, by name."""
    for module in modules:
        for each in vars(importlib.import_module(module)).values():
            if isinstance(each, type) and issubclass(each, Trainer) and each.__module__ == module:
                yield from [(each.name, each)] if "name" in vars(each) else ()


def file_of(kind: type[Trainer]) -> str:
    return str(FOLDER / f"{kind.__module__}.py")


@cache
def sources() -> dict[str, TrainerSource]:
    return {name: TrainerSource(file_of(kind), "1") for name, kind in trainers(WRONG + RIGHT + LEFT)}


def grid(trainer: str, **more: Any) -> Json:
    """Four trials of 14 to 18 steps, which part at step 10, and two of them at 13; one ends where another continues."""
    back = {"family": "values", "values": [0.1, 0.3, 0.1], "milestones": [10, 13]}
    rates = [(0.1, 18), (0.1, 14), (switch(0.1, 0.3, 10), 16), (back, 16)]
    return _trials_spec(trainer, rates, more)


def halving(trainer: str, **more: Any) -> Json:
    """Four trials of 4 steps; half of them continue to 8, and one to 16."""
    space = {"lr": [switch(0.1 * number, 0.3, 6) for number in range(1, 5)], "wd": [0.5]}
    tuner = {"kind": "asha", "num_trials": 4, "min_steps": 4, "max_steps": 16, "reduction_factor": 2}
    return spec(trainer, tuner=tuner, space=space, **more)


def changes(trainer: str, **more: Any) -> Json:
    """A long trial whose rate never changes, and short ones that part after theirs has changed."""
    twice = {"family": "values", "values": [0.1, 0.3, 0.2], "milestones": [4, 7]}
    rates = [(0.1, 20), (switch(0.1, 0.3, 4), 10), (twice, 10)]
    return _trials_spec(trainer, rates, more)


def one_by_one(trainer: str, **more: Any) -> Json:
    """Trials that share nothing; and two that part from the first one before the step that leaves something behind."""
    rates = [(0.1, 20), (0.2, 16), (switch(0.1, 0.3, 8), 16), (switch(0.1, 0.2, 9), 16), (0.4, 16)]
    return _trials_spec(trainer, rates, more)


def apart_at_steps(trainer: str, **more: Any) -> Json:
    """A long trial, and one that parts from it at each of the steps 8, 11 and 13."""
    rates: list[tuple[Any, int]] = [(0.1, 20), (switch(0.1, 0.3, 8), 20), (switch(0.1, 0.2, 11), 19)]
    return _trials_spec(trainer, [*rates, (switch(0.1, 0.4, 13), 17)], more)


def measured_on_the_way(trainer: str, **more: Any) -> Json:
    """Trials that end, and are measured, on the way of a longer one."""
    return _trials_spec(trainer, [(0.1, 20), (0.1, 13), (0.1, 17), (switch(0.1, 0.3, 7), 20)], more)


def _trials_spec(trainer: str, rates: Sequence[tuple[Any, int]], more: Json) -> Json:
    trials = [{"hp": {"lr": rate, "wd": 0.5}, "steps": steps} for rate, steps in rates]
    return spec(trainer, tuner={"kind": "trials", "trials": trials}, **more)


def rungs(trainer: str, **more: Any) -> Json:
    """Six trials with constant rates, of which some continue from 5 steps to 10, and to 20."""
    tuner = {"kind": "asha", "num_trials": 6, "min_steps": 5, "max_steps": 20, "reduction_factor": 2}
    return spec(trainer, tuner=tuner, space={"lr": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}, **more)


STUDIES = {
    "grid": grid,
    "halving": halving,
    "changes": changes,
    "one-by-one": one_by_one,
    "apart": apart_at_steps,
    "measured": measured_on_the_way,
    "rungs": rungs,
}


def spec(trainer: str, **more: Any) -> Json:
    named = {"name": trainer, "trainer": trainer, "metric": "value", "mode": "max", "eval_every": 4}
    return {**named, "seed": 3, **more}


@dataclass
class Held:
    """What a study shows, held against the truth.

    other: values that differ from the trial alone.
    marks: what stands beside each trial. isolated: why the study trains each trial alone.
    """

    state: str
    isolated: str = ""
    verdict: str = ""
    marks: dict[int, str] = field(default_factory=dict)
    other: dict[int, list[str]] = field(default_factory=dict)
    errors: dict[int, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        return "caught" if self.isolated else "marked" if any(self.marks.values()) else "plain"

    @property
    def silent_errors(self) -> dict[int, list[str]]:
        """The wrong values of trials without a mark."""
        return {number: lines for number, lines in self.other.items() if not self.marks.get(number)}


def compare_studies(
    cluster: Cluster, kinds: Mapping[str, type[Any]], alone: Alone, rounds: int = 400
) -> dict[str, Held]:
    """A study for each trainer, all at once, and their views."""
    streams = {}
    for name, kind in kinds.items():
        study = cluster.submit(STUDIES[kind.shows_in](name))
        streams[name] = (cluster.stream, study)
    for _ in range(rounds):
        cluster.round()
        plans = {name: cluster.plans.get(stream) for name, (stream, _) in streams.items()}
        if all(plans[name].studies[study].is_final for name, (_, study) in streams.items()):
            break
    return {
        name: compare_study(plans[name], plans[name].studies[study], alone, file_of(kinds[name]))
        for name, (_, study) in streams.items()
    }


def compare_study(plan: SearchPlan, study: Study, alone: Alone, file: str) -> Held:
    """Compare every value of every trial."""
    judgement, marks = judge(plan, study), trial_marks(plan, study)
    found = Held(study.state, study.isolated, judgement.verdict)
    for trial in study.trials:
        found.marks[trial.number] = marks(trial)
        if trial.error:
            found.errors[trial.number] = trial.error
        if lines := list(differences(dict(plan.curve(trial)), reference_values(plan, study, trial, alone, file))):
            found.other[trial.number] = lines
    return found


def reference_values(plan: SearchPlan, study: Study, trial: Trial, alone: Alone, file: str) -> Curve:
    """Evaluated where a study of this trial alone evaluates."""
    opened = plan.opened
    assert opened is not None and study.spec.eval_every is not None
    steps = steps_of(study.spec.eval_every, trial.requested_steps)
    return alone.curve(file, opened.trainer, dict(opened.trainer_args), opened.seed, trial.hp, steps)


def steps_of(every: int, requested: Sequence[int]) -> list[int]:
    """The steps at which a trial with these requests is evaluated."""
    return sorted({*range(every, requested[-1] + 1, every), *requested})


def differences(shown: Curve, right: Curve) -> Iterator[str]:
    """The shown values that are wrong."""
    for step, metrics in shown.items():
        for name, value in metrics.items() if step in right else ():
            if value != right[step].get(name):
                yield f"{name} after {step} steps is {value}, not {right[step].get(name)}"
