"""TPE and CMA-ES, by Optuna's samplers: they learn from results.

Optuna gets the history, and proposes one configuration at a time. A proposal is a function of the study file and of
the history: each has a sampler of its own, seeded by the study's seed and the proposal's number, on an Optuna study
that can be rebuilt from the history at any time. All work waits until a proposal is needed.

TPE learns from every result, by ranks: trials are ordered by the steps that they reached and then by the metric there,
as Optuna orders pruned trials, and a trial that failed is the worst. CMA-ES learns from the first result of each trial,
because it uses each generation once. The field `per_rung` chooses otherwise for TPE. With `false`, it learns from the
metric at the highest step that each trial reached. With `true`, it learns from the metric at one step for all, the
highest one with enough results: each rung has a model of its own (Falkner et al. 2018, BOHB, §3.2), which knows nothing
of the trials that were stopped before it. Where trials are stopped early, a part of what TPE proposes is random.

Trials without a value are reported to Optuna as failed, and left out of the model. Running trials are reported as
running: TPE treats them as bad ones (a constant liar).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.samplers.base import Knowledge, Maker, Proposal, Values, is_random, to_json
from app.search.samplers.learning import Learned
from stagetree.space import Choice, Choose, Distribution
from stagetree.spec import StudySpec
from stagetree.spec.tuners.base import DRAWN_FIRST

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

ATTEMPTS = 50
"""Samples rejected by `where` before a random configuration is taken."""

REPEATS = 10
"""Repeated samples before a random configuration is taken: a model that is sure of its best proposes it again and
again.
"""

_ENDS = frozenset({"result", "fail", "stop", "cancel"})


class Fidelity(Enum):
    """How results at different steps are put into one model."""

    RANKED = auto()
    """All of them, by the steps reached and then by the metric."""
    PER_RUNG = auto()
    """Those at the highest step with enough of them."""
    HIGHEST = auto()
    """The metric at the highest step of each trial."""


class KnownResult(NamedTuple):
    """The result of a trial for Optuna. value: None if it failed.

    pruned_at: the steps after which it ended; None for a result that is compared by its value alone.
    """

    value: float | None
    pruned_at: int | None = None


class OptunaSampler:
    """Proposals of one of Optuna's samplers.

    Each trial's reason records `sample`, the values, and `asked`, the number of samples taken from Optuna.
    mirror: Optuna's knowledge; None until it is needed.
    """

    adaptive = True

    def __init__(self, spec: StudySpec, kind: str) -> None:
        self._spec, self._kind = spec, kind
        self._seen: list[TrialEvent] = []
        self._learned: list[Learned] = []
        self._maker = Maker(spec)
        self.mirror: OptunaMirror | None = None
        self._last: tuple[tuple[int, int], Proposal | None] | None = None

    def size(self) -> int | None:
        return self._maker.size

    def learn(self, trials: Sequence[Learned]) -> None:
        self._learned += trials
        self.mirror = self._last = None

    def observe(self, event: TrialEvent) -> None:
        self._seen.append(event)
        if event.kind == TrialEventKind.START:
            self._maker.take(event.hp)

    def propose(self, number: int) -> Proposal | None:
        now = (number, len(self._seen))
        if self._last is None or self._last[0] != now:
            self._last = (now, self._ask(number))
        return self._last[1]

    def complete(self, number: int, fixed: Values) -> Proposal | None:
        return self._ask_optuna(number, fixed)[0]

    def _ask(self, number: int) -> Proposal | None:
        steps = {event.steps for event in self._seen if event.kind == TrialEventKind.RESULT}
        if self._kind == "tpe" and len(steps) > 1 and is_random(self._spec.sampling_seed, number):
            return self._sample(number, 0)
        chosen, asked = self._ask_optuna(number)
        return chosen or self._sample(number, asked)

    def _ask_optuna(self, number: int, fixed: Values | None = None) -> tuple[Proposal | None, int]:
        """A new configuration from Optuna, or None; and the number of samples taken."""
        mirror = self._sync_mirror()
        asked = repeats = 0
        while asked < ATTEMPTS and repeats < REPEATS:
            made, asked = self._maker.build(mirror.ask(f"{number}/{asked}"), fixed), asked + 1
            if made is not None and self._maker.is_new(made[1]):
                return Proposal(to_json(made[1]), {"sample": made[0], "asked": asked}), asked
            repeats += made is not None
        return None, asked

    def _sync_mirror(self) -> OptunaMirror:
        self.mirror = self.mirror or OptunaMirror(self._spec, self._kind, self._learned)
        self.mirror.catch_up(self._seen)
        return self.mirror

    def knowledge(self) -> Knowledge:
        mirror = self._sync_mirror()
        return Knowledge(mirror.level, mirror.results(), DRAWN_FIRST[self._kind])

    def _sample(self, number: int, asked: int) -> Proposal | None:
        """A random configuration; None if none is left."""
        if (drawn := self._maker.sample(number)) is None:
            return None
        sample, configuration = drawn
        return Proposal(to_json(configuration), {} if sample is None else {"sample": sample, "asked": asked})


class OptunaMirror:
    """An Optuna study that is kept in step with the history.

    Each question to Optuna leaves a failed trial in the study, which its samplers ignore. These are counted, and
    recreated when the study is rebuilt, because CMA-ES seeds by the number of a trial.
    """

    def __init__(self, spec: StudySpec, kind: str, learned: Sequence[Learned] = ()) -> None:
        tuner: Any = spec.tuner
        self._fidelity = _fidelity(kind, tuner.per_rung)
        self._full = getattr(tuner, "max_steps", None)
        self._learned = {-number: trial for number, trial in enumerate(learned, start=1)}
        self._results: dict[int, dict[int, float | None]] = {  # by trial and step; learned trials are negative
            number: dict(results) for number, (_, results) in self._learned.items()
        }
        self.level: int | None = None
        self._optuna = load_optuna()
        self._spec, self._kind, self._once = spec, kind, kind == "cmaes"
        self._free = spec.search_space.parameters()
        self._judged = {number: self._verdict(*max(results.items())) for number, results in self._results.items()}
        self._verdicts = self._judged  # what Optuna must know; None of a trial without a result
        self._begin()

    def _begin(self) -> None:
        direction = "maximize" if self._spec.mode == "max" else "minimize"
        self.study: Study = self._optuna.create_study(direction=direction)
        self.numbers: dict[int, int] = {}
        self._settled: dict[int, KnownResult | None] = {}  # by trial: what Optuna knows
        self._asked = self._read = 0
        self.open: Trial | None = None
        for number, (sample, _) in self._learned.items():
            if (verdict := self._verdicts[number]) is not None:
                self._add(sample, verdict)

    def results(self) -> int:
        """How many results Optuna knows."""
        states = [self._optuna.trial.TrialState.COMPLETE, self._optuna.trial.TrialState.PRUNED]
        return len(self.study.get_trials(deepcopy=False, states=states))

    def ask(self, key: str) -> Choose:
        """Optuna's choice of values, valid until the next question. key: seeds the random numbers."""
        self._give_up()
        trial = self.open = self._trial(key)
        return lambda place, free: _suggest(trial, place, free)

    def _trial(self, key: str) -> Trial:
        seed = int.from_bytes(sha256(f"{self._spec.sampling_seed}/{key}".encode()).digest()[:4])
        self.study.sampler = _sampler(self._kind, seed)
        return self.study.ask()

    def _give_up(self) -> None:
        if self.open is not None:
            self._tell(self.open.number, None)
            self._asked += 1
            self.open = None

    # What happened

    def catch_up(self, seen: Sequence[TrialEvent]) -> None:
        """Tell Optuna the new events; rebuild the study if its data are outdated."""
        self._give_up()
        for event in seen[self._read :]:
            self._judge(event)
        level = self._level_with_enough() if self._fidelity == Fidelity.PER_RUNG else None
        has_moved, self.level = level != self.level, level
        if level is not None:
            self._verdicts = {trial: _verdict_at(self._results.get(trial, {}), level) for trial in self._judged}
        if has_moved or self._is_stale(seen[self._read :]):
            self._begin()
        for event in seen[self._read :]:
            self._take(event)
        self._read = len(seen)

    def _judge(self, event: TrialEvent) -> None:
        if self._once and event.trial in self._judged:
            return
        match event.kind:
            case TrialEventKind.RESULT:
                value = event.metrics.get(self._spec.metric)
                self._results.setdefault(event.trial, {})[event.steps] = value
                self._judged[event.trial] = self._verdict(event.steps, value)
            case TrialEventKind.FAIL:
                self._judged[event.trial] = self._verdict(0, None)
            case TrialEventKind.STOP | TrialEventKind.CANCEL:
                self._judged.setdefault(event.trial, None)

    def _verdict(self, steps: int, value: float | None) -> KnownResult | None:
        """The verdict on a trial that has reached `steps` with this value; None there if it failed."""
        if self._fidelity == Fidelity.RANKED and (value is None or steps != self._full):
            return KnownResult(value, steps)
        return None if value is None else KnownResult(value)

    def _level_with_enough(self) -> int | None:
        """The highest step with enough results; else the step with the most, the lowest of equals; None without
        results.
        """
        measured = self._results.values()
        counts = Counter(step for results in measured for step, value in results.items() if value is not None)
        enough = [step for step, count in counts.items() if count >= DRAWN_FIRST[self._kind]]
        return max(enough) if enough else min(counts, key=lambda step: (-counts[step], step), default=None)

    def _is_stale(self, news: Sequence[TrialEvent]) -> bool:
        """Whether Optuna has an outdated result of a trial, or gave samples that became no trial."""
        asked = next((event.reason.get("asked", 0) for event in news if event.kind == TrialEventKind.START), 0)
        return self._asked > asked or any(self._verdicts[trial] != told for trial, told in self._settled.items())

    def _take(self, event: TrialEvent) -> None:
        if event.kind == TrialEventKind.START and "sample" in event.reason:
            self._start(event.trial, event.reason["sample"], event.reason.get("asked", 0))
        elif event.kind in _ENDS and event.trial in self.numbers and event.trial not in self._settled:
            verdict = self._settled[event.trial] = self._verdicts[event.trial]
            self._tell(self.numbers[event.trial], verdict)

    def _start(self, number: int, sample: Values, asked: int) -> None:
        """Add a running trial with these values."""
        for _ in range(asked - self._asked):
            self.study.add_trial(self._optuna.create_trial(state=self._optuna.trial.TrialState.FAIL))
        self._asked = 0
        self.numbers[number] = len(self.study.get_trials(deepcopy=False))
        if self._once:  # CMA-ES keeps its state in the trials that it sampled
            self.study.enqueue_trial(sample)
            trial = self._trial(f"{number}")
            _ = trial.relative_params  # for the side effect
            for name in sample:
                _suggest(trial, name, self._free[name])
        else:
            self._add(sample)

    def _add(self, sample: Values, verdict: KnownResult | None = None) -> None:
        """Add a trial with these values: a finished one with its verdict, else a running one."""
        free = {name: _distribution(self._free[name]) for name in sample}
        state = self._optuna.trial.TrialState.RUNNING
        trial = self._optuna.create_trial(state=state, params=sample, distributions=free)
        self.study.add_trial(trial)
        if verdict is not None:
            self._tell(len(self.study.get_trials(deepcopy=False)) - 1, verdict)

    def _tell(self, number: int, verdict: KnownResult | None) -> None:
        if verdict is None:
            self.study.tell(number, state=self._optuna.trial.TrialState.FAIL)
        elif verdict.pruned_at is None:
            self.study.tell(number, verdict.value)
        else:
            if verdict.value is not None:
                trial = self.study.get_trials(deepcopy=False)[number]
                self._optuna.trial.Trial(self.study, trial._trial_id).report(verdict.value, verdict.pruned_at)
            self.study.tell(number, state=self._optuna.trial.TrialState.PRUNED)


