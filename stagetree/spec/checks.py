"""Checks of a study as a whole: errors from pydantic as sentences, fields that contradict each other, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from stagetree.limits import Limits, check_name_count, check_names, check_steps, check_trial
from stagetree.sequences import SequenceError, did_you_mean
from stagetree.space import LENGTH
from stagetree.space.where import WhereError
from stagetree.spec.errors import FieldError, Problem, SpecError, add_choice_hint, join_path
from stagetree.spec.fields import OTHER_NAMES, part_of, sentence
from stagetree.spec.objectives import MODES, Metric, name_first_metric
from stagetree.spec.tuners import KINDS, FixedTuner, GridTuner, HyperbandTuner, PbtTuner, TrialsTuner, TunerSpec
from stagetree.spec.tuners.base import SamplerName, SamplingTuner, TunedStudy
from stagetree.spec.tuners.fixed import CustomTuner, TrialSpec
from stagetree.spec.tuners.pbt import MAX_DRAWS

LENGTH_NAMES = (LENGTH, *OTHER_NAMES[LENGTH])
SAMPLERS = get_args(SamplerName)


def problem_in(detail: ErrorDetails, study: type[BaseModel], space: Any) -> Problem:
    """A pydantic error as path and sentence. space: the study's space as written."""
    owner, names = _owner(detail["loc"], study)
    path = join_path(*(part for number, part in enumerate(detail["loc"]) if not _is_tag(detail["loc"], number)))
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, SequenceError):
        return add_choice_hint(
            "where" if isinstance(error, WhereError) else join_path(path, error.field), error.problem
        )
    if detail["type"].startswith("union_tag"):
        path = f"{path}.kind"
    if detail["type"] == "extra_forbidden" and space is EMPTY and path.isidentifier() and not _is_meant(path, study):
        return Problem(path, f"stands beside space: indent it, so that {path} is in the space")
    if detail["type"] == "extra_forbidden" and isinstance(space, Mapping) and path in space:
        return Problem(path, f"is no field of a study; did you mean space.{path}?")
    if detail["type"] == "extra_forbidden" and path in _names(*KINDS.values()) - _names(study):
        return Problem(path, f"is no field of a study; did you mean tuner.{path}?")
    return Problem(path, _sentence(detail, owner, str(names[0]) if names else "") + _length_hint(path, detail["input"]))


EMPTY = object()
"""For a `space:` with nothing in it."""


def _is_meant(name: str, study: type[BaseModel]) -> bool:
    """Whether a name is nearly one of a study's or tuner's fields."""
    return bool(did_you_mean(name, _names(study, *KINDS.values())))


def _length_hint(path: str, given: Any) -> str:
    """Where a length stands that is searched or that follows from a schedule, if it was given as the tuner's."""
    if path != "tuner.max_steps" or not isinstance(given, Mapping | list):
        return ""
    return "; a length that is searched, or that a schedule ends, is a hyper-parameter: space.max_steps"


def _names(*kinds: type[BaseModel]) -> set[str]:
    """All field names of these models."""
    names = {name for kind in kinds for name in kind.model_fields}
    return names | {other for name in names for other in OTHER_NAMES.get(name, ())}


def _sentence(detail: ErrorDetails, owner: type[BaseModel], name: str) -> str:
    match detail["type"]:
        case "union_tag_not_found":
            return f"is missing: one of {', '.join(KINDS)}"
        case "union_tag_invalid":
            kind = detail["ctx"]["tag"]
            meant = f"; {kind} is a sampler: {{kind: asha, sampler: {kind}}}" if kind in SAMPLERS else ""
            return f"must be one of {', '.join(KINDS)}, got {kind!r}{meant or did_you_mean(kind, KINDS)}"
    return sentence(detail, owner, name)


