"""How a model that was trained in another way is compared with one on record, and what it has beside its state.

A counter that is 0 wherever two ways are compared differs nowhere, and may matter for another trial. So each number
that training sets is changed before a state is loaded, and must have the state's value after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from stagetree.runtime import attributes, inexact, reading, state_format, suspects, variables
from stagetree.runtime.attributes import OURS, Seen, caches
from stagetree.runtime.failures import plain
from stagetree.runtime.leftovers import Leftovers
from stagetree.runtime.loading import code_modules, imports_of, packages_used
from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.scripted import Script
from stagetree.trainer.parted import Parted, map_parted

if TYPE_CHECKING:
    from dis import Instruction

TRAINING = ("train", "train_batch", "loss", "transform", "transform_batch", "accumulate", "update")
"""Where a step begins, in the classes of users."""


def forgotten(model: Model, timeline: HpTimeline) -> list[str]:
    """The numbers that training sets and that do not come back with the state, by names like `self.count`.

    The model is left as if its own state had been loaded once more. What raises meanwhile tells nothing.
    """
    trainer, step = model.trainer, model.step
    numbers = {name: value for name in set_in_training(type(trainer)) if _is_number(value := getattr(trainer, name, 0))}
    before = {name: vars(trainer)[name] for name in numbers if name in vars(trainer)}
    numbers = {name: value for name, value in numbers.items() if name not in OURS | caches(trainer)}
    if not numbers:
        return []
    fd, _ = model.save()
    try:
        left = _left(model, timeline, step, fd, numbers)
        for name in numbers:
            _put_back(trainer, name, before)
        model.load(state_format.read(fd), timeline, step)
    finally:
        os.close(fd)
    return [f"self.{name}" for name in left]


def set_in_training(kind: type) -> list[str]:
    """The attributes that a step sets, as far as the code of the user's own classes shows it."""
    methods: dict[str, list[CodeType]] = {}
    for each in [each for each in kind.__mro__ if not each.__module__.startswith("stagetree.")]:
        for name, part in vars(each).items():
            if isinstance(part, FunctionType):
                methods.setdefault(name, []).append(part.__code__)  # an override may call what it overrides
    attributes, waiting, looked_at = dict[str, None](), [name for name in TRAINING if name in methods], set[str]()
    while waiting:
        name = waiting.pop()
        looked_at.add(name)
        for code in methods[name]:
            attributes |= dict.fromkeys(_stored(code))
            waiting += [other for other in code.co_names if other in methods and other not in looked_at]
    return sorted(attributes)


def _stored(code: CodeType) -> list[str]:
    """The attributes that a method sets of its own object, and not of another one, such as `grad` of a parameter."""
    from dis import get_instructions

    instructions = list(get_instructions(code))
    places = [place for place, each in enumerate(instructions) if each.opname == "STORE_ATTR"]
    return [str(instructions[place].argval) for place in places if _is_own(code, instructions, place)]


def _is_own(code: CodeType, instructions: Sequence[Instruction], place: int) -> bool:
    """Whether the object is the first argument: it is loaded right before, or before its old value is, as by `+=`."""
    before, name = place - 1, instructions[place].argval
    if instructions[before].opname == "SWAP":
        read = (at for at in range(before, 1, -1) if instructions[at].opname == "LOAD_ATTR")
        before = next((at - 2 for at in read if instructions[at].argval == name), before)
    loaded = instructions[before].argval
    return bool(code.co_argcount) and code.co_varnames[0] == (loaded[-1] if isinstance(loaded, tuple) else loaded)


def _left(model: Model, timeline: HpTimeline, step: int, fd: int, numbers: Mapping[str, Any]) -> list[str]:
    """The numbers that keep the value to which they were changed."""
    trainer, others = model.trainer, {name: value + 1 for name, value in numbers.items()}
    with suppress(Exception):  # a number that loading depends on tells nothing
        for name, value in others.items():
            setattr(trainer, name, value)
        model.load(state_format.read(fd), timeline, step)
        return [name for name, value in others.items() if getattr(trainer, name, None) == value]
    return []


