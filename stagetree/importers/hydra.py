"""Hydra: the parameters of a multirun sweep, by its basic sweeper or by the plugins for Optuna, Ax and Nevergrad.

The sweep is in `hydra.sweeper` of a config, is a sweeper's own file, or a list of overrides as on a command line. Of
Hydra's override grammar, `parse` reads the part that sweeps: `lr=0.1,0.01`, `lr=tag(log, interval(1e-4, 1e-1))`.

>>> parse("choice(adam, sgd)")
Sweep(kind='choice', values=['adam', 'sgd'], step=1, tags=frozenset())
>>> parse("[1, 2]"), parse("'a, b'"), parse("null")
([1, 2], 'a, b', None)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stagetree.importers.draft import Draft, is_length
from stagetree.importers.optuna_study import SAMPLERS as OPTUNA_SAMPLERS
from stagetree.importers.values import MODES, choice, constant, evenly, number, whole
from stagetree.sequences import SequenceError, did_you_mean
from stagetree.space import plain
from stagetree.space.notation import lograndint, loguniform, randint

Json = dict[str, Any]

SAMPLERS = OPTUNA_SAMPLERS | {"GridSampler": "grid"}
OF_OPTUNA = {
    "custom_search_space": "is a function: write when and where of the space by hand",
    "max_failure_rate": "is left out: max_failures says how many trials may fail",
    "storage": "is left out: a study has a store of its own",
}
PROGRAM = "is left out, as what the program is configured with: what the trainer is given belongs in trainer_args"
METRIC = "optimized_metric"
"""The name of the metric in configs made from the Lightning-Hydra template."""


def is_hydra(content: Any) -> bool:
    if isinstance(content, list):
        return bool(content) and all(isinstance(each, str) and "=" in each for each in content)
    if not isinstance(content, Mapping):
        return False
    hydra = content.get("hydra")
    return (isinstance(hydra, Mapping) and "sweeper" in hydra) or "hydra_plugins" in str(content.get("_target_"))


def read_hydra(content: Any) -> Draft:
    """The draft of a study from a config, a sweeper's file, or a list of overrides."""
    draft = Draft()
    if isinstance(content, list):
        overrides = dict(each.split("=", 1) for each in content)
        _read_sweeper({"params": overrides}, draft, "", is_optuna=False)
        return draft
    if "hydra" not in content:
        _read_sweeper(content, draft, "", is_optuna="optuna" in str(content.get("_target_")))
        return draft
    hydra, program = content["hydra"], {name: content[name] for name in content if name != "hydra"}
    sweeper = hydra["sweeper"] or {}
    is_optuna = "optuna" in f"{sweeper.get('_target_')} {content.get('defaults')}" or "n_trials" in sweeper
    _read_sweeper(sweeper, draft, "hydra.sweeper.", is_optuna=is_optuna)
    for name in (each for each in hydra if each not in ("sweeper", "mode")):
        draft.note(f"hydra.{name}", "is left out: it says how Hydra starts programs, and slots train here")
    _read_program(program, draft)
    return draft


def _read_program(program: Json, draft: Draft) -> None:
    """The configuration of the program: its metric, and how long it trains."""
    if "${" in str(program.get(METRIC)):
        draft.note(METRIC, f"refers to another value, so it is not taken: {program[METRIC]}")
    elif METRIC in program:
        draft.fields["metric"] = program[METRIC]
    for name, value in program.items():
        lengths = dict(_lengths(name, value))
        for place, length in lengths.items():
            draft.add(place, place, lambda length=length: length)  # type: ignore[misc]
        if name != METRIC and not (lengths and not isinstance(value, Mapping)):
            draft.note(name, PROGRAM)


