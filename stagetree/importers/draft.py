"""The study that a file of another tool is turned into, while it is read.

A format's module fills a `Draft` with translated fields, notes on fields that it leaves out, and refusals. `finish`
then adds the arguments of the caller, asks for missing ones, and checks the study as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stagetree.errors import StagetreeError
from stagetree.sequences import SequenceError, check_count, did_you_mean
from stagetree.space import LENGTH, Range, Space, read_entry
from stagetree.spec import Problem, SpecError, StudySpec

Json = dict[str, Any]


class NotImported(SpecError, StagetreeError):
    """A file that has no counterpart here as it is, with all its problems: place, and what to write."""


class Given(NamedTuple):
    """The arguments of the caller. They come before the values of the file."""

    name: str | None = None
    trainer: str | None = None
    metric: str | None = None
    mode: str | None = None
    max_steps: int | None = None
    num_trials: int | None = None


@dataclass
class Draft:
    """A study in the making. Its tuner may lack `num_trials`, and both numbers of steps."""

    fields: Json = field(default_factory=dict)
    """The study's fields but `space` and `tuner`."""
    space: Json = field(default_factory=dict)
    tuner: Json = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """By hyper-parameter, its place in the file."""
    rungs: int | None = None
    """How many rungs there are at most; the lowest follows from the highest then."""
    program: str = ""
    """What trains there: a command or a program."""
    notes: list[Problem] = field(default_factory=list)
    """What the study leaves out, and what to write for it."""
    problems: list[Problem] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    """Fields of the study that the file has, but wrong."""

    def stop_by_median(self, place: str) -> None:
        """Have the tuner `median` decide at each step, as the rule of the other tool at `place` does."""
        self.tuner |= {"kind": "median", "interval": 1}
        self.note(place, "is the tuner median here, which decides every interval: 1 step; raise it if steps are short")

    def note(self, place: str, sentence: str) -> None:
        self.notes.append(Problem(place, sentence))

    def refuse(self, place: str, sentence: str, field: str = "") -> None:
        """Refuse a field of the file. field: of the study, which then counts as given."""
        self.problems.append(Problem(place, sentence))
        self.refused.add(field)

    def add(self, name: str, place: str, convert: Callable[[], Any]) -> None:
        """Add the entry of a hyper-parameter; a `SequenceError` of its conversion becomes a problem at its place."""
        try:
            entry = convert()
            if name in self.space:
                raise SequenceError(place, f"is a second {name}: give one of them another name")
            read_entry(entry, place)
        except SequenceError as error:
            inside = error.field == place or error.field.startswith((f"{place}.", f"{place}["))
            self.refuse(error.field if inside else place, error.problem)
            return
        self.space[name], self.places[name] = entry, place

    def leave_out(self, content: Mapping[str, Any], sentences: Mapping[str, str], place: str = "") -> None:
        """Note each field that the study leaves out. `{}` in a sentence stands for its value."""
        for name in content:
            if name in sentences and content[name] not in (None, {}, []):
                self.note(f"{place}{name}", sentences[name].format(content[name]))

    def check_fields(
        self, content: Mapping[str, Any], used: list[str], left_out: Mapping[str, str], place: str = ""
    ) -> None:
        """Refuse fields that the other tool does not have, and note the fields that the study leaves out."""
        self.check_names(content, [*used, *left_out], place)
        self.leave_out(content, left_out, place)

    def check_names(self, content: Mapping[str, Any], known: list[str], place: str = "") -> None:
        """Refuse fields that the other tool does not have, which it would ignore or reject."""
        for name in content:
            if name not in known:
                hint = did_you_mean(name, known) or f": there are {', '.join(known)}"
                self.refuse(f"{place}{name}", f"is no field of this format{hint}")


@dataclass(frozen=True)
class Imported:
    """A study that was written for another tool. study: its fields, for `StudySpec` or a file."""

    study: Json
    notes: list[str]
    """What the study leaves out: the place in the file, and what to write for it."""

    def to_yaml(self) -> str:
        """The study file, with the notes as comments."""
        from stagetree.spec.file import write

        comments = "".join(f"# {line}\n" for note in self.notes for line in note.splitlines())
        return comments + write(self.study)


def finish(draft: Draft, given: Given, *, needs_trainer: bool = True) -> Imported:
    """The study of a draft and the arguments of the caller. Raises `NotImported`."""
    _set_length(draft, given.max_steps)
    _set_trials(draft, given.num_trials)
    for name in ("metric", "mode"):
        _take(draft, name, getattr(given, name))
    draft.fields["name"] = given.name or draft.fields.get("name") or "imported"
    if needs_trainer:
        program = f": {draft.program} becomes a trainer, see docs/trainers.md" if draft.program else ""
        _take(draft, "trainer", given.trainer, program)
    if not draft.space and not draft.problems:
        draft.refuse("", "has no hyper-parameters to search")
    if draft.problems:
        raise NotImported(draft.problems)
    order = ("name", "trainer", "metric", "mode")
    first = {name: draft.fields[name] for name in order if name in draft.fields}
    tuner = {"kind": draft.tuner["kind"], **draft.tuner}
    study = {**first, **draft.fields, "space": draft.space, "tuner": tuner}
    try:
        StudySpec.from_dict({"trainer": "unknown", **study})
    except SpecError as error:
        raise NotImported([Problem(each.field, f"of the study {each.problem}") for each in error.problems]) from None
    return Imported(study, list(map(str, draft.notes)))


