"""Limits: counts the trials, steps and pieces that a study would create."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from stagetree.limits import Limits, check_name_count, check_names, check_steps, check_trial
from stagetree.sequences import SequenceError
from stagetree.spec.errors import FieldError, Problem, SpecError
from stagetree.spec.tuners import GridTuner, HyperbandTuner, PbtTuner, TrialsTuner, TunerSpec
from stagetree.spec.tuners.base import SamplingTuner, TunedStudy
from stagetree.spec.tuners.pbt import MAX_DRAWS

_COUNTED = 200_000
"""How many pieces of sequences are counted here. Longer sequences are counted when the trial begins."""

_OPTIONS = 1000
"""How many of the ways to choose inside an entry are checked."""


def check_written_names(values: Mapping[str, Any], limits: Limits) -> None:
    """Raise `SequenceError` for the names in a study as written, before anything that takes longer with each name."""
    for field, names in _written_names(values):
        if isinstance(names, Mapping):
            try:
                check_name_count(len(names), limits)
            except SequenceError as error:
                raise FieldError(field, error.problem) from None


def _written_names(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "space", values.get("space")
    tuner = values.get("tuner")
    fields = tuner if isinstance(tuner, Mapping) else {}
    for field, part in (("first", None), ("trials", "hp")):
        listed = fields.get(field)
        for number, item in enumerate(listed if isinstance(listed, list) else ()):
            if part is None:
                yield f"tuner.{field}[{number}]", item
            elif isinstance(item, Mapping):
                yield f"tuner.{field}[{number}].{part}", item.get(part)


class CountedStudy(TunedStudy, Protocol):
    """The fields of a study that counting depends on."""

    @property
    def seed(self) -> int: ...
    @property
    def tuner(self) -> TunerSpec: ...


def check_limits(spec: CountedStudy, limits: Limits) -> None:
    """Raises `SpecError` with everything that exceeds the limits."""
    if problems := list(_problems(spec, limits)):
        raise SpecError(problems)


def _problems(spec: CountedStudy, limits: Limits) -> Iterator[Problem]:
    for check in (_check_steps, _check_trials, _check_parameters, _check_space):
        try:
            check(spec, limits)
        except SequenceError as error:
            yield Problem(error.field, error.problem)
            return


def _check_steps(spec: CountedStudy, limits: Limits) -> None:
    tuner = spec.tuner
    for name in ("max_steps", "min_steps"):
        if (steps := getattr(tuner, name, None)) is not None:
            check_steps(f"tuner.{name}", steps, spec.eval_every, limits)
    for steps in spec.search_space.lengths if spec.space else ():
        check_steps("space.max_steps", steps, spec.eval_every, limits)
    most = getattr(tuner, "max_steps", None)
    for name in ("interval", "ready_steps"):
        if most is not None and (every := getattr(tuner, name, None)) is not None:
            check_steps(f"tuner.{name}", most, every, limits)
    if (rate := getattr(tuner, "early_stopping_rate", 0)) and _lowest_rung(tuner, rate, limits.steps) > limits.steps:
        raise SequenceError(
            "tuner.early_stopping_rate",
            f"must leave the lowest rung at {limits.steps:,} steps at most, got {rate}",
        )


def _lowest_rung(tuner: object, rate: int, most: int) -> int:
    """min_steps * eta ** rate, computed only until it exceeds `most`."""
    steps = int(getattr(tuner, "min_steps", None) or 1)
    for _ in range(rate):
        if steps > most:
            break
        steps *= int(getattr(tuner, "reduction_factor", 2))
    return steps


def _check_trials(spec: CountedStudy, limits: Limits) -> None:
    field, trials = _most_trials(spec)
    trials *= TRIALS_EACH if getattr(spec.tuner, "rung_value", None) else 1
    if trials > limits.trials:
        got = f"{trials:,}" if trials < 10**18 else "far more"
        raise SequenceError(field, f"must make at most {limits.trials:,} trials, got {got}")


def _most_trials(spec: CountedStudy) -> tuple[str, int]:
    """The maximum number of trials of the study, and the field that determines it."""
    tuner = spec.tuner
    if isinstance(tuner, GridTuner) or (isinstance(tuner, SamplingTuner) and tuner.sampler == "grid"):
        return "space", spec.search_space.combinations()
    if isinstance(tuner, TrialsTuner):
        return "tuner.trials", len(tuner.trials)
    if isinstance(tuner, HyperbandTuner):
        return "tuner.max_steps", sum(tuner.widths()) * tuner.loops
    if isinstance(tuner, PbtTuner):
        generations = -(-tuner.max_steps // tuner.ready_steps)
        replaced = max(1, int(tuner.population_size * tuner.quantile))
        drawn = tuner.population_size * (1 if tuner.chance is None else MAX_DRAWS)
        return "tuner.population_size", (drawn + (generations - 1) * replaced) * tuner.populations
    return "tuner.num_trials", getattr(tuner, "num_trials", 0)


TRIALS_EACH = 3
"""With cooldowns at each rung, a configuration makes at most this many trials on average: 1 + eta / (eta - 1)."""


def _check_parameters(spec: CountedStudy, limits: Limits) -> None:
    for at, configuration in _named_configurations(spec):
        try:
            check_names(configuration, limits)
        except SequenceError as error:
            raise SequenceError(at, error.problem) from None
    if spec.space and (free := len(spec.search_space.parameters())) > limits.parameters:
        raise SequenceError("space", f"must leave at most {limits.parameters:,} values to choose, got {free:,}")


def _named_configurations(spec: CountedStudy) -> Iterator[tuple[str, dict[str, Any]]]:
    if spec.space:
        yield "space", spec.space
    if isinstance(spec.tuner, TrialsTuner):
        yield from ((f"tuner.trials[{n}].hp", trial.hp) for n, trial in enumerate(spec.tuner.trials))


def _check_space(spec: CountedStudy, limits: Limits) -> None:
    """Check sequences and trials, as far as they can be counted in reasonable time."""
    left = _COUNTED
    for path, hp, steps in _trials(spec):
        try:
            left -= check_trial(hp, steps, spec.eval_every, limits)
        except SequenceError as error:
            raise SequenceError(error.nested_field(path), error.problem) from None
        if left < 0:
            return


def _trials(spec: CountedStudy) -> Iterator[tuple[str, dict[str, Any], int]]:
    """The path, hyper-parameters and length of possible trials, one for each option of each entry."""
    if isinstance(spec.tuner, TrialsTuner):
        for number, trial in enumerate(spec.tuner.trials):
            yield f"tuner.trials[{number}].hp", trial.hp, trial.steps
    steps = getattr(spec.tuner, "max_steps", None) or getattr(spec.tuner, "min_steps", None) or 1
    for name in spec.search_space.hyper_parameters if spec.space else ():
        for sequence, length in islice(spec.search_space.examples(name), _OPTIONS):
            yield "space", {name: sequence.to_json()}, length or steps
    if spec.space:
        space = spec.search_space
        first = next(space.grid()) if isinstance(spec.tuner, GridTuner) else space.sample(spec.seed, 0)
        steps = spec.search_space.length_of(first) or steps
        yield "space", {name: each.to_json() for name, each in spec.search_space.drop_length(first).items()}, steps