def _owner(loc: tuple[int | str, ...], study: type[BaseModel]) -> tuple[type[BaseModel], tuple[int | str, ...]]:
    """The model that a location belongs to, and the rest of the path in it."""
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
    """Whether a part of a location was added by pydantic (the kind of the tuner) and is not in the user's object."""
    return (number == 1 and loc[0] == "tuner") or loc[number] == "[key]"


def translate_field_aliases(written: Mapping[str, Any]) -> dict[str, Any]:
    """Translate fields that other tools write elsewhere: `maximize`, `minimize`, the tuner's `n_trials`.

    Raises `SpecError` if the translated field is also set.
    """
    fields = dict(written)
    name_first_metric(fields)
    problems = [*_translate_directions(fields), *_translate_objective(fields), *_translate_num_trials(fields)]
    if problems:
        raise SpecError(problems)
    return fields


def _translate_directions(fields: Mapping[str, Any]) -> Iterator[Problem]:
    """Translate a list of metric names and a list of `directions` to a list of metrics with modes."""
    if "directions" in fields or isinstance(fields.get("metric"), list | tuple):
        name = "directions" if "directions" in fields else "metric"
        yield Problem(name, "for several, write metrics: [{name: val_acc, mode: max}, {name: seconds, mode: min}]")


def _translate_objective(fields: dict[str, Any]) -> Iterator[Problem]:
    """Translate `maximize: true` and `minimize: loss` to a mode, and possibly a metric."""
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


def _translate_num_trials(fields: dict[str, Any]) -> Iterator[Problem]:
    names = ("num_trials", *OTHER_NAMES["num_trials"])
    for name in [name for name in names if name in fields]:
        value, tuner = fields.pop(name), fields.get("tuner")
        if not isinstance(tuner, Mapping):
            yield Problem(name, "must be a field of the tuner")
        elif already := [each for each in (*names, "population_size") if each in tuner]:
            yield Problem(name, f"must be left out beside tuner.{already[0]}, which says it already")
        else:
            fields["tuner"] = {**tuner, name: value}


def _kind(tuner: Any) -> type | None:
    """The class of a tuner, given as object or JSON; None for an unknown kind."""
    return KINDS.get(str(tuner.get("kind"))) if isinstance(tuner, Mapping) else type(tuner)


def _says_length(tuner: Any) -> bool:
    if isinstance(tuner, Mapping):
        return not tuner.keys().isdisjoint(LENGTH_NAMES)
    return getattr(tuner, LENGTH, None) is not None


def missing_length_problems(written: Mapping[str, Any]) -> Iterator[Problem]:
    """Reports a study where neither the tuner nor the space sets the length of trials."""
    tuner, space = written.get("tuner"), written.get("space")
    is_in_space = isinstance(space, Mapping) and LENGTH in space
    if issubclass(_kind(tuner) or object, FixedTuner) and not _says_length(tuner) and not is_in_space:
        yield Problem("tuner.max_steps", "is missing: the number of steps to train each trial for, at least 1")


def check_length(written: Mapping[str, Any]) -> None:
    """Raises `SequenceError` if the space sets lengths although the tuner decides them."""
    tuner, space = written.get("tuner"), written.get("space")
    kind = _kind(tuner)
    if not isinstance(space, Mapping) or LENGTH not in space or kind in (None, CustomTuner):
        return
    if issubclass(kind, FixedTuner) and _says_length(tuner):
        raise SequenceError(f"tuner.{LENGTH}", f"must be left out: the space says {LENGTH}, for each trial")
    if issubclass(kind, SamplingTuner):
        able = " and ".join(name for name, each in KINDS.items() if issubclass(each, FixedTuner))
        decides = f"{kind.model_fields['kind'].default} decides how long each trial is, up to tuner.{LENGTH}"
        raise SequenceError(f"space.{LENGTH}", f"must be left out: {decides}; the space may say it for {able}")


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
            "tuner.early_stopping_rate", f"must leave the lowest rung at {limits.steps:,} steps at most, got {rate}"
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
