"""Checks that every tuner must pass, on virtual slots: `stagetree check-tuner FILE`.

Each check runs studies from beginning to end with random results and times. A failure is a `Flaw` with a sentence, and
so is an exception of the tuner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Node, Study, TrialEvent
from app.domain.terms import StudyId
from app.search.replay import replay
from app.search.tuners.base import REGISTERED, Next, Registered, Tuner, check_action, objectives_in
from app.simulation.simulator import Simulator
from app.tuner_files import load
from stagetree.spec import StudySpec
from stagetree.spec.file import read

STUDY = StudyId("study")
SPACE = {"lr": {"loguniform": [1e-3, 1.0]}, "bs": [32, 64, 128]}
SEEDS = range(5)
MOST_STAGES, MOST_ASKED = 20_000, 1_000_000


class Flaw(BaseException):
    """The tuner breaks a rule of tuners; the message says which.

    It is no `Exception`, because the scheduler handles those as the failure of a study.
    """


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """The result of a check; `flaw` is None if it passed."""

    check: str
    flaw: str | None


def check_file(path: Path, study: Path | None = None) -> Iterator[tuple[str, str, Iterator[CheckVerdict]]]:
    """Name, version and verdicts of each tuner in a file. study: a study file that uses one.

    Raises `TunerFileError` and `SpecError`.
    """
    fields = read(study) if study else None
    for name, registered in load(str(path)).items():
        yield name, registered.version, check(name, registered, fields)


def check(name: str, registered: Registered, study: Mapping[str, Any] | None = None) -> Iterator[CheckVerdict]:
    """Check a registered tuner, with a study file that uses it, or a simple one."""
    fields = dict(study or {"name": "check", "trainer": "none", "metric": "loss", "mode": "min", "space": SPACE})
    fields.setdefault("tuner", {"kind": "custom", "name": name})
    before = REGISTERED.get(name)
    REGISTERED[name] = Registered(_guard(registered.tuner), registered.version)
    try:
        for title, tried in CHECKS.items():
            yield CheckVerdict(title, _flaw(tried, fields))
    finally:
        REGISTERED.pop(name)
        if before is not None:
            REGISTERED[name] = before


def _flaw(tried: Callable[[StudySpec, int], None], fields: Mapping[str, Any]) -> str | None:
    for seed in SEEDS:
        try:
            tried(StudySpec.from_dict(dict(fields)), seed)
        except Flaw as flaw:
            return f"{flaw} (seed {seed})"
    return None


def _guard(tuner: type[Tuner]) -> type[Tuner]:
    """The tuner, called twice each time: `suggest` must change nothing, and return only what can be recorded."""

    class Guarded(tuner):  # type: ignore[misc, valid-type]
        asked = 0

        def __init__(self, spec: StudySpec) -> None:
            with _raise_flaws():
                super().__init__(spec)

        def set_max_trials(self, trials: int) -> None:
            with _raise_flaws():
                super().set_max_trials(trials)

        def observe(self, event: TrialEvent) -> None:
            with _raise_flaws():
                super().observe(event)

        def suggest(self) -> Next | None:
            with _raise_flaws():
                first: Next | None = super().suggest()
                again = super().suggest()
                if first is not None:
                    check_action(first)
            self.asked += 1
            if first != again:
                raise Flaw(f"suggest changes something: it said {first}, and asked again at once {again}")
            if self.asked > MOST_ASKED:
                raise Flaw("it always wants more")
            return first

    return Guarded


@contextmanager
def _raise_flaws() -> Iterator[None]:
    """Turn the tuner's exceptions into flaws."""
    try:
        yield
    except Exception as error:
        raise Flaw(f"{type(error).__name__}: {error}") from error


# -------------------------------------------------------------------------------------------------------------- checks


def _ends(spec: StudySpec, seed: int) -> None:
    _run_to_end(_world(spec, seed))


def _ends_with_failures(spec: StudySpec, seed: int) -> None:
    _run_to_end(_world(spec, seed, nans=0.3))


def _ends_when_everything_fails(spec: StudySpec, seed: int) -> None:
    _run_to_end(_world(spec, seed, nans=1.0))


def _same_in_any_process(spec: StudySpec, seed: int) -> None:
    one, other = _world(spec, seed), _world(spec, seed)
    for world in (one, other):
        _run_to_end(world)
    if one.plan.studies[STUDY].history != other.plan.studies[STUDY].history:
        raise Flaw(
            "the same history led to other decisions: it must read no clock, roll no die and keep nothing global"
        )


def _can_be_replayed(spec: StudySpec, seed: int) -> None:
    world = _world(spec, seed, nans=0.1)
    _run_to_end(world)
    difference = replay(enumerate(world.events, 1), STUDY).difference
    if difference is not None:
        raise Flaw(f"its decisions cannot be derived again: {difference['problem']}")


def _lives_with_users(spec: StudySpec, seed: int) -> None:
    """Users cancel trials, also finished ones, and pause the study."""
    world, rng = _world(spec, seed), Random(seed)
    study = world.plan.studies[STUDY]
    for _ in range(MOST_STAGES):
        trials = [trial.number for trial in study.trials if trial.state in ("active", "completed")]
        if not study.is_final and trials and rng.random() < 0.2:
            world.give(c.CancelTrial(study=STUDY, trial=rng.choice(trials)))
        if not study.is_final and rng.random() < 0.1:
            world.give(c.PauseStudy(study=STUDY))
            world.advance()
            world.give(c.ResumeStudy(study=STUDY))
        if not world.advance():
            break
    _check_end(study)


CHECKS: dict[str, Callable[[StudySpec, int], None]] = {
    "a study comes to an end": _ends,
    "a study with failed trials comes to an end": _ends_with_failures,
    "a study of which every trial fails comes to an end": _ends_when_everything_fails,
    "the same results lead to the same decisions": _same_in_any_process,
    "every decision can be derived again": _can_be_replayed,
    "users cancel trials and pause the study": _lives_with_users,
}


def _world(spec: StudySpec, seed: int, nans: float = 0.0) -> Simulator:
    """The study on virtual slots, with random results and times."""
    others = [name for name in objectives_in(spec).metrics if name != spec.metric]

    def measure(node: Node, step: int) -> e.Metrics:
        rng = Random(f"{seed}/{node.id}/{step}")
        value = Random(f"{seed}/{node.id}").random() + 1 / math.sqrt(step) + rng.random() / 10
        first = {spec.metric: None if rng.random() < nans else round(value, 3)}
        return first | {name: round(rng.random(), 3) for name in others}

    def seconds(stage: e.Stage, number: int) -> float:
        return (stage.end - stage.start + 1) * Random(f"{seed}/{number}").uniform(0.1, 9.0)

    world = Simulator(slots=(1, 3, 20)[seed % 3], measure=measure, seconds=seconds)
    world.submit(STUDY, spec.to_json())
    return world


def _run_to_end(world: Simulator) -> None:
    for _ in range(MOST_STAGES):
        if not world.advance():
            return _check_end(world.plan.studies[STUDY])
    raise Flaw(f"the study has not come to an end after {MOST_STAGES:,} stages")


def _check_end(study: Study) -> None:
    if not study.is_final:
        standing = f"{study.active} trials active" if study.active else "no trial active"
        raise Flaw(f"the study does not end: {standing}, and the tuner wants something that cannot be had")
    if study.error and not study.failed:
        raise Flaw(f"the study fails, though no trial did: {study.error}")
    if not study.trials:
        raise Flaw("it starts no trial")
