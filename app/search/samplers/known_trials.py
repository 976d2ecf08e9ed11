"""What a sampler with a model knows of each trial: its values, and its loss at every requested step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.samplers.base import Values, to_json
from app.search.samplers.learning import Learned
from stagetree.spec import StudySpec


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
