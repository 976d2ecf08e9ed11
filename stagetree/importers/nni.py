"""Search spaces and experiment files of NNI.

A search space is an object of `{_type: ..., _value: [...]}` by hyper-parameter. Choices may hold objects with a `_name`
and hyper-parameters of their own, which become conditional: `layer.conv.kernel` exists only if `layer` is `conv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagetree.importers.draft import Draft
from stagetree.importers.values import MODES, choice, evenly, multiples, number, whole
from stagetree.sequences import SequenceError, did_you_mean
from stagetree.space import plain
from stagetree.space.conditions import when
from stagetree.space.notation import loguniform, normal, randint

Json = dict[str, Any]

ELSEWHERE = "is left out: it says where and how NNI trains, and slots are started by themselves here"
LEFT_OUT = {
    **dict.fromkeys(
        (
            "authorName", "debug", "experimentWorkingDirectory", "localConfig", "logCollection", "logDir", "logLevel",
            "maxTrialDuration", "nniManagerIp", "sharedStorage", "trainingService", "trainingServicePlatform",
            "trialCodeDirectory", "trialGpuNumber", "tunerGpuIndices", "useAnnotation", "useActiveGpu",
        ),
        ELSEWHERE,
    ),
    "trial": "{} becomes the trainer of the study, see docs/trainers.md",
    "trialCommand": "{} becomes the trainer of the study, see docs/trainers.md",
    "searchSpacePath": "names the search space: import {} itself, or with both in one file",
}  # fmt: skip
TRIALS, TIME, PARALLEL = (
    ("maxTrialNumber", "maxTrialNum"),
    ("maxExperimentDuration", "maxExecDuration"),
    "trialConcurrency",
)
USED = [*TRIALS, *TIME, PARALLEL, "experimentName", "searchSpace", "tuner", "assessor", "advisor"]
SAMPLERS = {
    "anneal": "random", "evolution": "random", "gptuner": "gp", "gp": "gp", "gridsearch": "grid", "metis": "gp",
    "random": "random", "smac": "gp", "tpe": "tpe",
}  # fmt: skip
SAME = ("random", "gp", "tpe", "gridsearch", "gptuner")
"""Tuners whose sampler is the same here; the others become the nearest one."""


def is_nni(content: Any) -> bool:
    """Whether this is a search space or an experiment."""
    return _is_space(content) or (
        isinstance(content, Mapping) and not content.keys().isdisjoint(("searchSpace", "searchSpacePath"))
    )


def _is_space(content: Any) -> bool:
    return isinstance(content, Mapping) and any(
        isinstance(each, Mapping) and "_type" in each for each in content.values()
    )


def read_nni(content: Json) -> Draft:
    """The draft of a study from a search space, or from an experiment that holds one."""
    draft = Draft()
    if _is_space(content):
        draft.tuner["kind"] = "random"
        _read_space(content, draft, "", "", None)
        return draft
    draft.check_fields(content, USED, LEFT_OUT)
    draft.program = str(content.get("trialCommand") or (content.get("trial") or {}).get("command") or "")
    if isinstance(content.get("searchSpace"), Mapping):
        _read_space(content["searchSpace"], draft, "", "searchSpace.", None)
    else:
        draft.refuse("searchSpace", "is missing: import the file of the search space, or write its content here")
    _read_experiment(content, draft)
    return draft


Condition = dict[str, Any] | None


def _read_space(space: Json, draft: Draft, before: str, place: str, condition: Condition) -> None:
    for name, parameter in space.items():
        if name == "_name":
            continue
        here, at = f"{before}{name}", f"{place}{name}"
        draft.add(here, at, lambda parameter=parameter, at=at: _conditional(_entry(parameter, at), condition))  # type: ignore[misc]
        values = parameter.get("_value") if isinstance(parameter, Mapping) else None
        for number_of, option in enumerate(values if isinstance(values, list) else []):
            if isinstance(option, Mapping) and "_name" in option:
                label, inside = option["_name"], f"{at}._value[{number_of}]."
                _read_space(dict(option), draft, f"{here}.{label}.", inside, {here: label})


def _conditional(entry: Any, condition: Condition) -> Any:
    return entry if condition is None else when(condition, entry)


def _entry(parameter: Any, at: str) -> Any:
    if not isinstance(parameter, Mapping) or "_type" not in parameter or not isinstance(parameter.get("_value"), list):
        raise SequenceError(at, f"must be an object with _type and _value, got {parameter!r}")
    kind, values, place = parameter["_type"], parameter["_value"], f"{at}._value"
    if kind == "choice":
        named = [each["_name"] if isinstance(each, Mapping) and "_name" in each else each for each in values]
        return choice(named, place)
    if kind in ("lognormal", "qlognormal", "qnormal") or str(kind).startswith("mutable"):
        raise SequenceError(f"{at}._type", f"{kind} has no counterpart: write loguniform, normal or a choice")
    if kind not in (kinds := ["choice", *_SIZES]):
        raise SequenceError(
            f"{at}._type", f"must be one of {', '.join(kinds)}, got {kind!r}{did_you_mean(kind, kinds)}"
        )
    if len(values) != _SIZES[kind]:
        raise SequenceError(place, f"must be {_SIZES[kind]} numbers for {kind}, got {values!r}")
    return _range(kind, [number(value, f"{place}[{n}]") for n, value in enumerate(values)], place)


_SIZES = {"randint": 2, "uniform": 2, "quniform": 3, "loguniform": 2, "qloguniform": 3, "normal": 2}
"""The ranges, each with how many numbers it has."""


def _range(kind: str, values: list[float], place: str) -> Any:
    match kind, values:
        case "randint", [low, high]:  # without its upper bound
            return plain(randint(whole(low, f"{place}[0]"), whole(high, f"{place}[1]") - 1))
        case "uniform", [low, high]:
            return evenly(low, high)
        case "loguniform", [low, high]:
            return plain(loguniform(low, high))
        case "normal", [mean, deviation]:
            return plain(normal(mean, deviation))
    low, high, step = values
    return multiples(low, high, float(step), f"{place}[2]", is_log=kind == "qloguniform")  # NNI gives floats


# ----------------------------------------------------------------------------------------------------------- experiment


def _read_experiment(content: Json, draft: Draft) -> None:
    if content.get("experimentName"):
        draft.fields["name"] = str(content["experimentName"])
    for name in TRIALS:
        if name in content:
            draft.tuner["num_trials"] = content[name]
    if PARALLEL in content:
        draft.fields["max_slots"] = content[PARALLEL]
    for name in TIME:
        if name in content:
            _read_time(content[name], draft, name)
    _read_tuner(content.get("tuner") or content.get("advisor") or {}, draft)
    if content.get("assessor"):
        _read_assessor(content["assessor"], draft)


def _read_time(duration: Any, draft: Draft, place: str) -> None:
    text = str(duration)
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if text.isdigit() or (text[:-1].isdigit() and text[-1] in units):
        draft.fields["max_time"] = float(text) if text.isdigit() else float(text[:-1]) * units[text[-1]]
    else:
        draft.refuse(place, f"must be a time such as 12h or 30m, got {duration!r}")


def _name(part: Json) -> str:
    return str(part.get("name") or part.get("builtinTunerName") or part.get("builtinAssessorName") or "")


def _read_tuner(tuner: Json, draft: Draft) -> None:
    arguments, kind = tuner.get("classArgs") or {}, _name(tuner)
    if kind.lower() not in SAMPLERS:
        known = "Random, TPE, GridSearch or GP"
        draft.refuse("tuner.name", f"must be one of {known}, got {kind!r}: write one of these")
        return
    sampler = SAMPLERS[kind.lower()]
    if kind.lower() not in SAME:
        draft.note(
            "tuner.name", f"{kind} has no counterpart: the sampler is {sampler}; see docs/samplers.md for the others"
        )
    is_plain = sampler == "random"
    draft.tuner |= {"kind": "random"} if is_plain else {"kind": "asha", "sampler": sampler}
    if sampler == "grid" and "num_trials" not in draft.tuner:
        draft.tuner = {"kind": "grid"}
    mode = arguments.get("optimize_mode", "maximize")  # NNI's default
    if mode in MODES:
        draft.fields["mode"] = MODES[mode]
    else:
        draft.refuse("tuner.classArgs.optimize_mode", f"must be maximize or minimize, got {mode!r}", "mode")
    if "seed" in arguments and draft.tuner["kind"] != "grid":
        draft.tuner["sampling_seed"] = arguments["seed"]
    for name in (each for each in arguments if each not in ("optimize_mode", "seed")):
        draft.note(f"tuner.classArgs.{name}", "is left out: samplers have no such option here")


def _read_assessor(assessor: Json, draft: Draft) -> None:
    """Medianstop is the tuner `median`; the prediction of curves is `early_term`, which is another rule."""
    if _name(assessor).lower() != "medianstop":
        hint = "write the tuner early_term or median by hand, and leave the assessor out"
        draft.refuse("assessor.name", f"must be Medianstop, got {_name(assessor)!r}: {hint}")
        return
    start = (assessor.get("classArgs") or {}).get("start_step")
    draft.tuner |= {"min_steps": start} if start else {}
    draft.stop_by_median("assessor")