def _lengths(place: str, value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _lengths(f"{place}.{name}", inner)
    elif is_length(place) and isinstance(value, int):
        yield place, value


def _read_sweeper(sweeper: Json, draft: Draft, place: str, *, is_optuna: bool) -> None:
    if "optuna_config" in sweeper:  # of older versions
        sweeper = {**sweeper, **sweeper["optuna_config"]}
        is_optuna = True
    if "ax_config" in sweeper:
        read_ax(sweeper["ax_config"] or {}, draft, f"{place}ax_config.")
        draft.check_names(sweeper, ["_target_", "defaults", "ax_config", "max_batch_size"], place)
        return
    if "parametrization" in sweeper:
        read_nevergrad(sweeper, draft, place)
        return
    for name, value in (sweeper.get("params") or {}).items():
        _read_override(str(name), value, draft, f"{place}params.{name}", is_optuna=is_optuna)
    for name, value in (sweeper.get("search_space") or {}).items():
        at = f"{place}search_space.{name}"
        draft.add(str(name), at, lambda value=value, at=at: _configured(value, at))  # type: ignore[misc]
    known = ["_target_", "defaults", "params", "search_space", "max_batch_size"]
    if is_optuna:
        known += ["direction", "n_trials", "n_jobs", "study_name", "sampler", "seed", "optuna_config", *OF_OPTUNA]
        _read_optuna(sweeper, draft, place)
    else:
        draft.tuner["kind"] = "grid"
    draft.check_names(sweeper, known, place)
    draft.leave_out(sweeper, {"max_batch_size": "is left out: max_slots says how many trials train at once"}, place)


def _read_override(name: str, value: Any, draft: Draft, at: str, *, is_optuna: bool) -> None:
    if name.startswith("~"):
        draft.refuse(at, "removes a value of the config: leave it out, and remove it from the trainer's arguments")
        return
    if isinstance(value, Mapping):
        draft.add(name, at, lambda: _configured(value, at))
    else:
        draft.add(name.lstrip("+").strip(), at, lambda: _entry(value, at, is_optuna=is_optuna))


def _entry(value: Any, at: str, *, is_optuna: bool) -> Any:
    sweep = parse(value, at) if isinstance(value, str) else value
    if not isinstance(sweep, Sweep):
        return constant(sweep, at)
    if sweep.kind == "choice":
        return choice(sweep.values, at)
    low, high = sweep.values
    if sweep.kind == "range":
        if not is_optuna:
            return choice(listed(sweep), at)
        is_whole = all(isinstance(each, int) for each in (low, high, sweep.step))
        step = sweep.step if sweep.step != 1 or not is_whole else None
        # with its end, as the plugin has it
        return plain(randint(low, high, step)) if is_whole else evenly(low, high, step)
    if not is_optuna:
        raise SequenceError(
            at, "is an interval, which a grid cannot cross: write choice or range, or use the optuna sweeper"
        )
    is_whole, is_log = "int" in sweep.tags or isinstance(low, int), "log" in sweep.tags
    if is_whole:
        return plain((lograndint if is_log else randint)(int(low), int(high)))
    return plain(loguniform(low, high)) if is_log else evenly(low, high)


def _configured(value: Any, at: str) -> Any:
    """An entry of `search_space`, the older notation of the plugin."""
    if not isinstance(value, Mapping) or value.get("type") not in ("categorical", "int", "float"):
        kind = value.get("type") if isinstance(value, Mapping) else value
        raise SequenceError(f"{at}.type", f"must be int, float or categorical, got {kind!r}")
    if value["type"] == "categorical":
        return choice(value.get("choices"), f"{at}.choices")
    low, high = (number(value.get(name), f"{at}.{name}") for name in ("low", "high"))
    step = value.get("step")
    if value["type"] == "int":
        low, high = whole(low, f"{at}.low"), whole(high, f"{at}.high")
        return plain(lograndint(low, high) if value.get("log") else randint(low, high, step))
    return plain(loguniform(low, high)) if value.get("log") else evenly(low, high, step)


def _read_optuna(sweeper: Json, draft: Draft, place: str) -> None:
    direction = sweeper.get("direction", "minimize")  # the plugin's default
    if isinstance(direction, list):
        draft.refuse(
            f"{place}direction", "is of several metrics: write metrics of the study by hand, and pass one metric"
        )
    elif direction in MODES:
        draft.fields["mode"] = MODES[direction]
    else:
        hint = did_you_mean(direction, MODES)
        draft.refuse(f"{place}direction", f"must be minimize or maximize, got {direction!r}{hint}", "mode")
    if sweeper.get("study_name"):
        draft.fields["name"] = str(sweeper["study_name"])
    for theirs, owner, ours in (("n_trials", draft.tuner, "num_trials"), ("n_jobs", draft.fields, "max_slots")):
        if sweeper.get(theirs) is not None:
            owner[ours] = sweeper[theirs]
    if sweeper.get("custom_search_space"):
        draft.refuse(f"{place}custom_search_space", OF_OPTUNA["custom_search_space"])
    draft.leave_out({name: each for name, each in sweeper.items() if name != "custom_search_space"}, OF_OPTUNA, place)
    _read_sampler(sweeper.get("sampler") or {}, sweeper.get("seed"), draft, f"{place}sampler")


def _read_sampler(sampler: Any, seed: Any, draft: Draft, place: str) -> None:
    options = dict(sampler) if isinstance(sampler, Mapping) else {"_target_": f"{sampler}"}
    name = str(options.pop("_target_", "TPESampler")).rsplit(".", 1)[-1]  # the plugin's default
    seed = options.pop("seed", seed)
    ours = SAMPLERS.get(name) or {"tpe": "tpe", "cmaes": "cmaes", "grid": "grid"}.get(name)
    draft.tuner |= {"kind": "asha", "sampler": ours} if ours else {"kind": "random"}
    if not ours and name.lower() not in ("randomsampler", "random"):
        draft.note(place, f"{name} has no counterpart: configurations are drawn; docs/samplers.md has others")
    if isinstance(seed, int):
        draft.tuner["sampling_seed"] = seed
    elif seed is not None:
        draft.note(f"{place}.seed", f"is left out: sampling_seed is a whole number, and this is {seed}")
    for option in options:
        draft.note(f"{place}.{option}", "is left out: samplers have no such option here")


OF_AX = {
    "early_stop": "is left out: target and patience end a study",
    "client": "is left out: it configures Ax",
    "is_noisy": "is left out: repeats train each trial several times",
}
OF_AX_EXPERIMENT = {
    "name": "is left out: name is that of the study",
    "objective_name": "is left out, as a word of Ax alone: {}",
    "parameter_constraints": "is left out: where says which combinations are wanted: {}",
    "outcome_constraints": "is left out: constraints compare metrics: {}",
    "status_quo": "is left out: first lists configurations to try before any are sampled",
}
OF_NEVERGRAD = {"noisy": "is left out: repeats train each trial several times"}


def read_ax(config: Json, draft: Draft, place: str) -> None:
    """`ax_config`: ranges, choices and fixed values, sampled by a Gaussian process."""
    experiment = dict(config.get("experiment") or {})
    draft.fields["mode"] = "min" if experiment.pop("minimize", True) else "max"
    draft.check_fields(experiment, [], OF_AX_EXPERIMENT, f"{place}experiment.")
    draft.tuner |= {"kind": "asha", "sampler": "gp", "num_trials": config.get("max_trials")}
    draft.check_fields(config, ["max_trials", "experiment", "params"], OF_AX, place)
    _read_each(config.get("params"), draft, f"{place}params", _ax_entry)


def _ax_entry(value: Any, at: str) -> Any:
    if not isinstance(value, Mapping):
        return constant(value, at)
    kind = value.get("type")
    if kind == "choice":
        return choice(value.get("values"), f"{at}.values")
    if kind == "fixed":
        return constant(value.get("value"), f"{at}.value")
    if kind != "range":
        raise SequenceError(f"{at}.type", f"must be range, choice or fixed, got {kind!r}")
    bounds = value.get("bounds")
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise SequenceError(f"{at}.bounds", f"must be two numbers, got {bounds!r}")
    is_whole = value.get("value_type", "int" if all(isinstance(each, int) for each in bounds) else "float") == "int"
    low, high = bounds
    return _range(low, high, f"{at}.bounds", is_whole=is_whole, is_log=bool(value.get("log_scale")))


def read_nevergrad(sweeper: Json, draft: Draft, place: str) -> None:
    """`optim` and `parametrization`: bounded numbers, and lists of values. No optimizer of it has a counterpart."""
    optim = dict(sweeper.get("optim") or {})
    draft.fields["mode"] = "max" if optim.pop("maximize", False) else "min"
    draft.tuner |= {"kind": "random", "num_trials": optim.pop("budget", None)}
    if optim.get("num_workers"):
        draft.fields["max_slots"] = optim.pop("num_workers")
    if isinstance(seed := optim.pop("seed", None), int):
        draft.tuner["sampling_seed"] = seed
    name = optim.pop("optimizer", "NGOpt")  # the plugin's default
    draft.note(
        f"{place}optim.optimizer", f"{name} has no counterpart: configurations are sampled; see docs/samplers.md"
    )
    draft.check_fields(optim, [], OF_NEVERGRAD, f"{place}optim.")
    draft.check_names(sweeper, ["_target_", "defaults", "optim", "parametrization", "version"], place)
    _read_each(sweeper.get("parametrization"), draft, f"{place}parametrization", _nevergrad_entry)
    for name, value in (sweeper.get("parametrization") or {}).items():
        if isinstance(value, Mapping) and value.get("init") is not None:
            hint = f"is left out: tuner.first: [{{{name}: {value['init']}}}] tries it first"
            draft.note(f"{place}parametrization.{name}.init", hint)


def _nevergrad_entry(value: Any, at: str) -> Any:
    if isinstance(value, list):
        return choice(value, at)
    if not isinstance(value, Mapping):
        return constant(value, at)
    if value.get("lower") is None or value.get("upper") is None:
        raise SequenceError(at, "has no bounds: give it lower and upper, or write {normal: [mean, deviation]} by hand")
    is_whole, is_log = bool(value.get("integer")), bool(value.get("log"))
    return _range(value["lower"], value["upper"], at, is_whole=is_whole, is_log=is_log)


def _range(low: Any, high: Any, at: str, *, is_whole: bool, is_log: bool) -> Any:
    if is_whole:
        return plain((lograndint if is_log else randint)(whole(low, at), whole(high, at)))
    low, high = number(low, at), number(high, at)
    return plain(loguniform(low, high)) if is_log else evenly(low, high)


def _read_each(params: Any, draft: Draft, place: str, convert: Callable[[Any, str], Any]) -> None:
    for name, value in (params or {}).items():
        at = f"{place}.{name}"
        draft.add(str(name), at, lambda value=value, at=at: convert(value, at))  # type: ignore[misc]


@dataclass(frozen=True)
class Sweep:
    """Values to choose from, or the two bounds of a range or interval. kind: `choice`, `range` or `interval`."""

    kind: str
    values: list[Any]
    step: Any = 1
    tags: frozenset[str] = frozenset()


def parse(text: str, place: str = "") -> Any:
    """The value of an override: a value, or a `Sweep`. Raises `SequenceError`."""
    return _Parser(text, place).whole()


_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_CONSTANTS = {"true": True, "false": False, "null": None}
_ENDS = {"(": ")", "[": "]", "{": "}"}


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str, place: str) -> None:
        self._text, self._place, self._at = text.strip(), place, 0

    def whole(self) -> Any:
        values = self._items("")
        if self._at < len(self._text):
            raise self._error(f"does not end after {self._text[: self._at]!r}")
        if len(values) > 1:
            return Sweep("choice", [self._plain(value) for value in values])
        return values[0] if values else ""

    def _error(self, problem: str) -> SequenceError:
        return SequenceError(self._place, f"{problem}, in {self._text!r}")

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Sweep):
            raise self._error("has a sweep inside another: write one of them")
        return value

    def _items(self, end: str) -> list[Any]:
        """Values with commas between them, up to a closing bracket."""
        values: list[Any] = []
        while self._peek() not in ("", end):
            values.append(self._element())
            if self._peek() != ",":
                break
            self._at += 1
        if self._peek() != end:
            raise self._error(f"must have a {end}" if end else f"must not have {self._peek()!r} here")
        self._at += bool(end)
        return values

    def _peek(self) -> str:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _element(self) -> Any:
        first = self._peek()
        if first in "'\"":
            end = self._text.find(first, self._at + 1)
            if end < 0:
                raise self._error("has a quote that is not closed")
            text = self._text[self._at + 1 : end]
            self._at = end + 1
            return text
        if first == "[":
            self._at += 1
            return [self._plain(value) for value in self._items("]")]
        if first == "{":
            raise self._error("has an object: give each of its fields an override of its own")
        word = self._word()
        if self._peek() == "(":
            self._at += 1
            return self._call(word)
        return self._scalar(word)

    def _word(self) -> str:
        """A text without quotes, which ends at a comma or bracket. Backslashes protect these."""
        word = ""
        while (letter := self._text[self._at : self._at + 1]) and letter not in ",()[]{}":
            self._at += 1
            if letter == "\\":
                letter, self._at = self._text[self._at : self._at + 1], self._at + 1
            if letter == "$" and self._text[self._at : self._at + 1] == "{":
                raise self._error("refers to another value: write the value")
            word += letter
        return word.strip()

    def _scalar(self, word: str) -> Any:
        if word.lower() in _CONSTANTS:
            return _CONSTANTS[word.lower()]
        if _NUMBER.fullmatch(word):
            digits = word.replace("_", "")
            return int(digits) if digits.lstrip("+-").isdigit() else float(digits)
        return word

    # ------------------------------------------------------------------------------------------------------ functions

    def _call(self, name: str) -> Any:
        arguments = self._items(")")
        plain, named = [], {}
        for argument in arguments:
            key, separator, value = argument.partition("=") if isinstance(argument, str) else ("", "", "")
            if separator and key.strip().isidentifier():
                named[key.strip()] = self._scalar(value.strip())
            else:
                plain.append(argument)
        if name in _CASTS:
            return self._cast(_CASTS[name], plain)
        if name not in (known := {"choice", "range", "interval", "tag", "sort", "shuffle"}):
            hint = ": write the values that it stands for" if name == "glob" else did_you_mean(name, known)
            raise self._error(f"has the function {name}, which is not known here{hint}")
        return getattr(self, name)(plain, named)

    def _cast(self, cast: Callable[[Any], Any], arguments: list[Any]) -> Any:
        value = arguments[0] if len(arguments) == 1 else Sweep("choice", arguments)
        if isinstance(value, Sweep):
            return replace(value, values=[cast(each) for each in value.values])
        return cast(value)

    def choice(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        return Sweep("choice", [self._plain(value) for value in values])

    def range(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        start, *rest = values or [named.get("start", 0)]
        if rest or "stop" in named:
            stop, *rest = rest or [named["stop"]]
        else:
            start, stop = 0, start
        return Sweep("range", self._numbers([start, stop]), self._numbers([*rest, named.get("step", 1)])[0])

    def interval(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        bounds = values or [named.get("start"), named.get("end")]
        if len(bounds) != 2:
            raise self._error("must have two bounds in interval(lowest, highest)")
        return Sweep("interval", [float(bound) for bound in self._numbers(bounds)])

    def _numbers(self, values: list[Any]) -> list[Any]:
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._error(f"must have numbers, got {value!r}")
        return values

    def tag(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        if not values or not isinstance(values[-1], Sweep):
            raise self._error("must have a sweep as the last in tag(...)")
        return replace(values[-1], tags=frozenset(map(str, values[:-1])))

    def sort(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        sweep = values[0] if len(values) == 1 and isinstance(values[0], Sweep) else Sweep("choice", values)
        if sweep.kind == "choice":
            return replace(sweep, values=sorted(sweep.values, reverse=bool(named.get("reverse"))))
        return sweep

    def shuffle(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        """The order of trials is the tuner's here. A shuffled range is a choice among its values."""
        sweep = values[0] if len(values) == 1 and isinstance(values[0], Sweep) else Sweep("choice", values)
        return replace(sweep, kind="choice", values=listed(sweep)) if sweep.kind == "range" else sweep


def listed(sweep: Sweep) -> list[Any]:
    """The values of a range, without its end."""
    start, stop = sweep.values
    values: list[Any] = []
    while len(values) < 10_000 and (value := start + len(values) * sweep.step) < stop:
        values.append(round(value, 12) if isinstance(value, float) else value)
    return values
