"""Experiment files of Determined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagetree.importers.draft import Draft
from stagetree.importers.values import choice, constant, evenly, number, spaced, whole
from stagetree.sequences import SequenceError, did_you_mean
from stagetree.space import plain
from stagetree.space.notation import loguniform, randint

Json = dict[str, Any]

ELSEWHERE = "is left out: it says where and how Determined trains, and slots are started by themselves here"

LEFT_OUT = {
    "bind_mounts": ELSEWHERE,
    "checkpoint_policy": "is left out: keep_best says of how many trials the state is kept",
    "checkpoint_storage": "is left out: STAGETREE_CHECKPOINTS says where checkpoints are",
    "data": "is left out: what the trainer reads belongs in trainer_args: {}",
    "debug": ELSEWHERE,
    "description": "is left out: stagetree note ID TEXT keeps it with the study",
    "entrypoint": "{} becomes the trainer of the study, see docs/trainers.md",
    "environment": ELSEWHERE,
    "integrations": ELSEWHERE,
    "labels": "is left out: stagetree tag ID TAG keeps them with the study",
    "log_policies": ELSEWHERE,
    "min_checkpoint_period": "is left out: states are saved where trials part, and at keep_every",
    "optimizations": ELSEWHERE,
    "pbs": ELSEWHERE,
    "perform_initial_validation": "is left out: trials are evaluated from their first evaluation on",
    "profiling": ELSEWHERE,
    "project": "is left out: stagetree tag ID TAG groups studies",
    "records_per_epoch": "is left out: a step is what the trainer's train does",
    "resources": "is left out: max_slots and priority say how many slots a study has: {}",
    "scheduling_unit": "is left out: a step is what the trainer's train does",
    "slurm": ELSEWHERE,
    "workspace": "is left out: stagetree tag ID TAG groups studies",
}
USED = ["name", "hyperparameters", "searcher", "max_restarts", "min_validation_period", "reproducibility"]

SEARCHER_LEFT_OUT = {
    "max_concurrent_trials": "is max_slots here: max_slots: {}",
    "source_checkpoint_uuid": "is left out: begin_from names the weights that trials begin with",
    "source_trial_id": "is left out: begin_from names the weights that trials begin with",
    "time_metric": "is left out: rungs count steps",
}
SEARCHER = [
    "name",
    "metric",
    "smaller_is_better",
    "max_length",
    "max_time",
    "max_trials",
    "max_rungs",
    "divisor",
    "mode",
]
OF_ASHA = ["stop_once", "bracket_rungs", *SEARCHER_LEFT_OUT]


def is_determined(content: Any) -> bool:
    return isinstance(content, Mapping) and "hyperparameters" in content and "searcher" in content


def read_determined(content: Json) -> Draft:
    """The draft of a study from an experiment."""
    draft = Draft(program=str(content.get("entrypoint") or ""))
    draft.check_fields(content, USED, LEFT_OUT)
    if content.get("name"):
        draft.fields["name"] = str(content["name"])
    searcher: Any = content["searcher"]
    if not isinstance(searcher, dict) or not isinstance(content["hyperparameters"], dict):
        draft.refuse("searcher", "and hyperparameters must be objects")
        return draft
    _read_parameters(content["hyperparameters"], draft, "", "hyperparameters", is_grid=searcher.get("name") == "grid")
    _read_searcher(searcher, draft)
    if "max_restarts" in content:
        draft.fields["max_restarts"] = content["max_restarts"]
    seed = (content.get("reproducibility") or {}).get("experiment_seed")
    if seed is not None:
        draft.fields["seed"] = seed
    period = content.get("min_validation_period")
    if isinstance(period, Mapping) and period:
        period = next(iter(period.values()))
        draft.note("min_validation_period", f"is eval_every here, {period} steps")
    if period:
        draft.fields["eval_every"] = period
    return draft


def _read_parameters(parameters: Json, draft: Draft, before: str, place: str, *, is_grid: bool) -> None:
    for name, value in parameters.items():
        at = f"{place}.{name}"
        if isinstance(value, Mapping) and "type" not in value:
            _read_parameters(dict(value), draft, f"{before}{name}.", at, is_grid=is_grid)
        else:
            draft.add(f"{before}{name}", at, lambda value=value, at=at: _entry(value, at, is_grid))  # type: ignore[misc]
            if isinstance(value, Mapping) and "count" in value and not is_grid:
                draft.note(f"{at}.count", "is left out: it is for a grid alone")


def _entry(value: Any, at: str, is_grid: bool) -> Any:
    if not isinstance(value, Mapping):
        return constant(value, at)
    kind, kinds = value["type"], ("const", "categorical", "int", "double", "log")
    if kind == "const":
        return constant(value.get("val"), f"{at}.val")
    if kind == "categorical":
        return choice(value.get("vals"), f"{at}.vals")
    if kind not in kinds:
        raise SequenceError(f"{at}.type", f"must be one of {', '.join(kinds)}, got {kind!r}{did_you_mean(kind, kinds)}")
    low, high = (number(value.get(name), f"{at}.{name}") for name in ("minval", "maxval"))
    if kind == "int":
        low, high = whole(low, f"{at}.minval"), whole(high, f"{at}.maxval")
    base = number(value.get("base", 10), f"{at}.base")
    if is_grid:
        return _listed(kind, low, high, base, value.get("count"), at)
    if kind == "int":
        return plain(randint(int(low), int(high)))
    return evenly(low, high) if kind == "double" else plain(loguniform(base**low, base**high))


def _listed(kind: str, low: float, high: float, base: float, count: Any, at: str) -> Any:
    """The values of a range in a grid: `count` of them at equal distances, of the exponents for `log`."""
    if count is None and kind == "int":
        count = int(high - low) + 1
    number_of = whole(count, f"{at}.count")
    if kind == "int":
        return sorted({round(value) for value in spaced(low, high, min(number_of, int(high - low) + 1))})
    return [base**value if kind == "log" else float(value) for value in spaced(low, high, number_of)]


# ------------------------------------------------------------------------------------------------------------- searcher


def _read_searcher(searcher: Json, draft: Draft) -> None:
    draft.check_names(searcher, [*SEARCHER, *OF_ASHA], "searcher.")
    draft.leave_out(searcher, SEARCHER_LEFT_OUT, "searcher.")
    if "metric" in searcher:
        draft.fields["metric"] = searcher["metric"]
    draft.fields["mode"] = "min" if searcher.get("smaller_is_better", True) else "max"  # the default of Determined
    for name in ("max_length", "max_time"):
        if name in searcher:
            _read_length(searcher[name], draft, f"searcher.{name}")
    if "max_trials" in searcher:
        draft.tuner["num_trials"] = searcher["max_trials"]
    match searcher.get("name"):
        case "single":
            draft.tuner |= {"kind": "random", "num_trials": 1}
        case "random" | "grid" as kind:
            draft.tuner["kind"] = kind
        case "adaptive_asha" | "asha":
            _read_asha(searcher, draft)
        case other:
            draft.refuse("searcher.name", f"must be single, random, grid or adaptive_asha, got {other!r}")
    if draft.tuner.get("kind") == "grid" and draft.tuner.pop("num_trials", None):
        draft.note("searcher.max_trials", "is left out: a grid tries all combinations")


def _read_length(length: Any, draft: Draft, place: str) -> None:
    """`{batches: 900}`, `{epochs: 9}` or a bare number, as steps."""
    unit, count = next(iter(length.items())) if isinstance(length, Mapping) and length else ("", length)
    if unit == "records" or isinstance(count, bool) or not isinstance(count, int):
        draft.refuse(place, f"must be a number of batches or epochs, got {length}: pass max_steps")
        return
    draft.tuner["max_steps"] = count
    step = {"batches": "a batch", "epochs": "an epoch"}.get(unit, "such a unit")
    draft.note(place, f"is max_steps here, {count}: a step is one call of the trainer's train, so train {step} in it")


def _read_asha(searcher: Json, draft: Draft) -> None:
    """Rungs from the top down. `aggressive` is one bracket; the other modes have several, beside each other."""
    draft.rungs = whole(searcher.get("max_rungs", 5), "searcher.max_rungs")
    draft.tuner |= {
        "kind": "asha",
        "reduction_factor": whole(searcher.get("divisor", 4), "searcher.divisor"),
        "type": "promotion",
        "sampler": "random",
    }
    if searcher.get("stop_once"):
        draft.tuner["type"] = "stopping"
    mode = searcher.get("mode", "standard")
    if searcher["name"] == "adaptive_asha" and mode != "aggressive":
        draft.note(
            "searcher.mode", f"{mode} has several brackets: brackets: N of the tuner makes them, and 1 is aggressive"
        )
    if searcher.get("bracket_rungs"):
        draft.refuse("searcher.bracket_rungs", "has no counterpart: leave it out, and say brackets of the tuner")
