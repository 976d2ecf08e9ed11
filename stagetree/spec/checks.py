"""What is wrong with a study as a whole: what pydantic found, and what it would ask for, counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from stagetree.limits import Limits, check_names, check_steps, check_trial
from stagetree.sequences import Sequence, SequenceError, did_you_mean
from stagetree.space import LENGTH
from stagetree.space.where import WhereError
from stagetree.spec.errors import Problem, SpecError, joined, with_choice
from stagetree.spec.fields import OTHER_NAMES, part_of, sentence
from stagetree.spec.objectives import MODES, Metric, name_first_metric
from stagetree.spec.tuners import KINDS, FixedTuner, GridTuner, HyperbandTuner, PbtTuner, TrialsTuner, TunerSpec
from stagetree.spec.tuners.base import SamplingTuner, TunedStudy
from stagetree.spec.tuners.early_stopping import MOST_DRAWS
from stagetree.spec.tuners.fixed import CustomTuner, TrialSpec

LENGTH_NAMES = (LENGTH, *OTHER_NAMES[LENGTH])

AS_EVER: dict[str, Any] = {
    "runtime_args": {},
    "determinism": "strict",
    "sinks": [],
    "packing": 0,
    "check": True,
    "audit": 0.02,
    "inexact": "alone",
    "inputs": [],
    "ranks": 1,
    "parallel": "tree",
    "devices": [],
    "keep_at": [],
    "repeats": 1,
    "metrics": [],
    "constraints": [],
    "suggestions": [],
    "learn_from": [],
}
"""Fields that are left out where they say this, as in studies from before there was a choice."""


def problem_in(detail: ErrorDetails, study: type[BaseModel], space: Any = None) -> Problem:
    """What pydantic found in the fields of a study, as a path and a sentence. space: that of the study, as written."""
    owner, names = _owner(detail["loc"], study)
    path = joined(*(part for number, part in enumerate(detail["loc"]) if not _is_tag(detail["loc"], number)))
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, SequenceError):
        return with_choice("where" if isinstance(error, WhereError) else joined(path, error.field), error.problem)
    if detail["type"].startswith("union_tag"):
        path = f"{path}.kind"
    if detail["type"] == "extra_forbidden" and isinstance(space, Mapping) and path in space:
        return Problem(path, f"is no field of a study; did you mean space.{path}?")
    return Problem(path, _sentence(detail, owner, str(names[0]) if names else ""))


def _sentence(detail: ErrorDetails, owner: type[BaseModel], name: str) -> str:
    match detail["type"]:
        case "union_tag_not_found":
            return f"is missing: one of {', '.join(KINDS)}"
        case "union_tag_invalid":
            kind = detail["ctx"]["tag"]
            return f"must be one of {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}"
    return sentence(detail, owner, name)


def _owner(loc: tuple[int | str, ...], study: type[BaseModel]) -> tuple[type[BaseModel], tuple[int | str, ...]]:
    """The model that a place belongs to, and the rest of the path in it."""
    if loc[:1] == ("metrics",):
        return (Metric, loc[2:]) if len(loc) > 2 else (study, loc)
    if len(loc) > 1 and (part := part_of(study, str(loc[0]))) is not None:
        return part, loc[1:]
    if loc[:1] != ("tuner",) or len(loc) == 1:
        return study, loc
    if loc[1:3] == ("trials", "trials") and len(loc) > 4:
        return TrialSpec, loc[4:]
    tuner = KINDS[str(loc[1])]
    if len(loc) > 3 and isinstance(loc[3], str) and (part := part_of(tuner, str(loc[2]))) is not None:
        return part, loc[3:]
    return tuner, loc[2:]


def _is_tag(loc: tuple[int | str, ...], number: int) -> bool:
    """Whether a part of a place is not in the user's object, but pydantic's own: the kind of the tuner."""
    return (number == 1 and loc[0] == "tuner") or loc[number] == "[key]"


def in_our_words(written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a study where others write them elsewhere: `maximize`, `minimize`, the tuner's `n_trials`.

    Raises `SpecError` where what they say is said already.
    """
    fields = dict(written)
    name_first_metric(fields)
    problems = [*_several_metrics(fields), *_objective(fields), *_number_of_trials(fields)]
    if problems:
        raise SpecError(problems)
    return fields


def _several_metrics(fields: Mapping[str, Any]) -> Iterator[Problem]:
    """`directions`, and a list of metrics without their modes: others have these in two lists of one order."""
    if "directions" in fields or isinstance(fields.get("metric"), list | tuple):
        name = "directions" if "directions" in fields else "metric"
        yield Problem(name, "for several, write metrics: [{name: val_acc, mode: max}, {name: seconds, mode: min}]")


def _objective(fields: dict[str, Any]) -> Iterator[Problem]:
    """`maximize: true`, `minimize: loss`: the mode, and the metric perhaps."""
    for name in [name for name in MODES if name in fields]:
        value = fields.pop(name)
        if not isinstance(value, bool | str):
            yield Problem(name, f"must be true, false or the name of a metric, got {value!r}")
        elif already := [each for each in ("mode", *OTHER_NAMES["mode"]) if each in fields]:
            yield Problem(name, f"must be left out beside {already[0]}, which says it already")
        elif isinstance(value, str) and "metric" in fields:
            yield Problem(name, "must be true or false beside metric, which names it already")
        else:
            fields["mode"] = MODES[name] if value else min(set(MODES.values()) - {MODES[name]})
            fields |= {"metric": value} if isinstance(value, str) else {}


