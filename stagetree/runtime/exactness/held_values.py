"""What a trainer holds besides its state: everything reachable from its objects, its files' globals and its variables.

Two objects that trained the same steps in different ways are compared by digests of these values. A difference alone is
no error (clocks, progress bars and printed lists differ). It is a reason to compare more steps, and the likely cause
once a number differs. The search is bounded by values and time, and runs no user code except `state_dict`, which shows
the tensors that the state covers.

A process serves several chains only where fresh ones would cost too much. Before each model, the globals and classes of
the user's files, settings of libraries and environment variables are compared with those at the first model.
"""

from __future__ import annotations

import decimal
import itertools
import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from stagetree.runtime.exactness.digests import (
    CODE_TYPES,
    HANDLED_TYPES,
    PLAIN_TYPES,
    Digest,
    address,
    attributes,
    digest,
    is_ours,
    plain_digest,
)
from stagetree.runtime.loading import code_modules, imports_of
from stagetree.runtime.scripts.interface import OpenScript, Script

MAX_SECONDS = 1.0
"""The deadline of a search; values beyond it are not compared."""

RUNTIME_ATTRIBUTES = frozenset({"_logged", "_is_driven"})
"""Attributes that the runtime itself keeps in a trainer."""

RESTARTED = "the program, which restarts at each saved state,"
LAUNCHED = "the memory of processes that `launch` starts"
WORKERS = "the memory of the trainer's worker processes"
UNREADABLE = (RESTARTED, LAUNCHED, WORKERS)
"""Names for values that cannot be read. Only training a whole trial in one go shows whether they matter, so they count
as different in each process."""

HeldValues = dict[str, str]
"""A digest of each value, by names such as `self.count`, `opt.num_updates` and `PHASE (a global of train.py)`."""


def digest_held_values(
    trainer: object, modules: Iterable[ModuleType], *, only_modules: bool = False, state: Any = None
) -> HeldValues:
    """The digests of all held values except those named in the trainer's `caches`. modules: of the user's code.

    only_modules: leave out the trainer's own values. state: the trainer's state, if the caller has it.
    """
    left_out, ends = RUNTIME_ATTRIBUTES | caches(trainer), time.monotonic() + MAX_SECONDS
    in_state, found = frozenset[int]() if only_modules else _tensors_of_state(trainer, state), HeldValues()
    own = () if only_modules else _trainer_values(trainer)
    streamed = trainer.streamed() if isinstance(trainer, OpenScript) else []  # the state has their positions
    for name, where, value in itertools.chain(own, _module_values(modules)):
        if time.monotonic() > ends:
            break
        if name not in left_out and all(value is not each for each in streamed):
            for inner, part in _parts_to_name(name, value):
                if inner.rpartition(".")[2] not in left_out:
                    known = plain_digest(part)
                    whole = known or Digest(in_state, ends, streamed, is_wary=not only_modules).compute(part)
                    found[f"{inner}{where}"] = whole
    return found


