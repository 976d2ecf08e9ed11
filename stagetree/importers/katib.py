"""Experiments of Katib, the tuner of Kubeflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagetree.importers.draft import Draft
from stagetree.importers.values import MODES, choice, evenly, whole
from stagetree.sequences import SequenceError
from stagetree.space import plain
from stagetree.space.notation import lograndint, loguniform, normal, randint

Json = dict[str, Any]

LEFT_OUT = {
    "metricsCollectorSpec": "is left out: evaluate of the trainer returns the metrics",
    "nasConfig": "is left out: architectures are searched as hyper-parameters here",
    "resumePolicy": "is left out: an interrupted study resumes by itself",
    "trialTemplate": "becomes the trainer of the study, see docs/trainers.md",
}
USED = [
    "algorithm",
    "earlyStopping",
    "maxFailedTrialCount",
    "maxTrialCount",
    "objective",
    "parallelTrialCount",
    "parameters",
]
SAMPLERS = {"bayesianoptimization": "gp", "cmaes": "cmaes", "multivariate-tpe": "tpe", "sobol": "sobol", "tpe": "tpe"}


def is_katib(content: Any) -> bool:
    is_experiment = isinstance(content, Mapping) and content.get("kind") == "Experiment"
    return is_experiment and isinstance(content.get("spec"), Mapping)


def read_katib(content: Json) -> Draft:
    """The draft of a study from an experiment."""
    spec, draft = content["spec"], Draft()
    draft.check_names(content, ["apiVersion", "kind", "metadata", "spec", "status"])
    draft.check_fields(spec, USED, LEFT_OUT, "spec.")
    if name := (content.get("metadata") or {}).get("name"):
        draft.fields["name"] = name
    _read_objective(spec.get("objective") or {}, draft)
    for number, parameter in enumerate(spec.get("parameters") or []):
        at = f"spec.parameters[{number}]"
        name = str(parameter.get("name", "")).lstrip("-")
        draft.add(name, at, lambda parameter=parameter, at=at: _entry(parameter, at))  # type: ignore[misc]
        if (entry := draft.space.get(name)) and isinstance(entry, list) and all(map(_is_number_text, entry)):
            draft.note(at, f"has texts as its values, as there: for numbers write [{', '.join(entry)}]")
    _read_algorithm(spec, draft)
    for theirs, ours in (("maxFailedTrialCount", "max_failures"), ("parallelTrialCount", "max_slots")):
        if theirs in spec:
            draft.fields[ours] = spec[theirs]
    return draft


def _read_objective(objective: Json, draft: Draft) -> None:
    draft.check_names(
        objective,
        ["type", "goal", "objectiveMetricName", "additionalMetricNames", "metricStrategies"],
        "spec.objective.",
    )
    if objective.get("type") in MODES:
        draft.fields["mode"] = MODES[objective["type"]]
    else:
        draft.refuse("spec.objective.type", f"must be minimize or maximize, got {objective.get('type')!r}", "mode")
    if "objectiveMetricName" in objective:
        draft.fields["metric"] = objective["objectiveMetricName"]
    if "goal" in objective:
        draft.fields["target"] = objective["goal"]
    draft.leave_out(
        objective,
        {
            "additionalMetricNames": "is left out: all metrics that the trainer returns are kept",
            "metricStrategies": "is left out: value: best or last says which result of a trial counts",
        },
        "spec.objective.",
    )


def _entry(parameter: Json, at: str) -> Any:
    kind, space = parameter.get("parameterType"), parameter.get("feasibleSpace") or {}
    place = f"{at}.feasibleSpace"
    if kind == "categorical":
        return choice(space.get("list"), f"{place}.list")
    if kind == "discrete":
        values = space.get("list") or []
        return choice([_number(value, f"{place}.list[{n}]") for n, value in enumerate(values)], f"{place}.list")
    if kind not in ("int", "double"):
        raise SequenceError(f"{at}.parameterType", f"must be int, double, discrete or categorical, got {kind!r}")
    low, high = (_number(space.get(name), f"{place}.{name}") for name in ("min", "max"))
    if kind == "int":
        low, high = whole(low, f"{place}.min"), whole(high, f"{place}.max")
    step = _number(space["step"], f"{place}.step") if "step" in space else None
    return _range(kind, low, high, step, space.get("distribution", "uniform"), place)


def _range(kind: str, low: Any, high: Any, step: Any, distribution: str, place: str) -> Any:
    if distribution in ("normal", "logNormal"):
        if distribution == "logNormal" or kind == "int":
            hint = "write logUniform or uniform"
            raise SequenceError(f"{place}.distribution", f"{distribution} of {kind} has no counterpart: {hint}")
        mean, deviation = (low + high) / 2, (high - low) / 6
        return plain(normal(mean, deviation, min=low, max=high, step=step))
    if distribution == "logUniform":
        if step not in (None, 1):
            raise SequenceError(f"{place}.step", "does not go with logUniform here: leave it out, or write a list")
        return plain(lograndint(low, high) if kind == "int" else loguniform(low, high))
    if distribution != "uniform":
        raise SequenceError(
            f"{place}.distribution", f"must be uniform, logUniform, normal or logNormal, got {distribution!r}"
        )
    if kind == "int":
        return plain(randint(low, high, None if step is None else whole(step, f"{place}.step")))
    return evenly(low, high) if step is None else evenly(low, high, float(step))


def _is_number_text(value: Any) -> bool:
    return isinstance(value, str) and value.replace(".", "", 1).isdigit()


def _number(text: Any, place: str) -> Any:
    """A number that the file has as a text. Raises `SequenceError`."""
    try:
        return text if isinstance(text, int | float) else int(text) if str(text).lstrip("+-").isdigit() else float(text)
    except (TypeError, ValueError):
        raise SequenceError(place, f"must be a number, got {text!r}") from None


# ------------------------------------------------------------------------------------------------------------ algorithm


def _read_algorithm(spec: Json, draft: Draft) -> None:
    algorithm = spec.get("algorithm") or {}
    name = algorithm.get("algorithmName")
    settings = {each.get("name"): each.get("value") for each in algorithm.get("algorithmSettings") or []}
    if "maxTrialCount" in spec:
        draft.tuner["num_trials"] = spec["maxTrialCount"]
    if name in ("grid", "random"):
        draft.tuner["kind"] = name
    elif name in SAMPLERS:
        draft.tuner |= {"kind": "asha", "sampler": SAMPLERS[name]}
    elif name == "hyperband":
        _read_hyperband(settings, draft)
        return
    else:
        known = ", ".join(["random", "grid", "hyperband", *SAMPLERS])
        draft.refuse("spec.algorithm.algorithmName", f"must be one of {known}, got {name!r}: write one of these")
        return
    if name == "grid" and draft.tuner.pop("num_trials", None):
        draft.tuner |= {"kind": "asha", "sampler": "grid", "num_trials": spec["maxTrialCount"]}
    if "random_state" in settings:
        draft.tuner["sampling_seed"] = _number(settings.pop("random_state"), "spec.algorithm.algorithmSettings")
        if draft.tuner["kind"] == "grid":
            del draft.tuner["sampling_seed"]
    for setting in settings:
        draft.note(f"spec.algorithm.algorithmSettings.{setting}", "is left out: samplers have no such option here")
    if spec.get("earlyStopping"):
        _read_early_stopping(spec["earlyStopping"], draft)


def _read_hyperband(settings: Json, draft: Draft) -> None:
    """The parameter of the resource gives way to the tuner's own steps, and the number of trials follows from them."""
    place, resource = "spec.algorithm.algorithmSettings", settings.get("resource_name")
    draft.tuner = {"kind": "hyperband"}
    for theirs, ours in (("r_l", "max_steps"), ("eta", "reduction_factor")):
        if theirs in settings:
            draft.tuner[ours] = _number(settings[theirs], f"{place}.{theirs}")
    for other in sorted(settings.keys() - {"r_l", "eta", "resource_name"}):
        draft.note(f"{place}.{other}", "is left out: the tuner has no such option here")
    if resource in draft.space:
        del draft.space[resource]
        draft.note(f"{place}.resource_name", f"{resource} is the number of steps here, which the tuner decides")
    draft.note("spec.maxTrialCount", "is left out: the steps of hyperband determine how many trials there are")


def _read_early_stopping(stopping: Json, draft: Draft) -> None:
    place = "spec.earlyStopping"
    if stopping.get("algorithmName") != "medianstop":
        draft.refuse(f"{place}.algorithmName", f"must be medianstop, got {stopping.get('algorithmName')!r}")
        return
    settings = {each["name"]: each["value"] for each in stopping.get("algorithmSettings") or []}
    draft.tuner = {"sampler": "random", **draft.tuner}
    draft.stop_by_median(place)
    for theirs, ours in (("min_trials_required", "min_trials"), ("start_step", "min_steps")):
        if theirs in settings:
            draft.tuner[ours] = _number(settings.pop(theirs), f"{place}.algorithmSettings.{theirs}")
