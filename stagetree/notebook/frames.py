"""A study's trials as data frames, text and HTML."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from stagetree.errors import StagetreeError
from stagetree.models import Event, Node, StudyAnswer, TrialDetail
from stagetree.sequences import Constant, parse
from stagetree.text import RANKED_LAST, float_text, rank_text, value_text

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(slots=True)
class TrialHistory:
    """added, ended: in seconds since 1970; a trial ends with its last result, or when it is stopped. rung, reason: the
    rung that it trains for or was stopped at, and the tuner's reason.
    """

    added: float | None = None
    ended: float | None = None
    rung: int | None = None
    reason: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyHistory:
    """A study with all its trials, their curves and events, and the nodes of the plan that they pass."""

    study: StudyAnswer
    trials: list[TrialDetail]
    events: list[Event]
    nodes: list[Node]

    def trial(self, number: int) -> TrialDetail:
        return self.trials[number]

    def curve(self, number: int, metric: str | None = None) -> dict[int, float | None]:
        """The values of a metric by step; by default the study's metric."""
        name = metric or self.study.metric
        return {point.step: point.metrics.get(name) for point in self.trials[number].curve}

    def history(self, number: int) -> TrialHistory:
        return self._histories[number]

    @cached_property
    def _histories(self) -> dict[int, TrialHistory]:
        histories = {trial.trial: TrialHistory() for trial in self.trials}
        for event in self.events:
            if event.type == "StudyIsolated":  # earlier events are void: the trial numbers are used again
                histories = {trial.trial: TrialHistory() for trial in self.trials}
            if event.data.get("trial") in histories:
                _take(histories[event.data["trial"]], event)
        for number, history in histories.items():
            measured = [self._measured[place] for place in self._places(number) if place in self._measured]
            history.ended = max([*measured, *([history.ended] if history.ended else [])], default=None)
            if history.ended is None and self.trials[number].state in ("completed", "pruned"):
                history.ended = history.added  # every step was trained before the study
        return histories

    @cached_property
    def _measured(self) -> dict[tuple[str, int], float]:
        """The times of measurements, by node and step."""
        measured = (event for event in self.events if event.type == "Evaluated")
        return {(event.data["node"], event.data["step"]): event.at for event in measured}

    def _places(self, number: int) -> list[tuple[str, int]]:
        trial = self.trials[number]
        nodes = {node for path in (trial.path, *trial.repeats) for node in path}
        return [(node, point.step) for node in nodes for point in trial.curve]


def _take(history: TrialHistory, event: Event) -> None:
    reason = event.data.get("reason") or {}
    if event.type == "TrialAdded":
        history.added = event.at
    if event.type in ("TrialStopped", "TrialCancelled"):
        history.ended = event.at
    if event.type in ("TrialAdded", "TrialExtended", "TrialStopped"):
        history.reason = reason
        if "rung" in reason:
            history.rung = int(reason["rung"])


Json = dict[str, Any]

SHOWN = 10
"""The number of trials that a notebook shows."""


def best(trials: Iterable[Json], mode: str) -> Json | None:
    """The trial with the best value, ties to the lower number."""
    return next(iter(rank_trials(trials, mode)), None)


def rank_trials(trials: Iterable[Json], mode: str) -> list[Json]:
    """The trials with a value, the best first. Feasible trials come first, the Pareto front before the others, and
    failed trials last.
    """
    sign = -1 if mode == "max" else 1
    valued = [trial for trial in trials if trial["value"] is not None]

    def place(trial: Json) -> tuple[float, ...]:
        has_failed = trial["state"] == RANKED_LAST
        return has_failed, trial.get("violation") or 0.0, not trial.get("front"), sign * trial["value"], trial["trial"]

    return sorted(valued, key=place)


# ----------------------------------------------------------------------------------------------------------- data frame


def frame(results: StudyHistory, *, by_step: bool = True) -> DataFrame:
    """A row for each trial: see `stagetree.Results.dataframe`."""
    try:
        import pandas
    except ImportError:
        raise StagetreeError("a DataFrame needs pandas: pip install 'stagetree[pandas]'") from None
    rows = [_row(results, trial.trial) for trial in results.trials]
    names = list(dict.fromkeys(name for row in rows for name in row["hp"]))
    steps = sorted({point.step for trial in results.trials for point in trial.curve}) if by_step else []
    metric = results.study.metric
    marked = any(trial.exactness for trial in results.trials)
    table = [
        {
            **row["first"],
            **{name: row["hp"].get(name) for name in names},
            **row["last"],
            **({"exactness": row["mark"]} if marked else {}),
            **{f"{metric}@{step}": row["curve"].get(f"{step}") for step in steps},
        }
        for row in rows
    ]
    return pandas.DataFrame(table)