def _number_of_trials(fields: dict[str, Any]) -> Iterator[Problem]:
    names = ("num_trials", *OTHER_NAMES["num_trials"])
    for name in [name for name in names if name in fields]:
        value, tuner = fields.pop(name), fields.get("tuner")
        if not isinstance(tuner, Mapping):
            yield Problem(name, "must be a field of the tuner")
        elif already := [each for each in (*names, "population_size") if each in tuner]:
            yield Problem(name, f"must be left out beside tuner.{already[0]}, which says it already")
        else:
            fields["tuner"] = {**tuner, name: value}


def missing_length(written: Mapping[str, Any]) -> Iterator[Problem]:
    """Where neither the tuner of a study nor its space says for how many steps each trial is trained."""
    tuner, space = written.get("tuner"), written.get("space")
    if isinstance(tuner, Mapping):
        kind, is_said = KINDS.get(str(tuner.get("kind")), object), not tuner.keys().isdisjoint(LENGTH_NAMES)
    else:
        kind, is_said = type(tuner), getattr(tuner, LENGTH, None) is not None
    is_in_space = isinstance(space, Mapping) and LENGTH in space
    if issubclass(kind, FixedTuner) and not is_said and not is_in_space:
        yield Problem("tuner.max_steps", "is missing: the number of steps to train each trial for, at least 1")


def check_length(written: Mapping[str, Any]) -> None:
    """Raises `SequenceError` where the space has a length for each trial, and the tuner decides how long they are."""
    tuner, space = written.get("tuner"), written.get("space")
    kind = KINDS.get(str(tuner.get("kind"))) if isinstance(tuner, Mapping) else type(tuner)
    if not isinstance(space, Mapping) or LENGTH not in space or kind in (None, CustomTuner):
        return
    if issubclass(kind, SamplingTuner):
        able = " and ".join(name for name, each in KINDS.items() if issubclass(each, FixedTuner))
        decides = f"{kind.model_fields['kind'].default} decides how long each trial is, up to tuner.{LENGTH}"
        raise SequenceError(f"space.{LENGTH}", f"must be left out: {decides}; the space may say it for {able}")


_COUNTED = 200_000
"""How many pieces of sequences are counted here; what lies behind is counted when the trial is asked for."""

_OPTIONS = 1000
"""How many of the ways to choose inside an entry are looked at."""


class CountedStudy(TunedStudy, Protocol):
    """What is looked at of a study whose trials are counted."""

    @property
    def seed(self) -> int: ...
    @property
    def tuner(self) -> TunerSpec: ...


def check_limits(spec: CountedStudy, limits: Limits) -> None:
    """Raises `SpecError` with all that is too much."""
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
    if isinstance(tuner, FixedTuner) and tuner.max_steps is not None and LENGTH in (spec.space or {}):
        raise SequenceError("tuner.max_steps", "must be left out: the space says max_steps, for each trial")
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
    """min_steps * eta ** rate, no further than it takes to be more than `most`."""
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
    """How many trials the study can have, and the field that says so."""
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
        drawn = tuner.population_size * (1 if tuner.chance is None else MOST_DRAWS)
        return "tuner.population_size", (drawn + (generations - 1) * replaced) * tuner.populations
    return "tuner.num_trials", getattr(tuner, "num_trials", 0)


TRIALS_EACH = 3
"""The most trials that a configuration makes on the average where each rung has cooldowns: one, and eta / (eta - 1)."""


def _check_parameters(spec: CountedStudy, limits: Limits) -> None:
    for at, configuration in _named(spec):
        try:
            check_names(configuration, limits)
        except SequenceError as error:
            raise SequenceError(at, error.problem) from None
    if spec.space and (free := len(spec.search_space.parameters())) > limits.parameters:
        raise SequenceError("space", f"must leave at most {limits.parameters:,} values to choose, got {free:,}")


def _named(spec: CountedStudy) -> Iterator[tuple[str, dict[str, Any]]]:
    if spec.space:
        yield "space", spec.space
    if isinstance(spec.tuner, TrialsTuner):
        yield from ((f"tuner.trials[{n}].hp", trial.hp) for n, trial in enumerate(spec.tuner.trials))


def _check_space(spec: CountedStudy, limits: Limits) -> None:
    """Sequences and trials, as far as they are counted in reasonable time."""
    left = _COUNTED
    for path, hp, steps in _trials(spec):
        try:
            left -= check_trial(hp, steps, spec.eval_every, limits)
        except SequenceError as error:
            raise SequenceError(".".join(filter(None, (path, error.field))), error.problem) from None
        if left < 0:
            return


def _trials(spec: CountedStudy) -> Iterator[tuple[str, dict[str, Any], int]]:
    """The path, the hyper-parameters and the steps of trials that the study can have, each entry's options alone."""
    if isinstance(spec.tuner, TrialsTuner):
        for number, trial in enumerate(spec.tuner.trials):
            yield f"tuner.trials[{number}].hp", trial.hp, trial.steps
    steps = getattr(spec.tuner, "max_steps", None) or getattr(spec.tuner, "min_steps", None) or 1
    for name in spec.search_space.hyper_parameters if spec.space else ():
        for sequence, length in islice(spec.search_space.examples(name), _OPTIONS):
            yield "space", {name: sequence.to_json()}, length or steps
    if spec.space:
        first = _first(spec)
        steps = spec.search_space.length_of(first) or steps
        yield "space", {name: each.to_json() for name, each in spec.search_space.without_length(first).items()}, steps


def _first(spec: CountedStudy) -> dict[str, Sequence]:
    space = spec.search_space
    return next(space.grid()) if isinstance(spec.tuner, GridTuner) else space.sample(spec.seed, 0)