_MISSING = {
    "trainer": "the name of the trainer that trains a step",
    "metric": "the name of the metric that the trainer returns",
    "mode": "max or min, whether more or less of the metric is better",
    "num_trials": "how many configurations are tried",
    "max_steps": "for how many steps a trial is trained, a step being one call of the trainer's train",
}
"""Arguments that the caller may have to pass."""


def _ask(draft: Draft, name: str, more: str = "") -> None:
    option = name.replace("_", "-")
    draft.refuse(name, f"is missing: {_MISSING[name]}{more}; pass {name}=..., or --{option}")


def _take(draft: Draft, name: str, given: Any, more: str = "") -> None:
    if given is not None:
        draft.fields[name] = given
    if name not in {*draft.fields, *draft.refused} and "metrics" not in draft.fields:
        _ask(draft, name, more)


_COUNTED = ("random", "asha", "median")
"""Kinds of tuners with a number of trials."""


def _set_trials(draft: Draft, given: int | None) -> None:
    kind = draft.tuner.get("kind")
    if kind not in _COUNTED:
        if given is not None:
            draft.refuse("num_trials", f"must be left out: {kind} knows its number of trials")
        return
    if given is not None:
        draft.tuner["num_trials"] = given
    if draft.tuner.get("num_trials") is None:
        _ask(draft, "num_trials")


# ------------------------------------------------------------------------------------------------- lengths and ranges


def _set_length(draft: Draft, given: int | None) -> None:
    """The length of trials: passed, or the hyper-parameter that is one, or what the tuner of the file has."""
    named = [name for name in draft.space if is_length(name)]
    if given is not None:
        draft.tuner[LENGTH] = given
        for name in named:
            draft.note(draft.places[name], f"is left out, since max_steps is passed: {given}")
            del draft.space[name]
    elif len(named) + (draft.tuner.get(LENGTH) is not None) > 1:
        also = [draft.places[each] for each in named[1:]] or [f"the tuner with {draft.tuner[LENGTH]}"]
        draft.refuse(
            draft.places[named[0]], f"may be the length of a trial, and so may {', '.join(also)}: pass max_steps"
        )
    elif named:
        _move_length(draft, named[0])
    elif draft.tuner.get(LENGTH) is None:
        _ask(draft, LENGTH)
    if draft.tuner.get("kind") == "asha" and isinstance(steps := draft.tuner.get(LENGTH), int):
        eta = draft.tuner.get("reduction_factor", 1)
        lowest = max(1, steps // eta ** ((draft.rungs or 1) - 1))  # with one rung, nothing is stopped
        draft.tuner.setdefault("min_steps", lowest)
    if draft.tuner.get("kind") == "grid":
        draft.space = {name: list_range(entry) for name, entry in draft.space.items()}


def _move_length(draft: Draft, name: str) -> None:
    """A hyper-parameter that counts epochs or steps, as the tuner's `max_steps` or, if it is searched, the space's."""
    entry, place = draft.space.pop(name), draft.places[name]
    try:
        length = length_of(entry, place)
    except SequenceError as error:
        draft.refuse(error.field, error.problem)
        return
    if isinstance(length, int):
        draft.tuner[LENGTH] = length
        draft.note(place, f"is max_steps here, {length}: a step is one call of the trainer's train")
    elif draft.tuner.get("kind") in ("grid", "random"):
        draft.space = {LENGTH: length, **draft.space}
        draft.note(place, "is max_steps of the space here, so it is how long each trial is, in steps")
    elif (kind := draft.tuner.get("kind")) is not None:  # else the file's way to search was refused
        draft.refuse(place, f"is searched, and {kind} decides how long trials are: pass max_steps, the longest of them")


def list_range(entry: Any) -> Any:
    """The values of a range that a grid can cross, as a list; any other entry as it is."""
    pattern = read_entry(entry)
    return list(pattern.listed()) if isinstance(pattern, Range) and pattern.count() is not None else entry


def grid_size(space: Mapping[str, Any]) -> int | None:
    """The number of combinations; None for an infinite space."""
    return Space({name: list_range(entry) for name, entry in space.items()}).size()


LENGTH_NAMES = frozenset(
    {
        "epoch",
        "epochs",
        "max_epoch",
        "max_epochs",
        "max_iters",
        "max_steps",
        "max_train_steps",
        "n_epoch",
        "n_epochs",
        "nb_epochs",
        "nepoch",
        "nepochs",
        "num_epoch",
        "num_epochs",
        "num_train_epochs",
        "steps",
        "total_epochs",
        "total_steps",
        "train_epochs",
        "train_steps",
        "training_steps",
    }
)
"""Hyper-parameters that are the length of a run. Here a length is `max_steps`, of the tuner or of the space."""


def is_length(name: str) -> bool:
    """Whether a hyper-parameter counts the epochs or steps of a run, by the last part of its name."""
    return name.rsplit(".", 1)[-1].rsplit("/", 1)[-1].replace("-", "_").lower() in LENGTH_NAMES


def length_of(entry: Any, place: str) -> Any:
    """A number of steps, or the lengths of a space: a list or a range. Raises `SequenceError`."""
    options = entry["choice"] if isinstance(entry, dict) and entry.keys() == {"choice"} else entry
    if isinstance(options, dict):
        if "randint" not in options:
            raise SequenceError(place, f"must be whole numbers of steps, got {options}: pass max_steps")
        return options
    for option in options if isinstance(options, list) else [options]:
        if isinstance(option, float) and option.is_integer():
            raise SequenceError(place, f"must be a whole number of steps, got {option}: write {int(option)}")
        check_count(place, option)
    return options[0] if isinstance(options, list) and len(options) == 1 else options