def _row(results: StudyHistory, number: int) -> dict[str, Any]:
    trial, history = results.trial(number), results.history(number)
    added, ended = history.added, history.ended
    last: Json = {"rung": history.rung, "reason": words(history.reason), "added": added, "ended": ended}
    last["seconds"] = None if added is None or ended is None else ended - added
    return {
        "first": {"trial": trial.trial, "state": trial.state, "steps": trial.steps, "value": trial.value},
        "hp": dict(flat_hp(trial.hp)),
        "last": {**last, "error": trial.error},
        "mark": trial.exactness,
        "curve": {f"{step}": value for step, value in results.curve(number).items()},
    }


def flat_hp(hp: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A configuration as names and plain values: `lr` for a constant, otherwise `lr.family`, `lr.init` and so on."""
    for name, value in hp.items():
        yield from _flat(name, parse(value, name).to_json())


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value.get("family") == Constant.family:
        yield name, value["value"]
    elif isinstance(value, Mapping):
        for field, item in value.items():
            yield from _flat(f"{name}.{field}", item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _flat(f"{name}[{number}]", item)
    else:
        yield name, tuple(value) if isinstance(value, list) else value


def words(reason: Mapping[str, Any]) -> str:
    """The reason of a decision, as text."""
    if "cut" in reason and (standing := rank_text(reason)):
        return standing
    return "  ".join(f"{name} {json.dumps(value)}" for name, value in reason.items() if name not in _NOT_WORDS)


_NOT_WORDS = {"by", "rung", "sample", "asked", "bracket", "member"}


# -------------------------------------------------------------------------------------------------------- text and HTML


def text(name: str, url: str, study: Json, trials: Collection[Json]) -> str:
    """A study as one line, and a second one if it has a mark."""
    count = "1 trial" if len(trials) == 1 else f"{len(trials)} trials"
    line = f"{study['state']}, {count}" if "state" in study else "not heard of yet"
    if study.get("error"):
        line += f": {study['error']}"
    winner = best(trials, study.get("mode", "max"))
    if winner is not None:
        line += (
            f", best {study['metric']} {winner['value']:.6g} (trial {winner['trial']} after {winner['steps']} steps)"
        )
    return f"<{name} {study['study']} at {url}: {line}>" + mark_line(study.get("exactness", {}).get("mark", ""))


def mark_line(mark: str) -> str:
    """A new line with the mark of a study; "" if it has none."""
    return f"\n* {' '.join(mark.split())}" if mark else ""


def html(line: str, study: Json, trials: Collection[Json]) -> str:
    """A study as a small table of its best trials, followed by trials without a value."""
    first = rank_trials(trials, study.get("mode", "max"))
    rows = [*first, *(trial for trial in trials if trial["value"] is None)]
    names = list(dict.fromkeys(name for trial in rows for name, _ in flat_hp(trial["hp"])))
    heads = ["trial", "state", "steps", str(study.get("metric", "value")), *names]
    table = "".join(_html_row(trial, names) for trial in rows[:SHOWN])
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    more = f"<p>{len(rows) - SHOWN} more</p>" if len(rows) > SHOWN else ""
    text = "<br>".join(map(escape, line.splitlines()))
    return f"<p>{text}</p><table><thead><tr>{head}</tr></thead><tbody>{table}</tbody></table>{more}"


def _html_row(trial: Json, names: Iterable[str]) -> str:
    hp = dict(flat_hp(trial["hp"]))
    values = [_value(trial), *(_hp_text(hp.get(name)) for name in names)]
    cells = [trial["trial"], trial["state"], trial["steps"], *values]
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _value(trial: Json) -> str:
    """A trial's value (a mean with its deviation), with a star if the trial has a mark."""
    star = "*" if trial.get("exactness") and trial["value"] is not None else ""
    held = [each for each in (trial.get("last"), trial.get("best")) if each and each["value"] == trial["value"]]
    return (value_text(held[0]) if held else _short(trial["value"])) + star


def _hp_text(value: Any) -> str:
    return float_text(value, 6) if isinstance(value, float) else _short(value)


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
