"""Studies of Optuna: what their trials have drawn.

An Optuna study has no space of its own, only the distributions of its trials. A parameter that some trials lack becomes
conditional if exactly one other parameter explains which. A range that changes from trial to trial is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stagetree.errors import StagetreeError
from stagetree.importers.draft import Draft
from stagetree.importers.values import MODES, choice, evenly
from stagetree.sequences import SequenceError
from stagetree.space import plain
from stagetree.space.conditions import when
from stagetree.space.notation import lograndint, loguniform, randint

if TYPE_CHECKING:
    import optuna

Json = dict[str, Any]

MOST_VALUES = 64
"""Of a parameter with more values, none is taken for a condition."""

SAMPLERS = {"CmaEsSampler": "cmaes", "GPSampler": "gp", "QMCSampler": "sobol", "TPESampler": "tpe"}


def is_optuna(content: Any) -> bool:
    """Whether this is a study, or the URL of a storage."""
    if isinstance(content, str):
        return "://" in content
    return type(content).__module__.split(".")[0] == "optuna" and hasattr(content, "trials")


def load(url: str) -> optuna.Study:
    """The only study of a storage. Raises `StagetreeError`."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise StagetreeError("reading a study of Optuna needs `pip install 'stagetree[optuna]'`") from None
    try:
        names = optuna.study.get_all_study_names(storage=url)
    except Exception as error:  # of any database
        raise StagetreeError(f"the storage cannot be read: {str(error).splitlines()[0]}") from None
    if len(names) != 1:
        how = "in Python, import_study(optuna.load_study(study_name=..., storage=...))"
        raise StagetreeError(f"the storage must have one study, and has {', '.join(names) or 'none'}: {how}")
    return optuna.load_study(study_name=names[0], storage=url)


def read_optuna(study: optuna.Study) -> Draft:
    """The draft of a study from the trials of an Optuna study."""
    draft = Draft(fields={"name": study.study_name})
    # The trials that have drawn all their parameters: failed ones may have stopped before.
    complete = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    trials = complete or list(study.trials)
    if not trials:
        draft.refuse("", "the Optuna study has no trials yet, and so no space")
    seen: dict[str, list[Any]] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            if distribution not in seen.setdefault(name, []):
                seen[name].append(distribution)
    for name, distributions in seen.items():
        draft.add(name, name, lambda name=name, each=distributions: _entry(name, each, seen, trials))  # type: ignore[misc]
    _read_directions(study, draft)
    _read_sampler(study, draft)
    return draft


def _read_directions(study: optuna.Study, draft: Draft) -> None:
    modes = [MODES.get(each.name.lower(), "") for each in study.directions]
    names = list(study.metric_names or [])
    if len(modes) == 1:
        draft.fields |= {"mode": modes[0], **({"metric": names[0]} if names else {})}
    elif names:
        draft.fields["metrics"] = [{"name": name, "mode": mode} for name, mode in zip(names, modes, strict=True)]
    else:
        draft.refuse("directions", "are several without names: set_metric_names of the study names them")


def _read_sampler(study: optuna.Study, draft: Draft) -> None:
    sampler, pruner = type(study.sampler).__name__, type(study.pruner).__name__
    if sampler in SAMPLERS and len(study.directions) == 1:
        draft.tuner |= {"kind": "asha", "sampler": SAMPLERS[sampler]}
        draft.note(
            "sampler", f"is {SAMPLERS[sampler]} here, for {sampler}, which the study has now: storages keep none"
        )
    else:
        draft.tuner["kind"] = "random"
        if sampler != "RandomSampler":
            draft.note(
                "sampler", f"{sampler} has no counterpart: configurations are drawn; docs/samplers.md has others"
            )
    if any(trial.intermediate_values for trial in study.trials) and pruner != "NopPruner":
        how = "asha, async_hyperband and median are the tuners that do"
        draft.note("pruner", f"{pruner} is left out, so each trial is trained to its end: {how}")


# ------------------------------------------------------------------------------------------- distributions, conditions


def _entry(name: str, distributions: Sequence[Any], seen: dict[str, list[Any]], trials: Sequence[Any]) -> Any:
    if len(distributions) > 1:
        shown = " and ".join(str(plain(convert(name, each))) for each in distributions[:2])
        how = f"give each a name of its own, such as {name}_a and {name}_b, with when"
        raise SequenceError(name, f"has another range in some trials ({shown}): {how}")
    entry = convert(name, distributions[0])
    if all(name in trial.params for trial in trials):
        return entry
    return when(_condition(name, seen, trials), {"choice": entry} if isinstance(entry, list) else entry)


def convert(name: str, distribution: Any) -> Any:
    """The entry of one distribution. Raises `SequenceError`."""
    kind = type(distribution).__name__
    if kind == "CategoricalDistribution":
        return choice(list(distribution.choices), name)
    if kind == "IntDistribution" and distribution.log:
        return plain(lograndint(distribution.low, distribution.high))
    if kind == "IntDistribution":
        return plain(randint(distribution.low, distribution.high, distribution.step if distribution.step > 1 else None))
    if distribution.log:
        return plain(loguniform(distribution.low, distribution.high))
    return evenly(distribution.low, distribution.high, distribution.step)


def _condition(name: str, seen: dict[str, list[Any]], trials: Sequence[Any]) -> Json:
    """The one other parameter whose values say whether this one exists. Raises `SequenceError`."""
    listed = {other: options for other, kinds in seen.items() if other != name and (options := _options(kinds[0]))}
    found = {other: values for other in listed if (values := _explaining(name, other, trials))}
    if len(found) == 1:
        other, values = next(iter(found.items()))
        tried = [trial.params[other] for trial in trials if other in trial.params]
        if unseen := [option for option in listed[other] if option not in tried]:
            what = f"no trial has tried {other} {' or '.join(map(repr, unseen[:3]))}"
            raise SequenceError(
                name, f"exists in some trials only, and {what}: try it in Optuna, or write when by hand"
            )
        values.sort(key=listed[other].index)  # as the choice has them, and not as they were tried
        return {other: values[0] if len(values) == 1 else values}
    why = f"{' and '.join(found)} both explain which" if found else "no other parameter alone explains which"
    raise SequenceError(name, f"exists in some trials only, and {why}: write it by hand, {{value: ..., when: {{...}}}}")


def _explaining(name: str, other: str, trials: Iterable[Any]) -> list[Any]:
    """The values of `other` with which `name` exists, if they alone decide it; otherwise none."""
    having: dict[bool, list[Any]] = {True: [], False: []}
    for trial in trials:
        exists = name in trial.params
        if other not in trial.params:
            if exists:
                return []
        elif (value := trial.params[other]) not in having[exists]:
            having[exists].append(value)
    is_decided = not any(value in having[False] for value in having[True])
    return having[True] if is_decided and having[False] else []


def _options(distribution: Any) -> list[Any]:
    """The values of a parameter that may be a condition; none for a range of floats or of many numbers."""
    if type(distribution).__name__ == "CategoricalDistribution":
        return list(distribution.choices)
    is_short = type(distribution).__name__ == "IntDistribution" and distribution.high - distribution.low < MOST_VALUES
    return list(range(distribution.low, distribution.high + 1, distribution.step)) if is_short else []


def configurations_from_optuna(study: optuna.Study, best: int | None = None) -> list[Json]:
    """The configurations of completed trials, best first, as a tuner's `first` and `eval` accept them."""
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    is_max = study.direction.name == "MAXIMIZE"
    ranked = sorted(done, key=lambda trial: trial.value or 0.0, reverse=is_max)
    return [dict(trial.params) for trial in ranked[:best]]