def _fidelity(kind: str, per_rung: bool | None) -> Fidelity:
    if per_rung:
        return Fidelity.PER_RUNG
    return Fidelity.RANKED if kind == "tpe" and per_rung is None else Fidelity.HIGHEST


def _verdict_at(results: Mapping[int, float | None], step: int) -> KnownResult | None:
    value = results.get(step)
    return None if value is None else KnownResult(value)


@cache
def load_optuna() -> Any:
    """The library, with its logging off."""
    try:
        import optuna
    except ImportError:
        raise RuntimeError("this sampler needs Optuna: pip install 'stagetree[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _sampler(kind: str, seed: int) -> BaseSampler:
    from optuna.samplers import CmaEsSampler, TPESampler

    if kind == "cmaes":
        return CmaEsSampler(seed=seed, warn_independent_sampling=False)
    # not multivariate: better on recorded curves
    return TPESampler(seed=seed, n_startup_trials=DRAWN_FIRST[kind], multivariate=False, constant_liar=True)


def _suggest(trial: Trial, place: str, free: Distribution) -> Any:
    if isinstance(free, Choice):
        return trial.suggest_categorical(place, range(len(free.options)))
    if free.is_whole:
        return trial.suggest_int(place, free.low, free.high, step=free.step, log=free.is_log)
    return free.near(trial.suggest_float(place, free.low, free.high, step=_float_step(free), log=free.is_log))


def _distribution(free: Distribution) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(free, Choice):
        return CategoricalDistribution(range(len(free.options)))
    if free.is_whole:
        return IntDistribution(free.low, free.high, step=free.step, log=free.is_log)
    return FloatDistribution(free.low, free.high, step=_float_step(free), log=free.is_log)


def _float_step(free: Distribution) -> float | None:
    """Optuna has no steps on a log scale: a number is sampled there, and rounded to the nearest step."""
    return None if isinstance(free, Choice) or free.is_log else free.step