def _put_back(trainer: Any, name: str, before: Mapping[str, Any]) -> None:
    with suppress(Exception):
        if name in before:
            setattr(trainer, name, before[name])
        else:
            delattr(trainer, name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


COMPARED = ("trainer", "generators")
"""Of a state. Where it was made changes nothing of what is loaded."""

MOST = 20
"""So many attributes are named."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a trainer had beside its state at a moment, and which of its modules were in training mode."""

    seen: Mapping[str, Seen]
    modes: Mapping[str, bool]

    @classmethod
    def at(cls, model: Model, file: str) -> Look:
        trainer = model.trainer
        fingerprints = attributes.of_trainer(trainer) | attributes.of_code(trainer, code_modules(file))
        return cls(fingerprints, suspects.modes(trainer))


@dataclass(slots=True)
class Looks:
    """The looks at the trainer of one process, by names that the slot gives them. Files that it reads are noted.

    leftovers: of all models that were trained in it.
    """

    looks: dict[str, Look] = field(default_factory=dict)
    leftovers: Leftovers = field(default_factory=Leftovers)
    changed: set[str] = field(default_factory=set)  # modules whose mode evaluations have changed
    forgotten: list[str] | None = None  # numbers of its one model; None as long as nobody has looked

    def __post_init__(self) -> None:
        reading.watch()
        variables.watch()

    def files(self, trainer: object, file: str) -> list[str]:
        """What a trainer has read beside its version, here and in processes of its own, as paths of `Unnamed`.

        file: the trainer's. Its own code is left out where the trainer says itself what its version is.
        """
        path = Path(file).resolve()
        code = imports_of(path)
        others = trainer.read_elsewhere() if isinstance(trainer, Script) else []
        is_declared = getattr(trainer, "version", code.version) != code.version
        own = [] if is_declared else reading.code_files(code)
        used = [*reading.data_files(), *own, *variables.variables_read(), *packages_used(path), *others]
        return list(dict.fromkeys(used))

    def begin(self, command: str) -> None:
        """A command begins, during which files are opened."""
        reading.uses.begin(command)

    def opened(self) -> int:
        """How many files `uses` has to tell of."""
        return reading.opened()

    def uses(self, file: str) -> dict[str, Any]:
        """The files that the process has opened since the last time; see `stagetree.runtime.file_uses`."""
        reading.opened()
        return reading.uses.take({str(Path(file).resolve().parent), os.getcwd()})

    def take(self, name: str, model: Model, file: str) -> None:
        with model.given.looked_at():
            self.looks[name] = Look.at(model, file)

    @contextmanager
    def measuring(self, model: Model) -> Iterator[None]:
        """Note which modules an evaluation leaves in another mode."""
        before = suspects.modes(model.trainer) if self.looks else {}
        yield
        self.changed.update(suspects.changed_modes(before, suspects.modes(model.trainer)) if before else ())

    def stray(self, first: str, words: str, model: Model, timeline: HpTimeline) -> dict[str, Any]:
        """What differs between the look `first` and that at `used`, by name, and the likely cause of a difference that
        is there now.

        words: where it was seen first. What differs from the look `before`, if there is one, came back with the state.
        """
        before, now = self.looks[first], self.looks["used"]
        left = self.looks.get("before")
        names = attributes.differing(before.seen, now.seen)
        if left is not None:
            names = [name for name in names if name in left.seen and left.seen[name].digest == now.seen[name].digest]
        if self.forgotten is None:
            self.forgotten = forgotten(model, timeline)
        modes = suspects.changed_modes(before.modes, suspects.modes(model.trainer))
        modes = {name: mode for name, mode in modes.items() if name in self.changed}  # training may change some, too
        signs = {"modes": modes, "loaders": suspects.loaders(), "stray": names}
        stray = {plain(name): _words(now.seen[name], before.seen[name], words) for name in names[:MOST]}
        unseen = {plain(name): "is set in training and does not come back with the state" for name in self.forgotten}
        return {
            "stray": unseen | stray,
            "cause": plain(suspects.cause("used", False, {}, signs)),
            "unread": list(map(plain, model.unread())),
        }


def compare(mine: Sequence[int], stored: Sequence[int]) -> dict[str, Any]:
    """Two states in files: the first leaf that differs, and what is different of the machine that made the stored one.

    Each may be divided among the files of several ranks. The descriptors stay the caller's.
    """
    own, there = (map_parted(state_format.read(*fds), Parted.whole) for fds in (mine, stored))
    one, other = ({name: saved.get(name) for name in COMPARED} for saved in (there, own))
    return {
        "difference": plain(suspects.first_difference(suspects.leaves(one), suspects.leaves(other))),
        "elsewhere": inexact.others(there.get("machine", {}), own.get("machine", {})),
    }


def _words(now: Seen, before: Seen, where: str) -> str:
    is_told = now.shown and before.shown and now.shown != before.shown
    values = f": {now.shown} in a used object, {before.shown} {where}" if is_told else ""
    return f"does not come back with the state{values}"
