"""What samplers learn from: the trials of their study, and results of other studies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple, Protocol, runtime_checkable

from app.domain.results import sign
from app.domain.rung_values import RungValues
from app.domain.sampler_inputs import ResultsLearned
from app.domain.search_plan import Study, TrialEvent
from app.domain.terms import TrialEventKind
from app.search.samplers.base import Values, to_json
from stagetree.sequences import parse
from stagetree.spec import StudySpec

Json = dict[str, Any]

MOST_TRIALS = 200
"""How many trials of another study are learned from: the best."""

ByTrial = dict[int, dict[int, float]]
"""The values of each trial, by step."""


class Learned(NamedTuple):
    """A trial of another study: its values, and the metric after each requested step."""

    sample: Values
    results: Mapping[int, float]


@runtime_checkable
class Learns(Protocol):
    """A sampler that learns from other studies too."""

    def learn(self, trials: Sequence[Learned]) -> None:
        """Take them in, before any event of its own study."""
        ...


def learned_trials(events: Iterable[ResultsLearned]) -> list[Learned]:
    trials = (trial for event in events for trial in event.results)
    return [Learned(trial["sample"], dict(trial["values"])) for trial in trials]


class NothingToLearn(Exception):
    """A study from which the sampler cannot learn. The message states the requirement."""


def results_for(spec: StudySpec, source: Study) -> tuple[list[Json], dict[str, int]]:
    """`results` and `left_out` of a `ResultsLearned`: from `source`, for a new study. Raises `NothingToLearn`."""
    if source.spec.mode != spec.mode:
        raise NothingToLearn(f"must be a study whose mode is {spec.mode}, and {source.id} has {source.spec.mode}")
    measured = _results_by_trial(source, spec.metric)
    if not measured:
        raise NothingToLearn(f"must be a study with results of {spec.metric}, and {source.id} has none")
    samples = {trial: sample for trial in measured if (sample := _sample(source, trial, spec)) is not None}
    if not samples:
        raise NothingToLearn(_no_space(source, spec))
    most = getattr(spec.tuner, "max_steps", None)
    early = {trial: [s for s in sorted(measured[trial]) if most is None or s <= most] for trial in samples}
    usable = {trial: {step: measured[trial][step] for step in steps} for trial, steps in early.items() if steps}
    if not usable:
        raise NothingToLearn(f"must be a study with results after at most {most} steps, and {source.id} has none")
    best = sorted(usable, key=lambda trial: (sign(source) * usable[trial][max(usable[trial])], trial))[:MOST_TRIALS]
    results = [
        {"trial": trial, "sample": samples[trial], "values": [list(each) for each in usable[trial].items()]}
        for trial in sorted(best)
    ]
    in_space, in_steps = len(samples), len(usable)
    counts = {"space": len(measured) - in_space, "steps": in_space - in_steps, "most": in_steps - len(best)}
    return results, {reason: count for reason, count in counts.items() if count}


def _results_by_trial(source: Study, metric: str) -> ByTrial:
    """The metric of each trial that has results, as the study's tuner sees them."""
    values, rung_values = ByTrial(), RungValues(source.spec.tuner)
    for event in filter(None, map(rung_values.read, source.history)):
        value = event.metrics.get(metric) if event.kind == TrialEventKind.RESULT else None
        if value is not None and isfinite(value):
            values.setdefault(event.trial, {})[event.steps] = value
    return values


def _sample(source: Study, trial: int, spec: StudySpec) -> Values | None:
    """The trial's values in the space of the new study; None if it is outside, or `where` rejects it."""
    configuration = {name: parse(value) for name, value in source.trials[trial].hp.items()}
    values = spec.search_space.values(configuration)
    return values if values is not None and spec.search_space.allows(configuration) else None


def _no_space(source: Study, spec: StudySpec) -> str:
    """Why no trial lies in the new study's space."""
    ours, theirs = sorted(spec.search_space.patterns), sorted({name for trial in source.trials for name in trial.hp})
    if ours != theirs:
        ours_text, theirs_text = ", ".join(ours), ", ".join(theirs)
        return f"must be a study of the same hyper-parameters, {ours_text}, and {source.id} has {theirs_text}"
    return f"must be a study with a trial in this one's space, and none of the trials of {source.id} is in it"


@dataclass(slots=True)
class KnownTrial:
    """A trial that was sampled. losses: by step."""

    number: int
    sample: Values
    hp: Mapping[str, Any]
    losses: dict[int, float] = field(default_factory=dict)
    has_failed: bool = False
    is_over: bool = False

    @property
    def last(self) -> int:
        """The highest step with a loss."""
        return max(self.losses)

    @property
    def rank(self) -> tuple[int, float]:
        """Less is better: trials by the steps that they reached, and then by the loss there."""
        return -self.last, self.losses[self.last]

    @property
    def earlier(self) -> int | None:
        """The highest step with a loss up to half of the last one."""
        return max((step for step in self.losses if 2 * step <= self.last), default=None)

    @property
    def is_waiting(self) -> bool:
        """Whether it is under way, and has no result."""
        return not (self.losses or self.has_failed or self.is_over)


class KnownTrials:
    """The trials of a study, and of other studies, which have negative numbers. Losses are to be minimized."""

    def __init__(self, spec: StudySpec) -> None:
        self._space, self._metric, self._sign = spec.search_space, spec.metric, -1.0 if spec.mode == "max" else 1.0
        self._by_number = dict[int, KnownTrial]()

    def __iter__(self) -> Iterator[KnownTrial]:
        return iter(self._by_number.values())

    def learn(self, trials: Sequence[Learned]) -> None:
        for sample, results in trials:
            number, hp = -1 - sum(each < 0 for each in self._by_number), to_json(self._space.build(sample))
            losses = {step: self._sign * value for step, value in results.items()}
            self._by_number[number] = KnownTrial(number, sample, hp, losses, is_over=True)

    def observe(self, event: TrialEvent) -> None:
        trial = self._by_number.get(event.trial)
        match event.kind:
            case TrialEventKind.START if "sample" in event.reason:
                self._by_number[event.trial] = KnownTrial(event.trial, event.reason["sample"], event.hp)
            case TrialEventKind.CANCEL:
                self._by_number.pop(event.trial, None)
            case TrialEventKind.RESULT if trial and (value := event.metrics.get(self._metric)) is not None:
                trial.losses[event.steps] = self._sign * value
            case TrialEventKind.STOP if trial:
                trial.is_over = True
            case TrialEventKind.FAIL if trial:
                trial.has_failed = True

    @property
    def has_rungs(self) -> bool:
        """Whether trials of this study have results at different steps."""
        return len({step for trial in self if trial.number >= 0 for step in trial.losses}) > 1

    def ranked(self) -> list[KnownTrial]:
        """The trials with results, best first."""
        return sorted((trial for trial in self if trial.losses), key=lambda trial: trial.rank)

    def failed(self) -> list[KnownTrial]:
        """The trials that failed before they had a result."""
        return [trial for trial in self if trial.has_failed and not trial.losses]