def differing_names(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names whose values differ, or that only one side has."""
    return [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]


def caches(trainer: object) -> frozenset[str]:
    """The attributes and globals that its class, its bases, or the script itself declare irrelevant."""
    named = (vars(kind).get("caches", ()) for kind in type(trainer).__mro__)
    return frozenset(name for names in named for name in ([names] if isinstance(names, str) else map(str, names)))


def _trainer_values(trainer: object) -> Iterator[tuple[str, str, Any]]:
    """The trainer's values, and the variables of a script's running functions: name, place and value."""
    own = {} if isinstance(trainer, OpenScript) else vars(trainer)
    yield from ((f"self.{name}", "", value) for name, value in list(own.items()) if name not in RUNTIME_ATTRIBUTES)
    for function, variables in (trainer.running() if isinstance(trainer, OpenScript) else {}).items():
        yield from ((name, f" (a variable of {function}())", value) for name, value in list(variables.items()))


def _module_values(modules: Iterable[ModuleType]) -> Iterator[tuple[str, str, Any]]:
    for module in modules:
        file = (getattr(module, "__file__", None) or module.__name__).rpartition("/")[2]
        yield from ((name, f" (a global of {file})", value) for name, value in _data(vars(module)))
        for kind in [each for each in vars(module).values() if isinstance(each, type)]:
            inside = vars(kind) if kind.__module__ == module.__name__ else {}
            yield from ((f"{kind.__name__}.{name}", " (of the class)", value) for name, value in _data(inside))


def _data(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(namespace.items()):
        if not (name.startswith("__") or isinstance(value, CODE_TYPES) or _is_stateless(value)):
            yield name, value


def _is_stateless(value: Any) -> bool:
    """Whether a value is a function without state in a closure, defaults or attributes."""
    if type(value) is not FunctionType:
        return False
    defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    is_plain = all(each is None or type(each) in PLAIN_TYPES for each in defaults)
    return is_plain and not (value.__closure__ or vars(value))


def _parts_to_name(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """An object's attributes by name, so that a difference names the attribute; otherwise the value itself."""
    parts = [] if issubclass(type(value), HANDLED_TYPES) or is_ours(value) else list(attributes(value))
    yield from ((f"{name}.{part}", inner) for part, inner in parts)
    if not parts:
        yield name, value


def _tensors_of_state(trainer: Any, state: Any) -> frozenset[int]:
    """The addresses of tensors that are compared as state."""
    found, waiting = set[int](), list[Any]()
    with suppress(Exception):  # saving the state raises and reports the same error
        waiting = [trainer.state_dict() if state is None else state]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            found.add(address(value))
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return frozenset(found - {0})


MAX_NAMES = 3


class ProcessChanges:
    """Compares one process's values over its models. is_used: a model was trained in it."""

    def __init__(self) -> None:
        self._first: HeldValues | None = None
        self.is_used = False

    def values_before_load(self, trainer: object, file: str) -> HeldValues:
        """The values before a state is loaded; empty if nothing was trained."""
        return process_values(trainer, file) if self.is_used else {}

    def find(self, trainer: object, file: str, before: Mapping[str, str] | None = None) -> list[str]:
        """The names of values that have changed since the first model was built here; also printed to the log.

        Called after building a model and after loading a state. before: the values before loading, whose changes belong
        to the state.
        """
        if self._first is not None and not self.is_used:
            return []
        now = process_values(trainer, file)
        if self._first is None:
            self._first = now
            return []
        loaded = {name for name, seen in (before or {}).items() if now.get(name) != seen}
        other = [name for name in differing_names(self._first, now) if name not in loaded]
        if other:
            print(f"--- other training in this process has changed {', '.join(other[:MAX_NAMES])}")
        return other


def process_values(trainer: object, file: str) -> HeldValues:
    """The process's values. A script runs anew for each model, so that its own file's globals do not count."""
    modules = code_modules(file)
    if isinstance(trainer, Script):
        modules = [each for each in modules if each.__name__ != "__main__"]
    others = {**dict(_functions(modules, caches(trainer))), **_settings(), **_environment(file)}
    return {**digest_held_values(trainer, modules, only_modules=True), **others}


def _functions(modules: Iterable[ModuleType], left_out: Container[str]) -> Iterator[tuple[str, str]]:
    """The functions of these modules and their classes, to detect replaced ones."""
    for module in modules:
        file = (getattr(module, "__file__", None) or module.__name__).rpartition("/")[2]
        classes = [each for each in vars(module).values() if isinstance(each, type)]
        kinds = [each for each in classes if each.__module__ == module.__name__]
        spaces: list[tuple[str, str, Mapping[str, Any]]] = [("", f" (a global of {file})", vars(module))]
        spaces += [(f"{kind.__name__}.", " (of the class)", vars(kind)) for kind in kinds]
        for before, where, names in spaces:
            for name, value in list(names.items()):
                if isinstance(value, FunctionType) and name not in left_out:
                    yield f"{before}{name}{where}", f"{value.__code__.co_filename}:{value.__code__.co_firstlineno}"


def _settings() -> HeldValues:
    """Settings of libraries that change results. `determinism` is set again at each build."""
    cuda = torch.backends.cuda.matmul
    settings: dict[str, Any] = {
        "torch.get_default_dtype()": str(torch.get_default_dtype()),
        "torch.get_default_device()": str(torch.get_default_device()),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_autocast_enabled()": torch.is_autocast_enabled("cpu"),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.backends.cuda.matmul": (cuda.allow_tf32, str(cuda.allow_fp16_reduced_precision_reduction)),
        "torch.backends.cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32),
        "np.geterr()": np.geterr(),
        "decimal.getcontext()": (decimal.getcontext().prec, decimal.getcontext().rounding),
        "os.getcwd()": os.path.realpath("."),
    }
    return {name: digest(value) for name, value in settings.items()}


def _environment(file: str) -> HeldValues:
    """Environment variables named in the user's code; libraries set others on first use."""
    code = b"\n".join(imports_of(Path(file).resolve()).files.values())
    named = {name for name in os.environ if any(quote + os.fsencode(name) + quote in code for quote in (b"'", b'"'))}
    return {f"os.environ[{name!r}]": digest(os.environ[name]) for name in sorted(named)}
