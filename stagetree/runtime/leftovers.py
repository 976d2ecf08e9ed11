"""What the training of one model leaves behind in a process, where the next model would find it.

A flag that is set at step 1,000 shows in no check of a few steps, and then in every trial that is trained after that
one in the same process, whether it shares anything or not. So a process is looked at whenever another model begins in
it: at the globals and classes of the user's files, what their functions are and what `functools.cache` keeps for them,
the settings of libraries, and the variables of the environment that the user's code names.
"""

from __future__ import annotations

import decimal
import gc
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from stagetree.runtime import attributes
from stagetree.runtime.attributes import Seen
from stagetree.runtime.loading import code_modules, imports_of
from stagetree.runtime.scripted import Script

MOST_NAMED = 3

CACHED = type(cache(len))
KEPT = " (kept by functools.cache)"
LONGEST_KEY = 40


class Leftovers:
    """Of one process, which serves one file of trainers. is_used: whether anything was trained in it."""

    def __init__(self) -> None:
        self._first: Mapping[str, Seen] | None = None
        self.is_used = False

    def before(self, trainer: object, file: str) -> Mapping[str, Seen]:
        """What there is before a state is loaded; nothing where no model was trained."""
        return of_process(trainer, file) if self.is_used else {}

    def left(self, trainer: object, file: str, before: Mapping[str, Seen] | None = None) -> list[str]:
        """The names of all that has changed since the first model was built here; the log has them, too.

        Asked when a model was built, and when a state was loaded into it. before: what there was before that: what
        loading has changed is the state's.
        """
        if self._first is not None and not self.is_used:
            return []
        now = of_process(trainer, file)
        if self._first is None:
            self._first = now
            return []
        loaded = {name for name, seen in (before or {}).items() if now.get(name) != seen}
        new = {name for name in now if name not in self._first and name.endswith(KEPT)}  # as data that is read late
        other = [name for name, seen in now.items() if self._first.get(name) != seen and name not in loaded | new]
        if other:
            print(f"--- other training in this process has changed {', '.join(other[:MOST_NAMED])}")
        return other


def of_process(trainer: object, file: str) -> dict[str, Seen]:
    """All of that. A script is run anew for each model, so what its own file holds is no leftover."""
    modules = code_modules(file)
    if isinstance(trainer, Script):
        modules = [each for each in modules if each.__name__ != "__main__"]
    functions, settings, environment = _functions(trainer, modules), _settings(), _environment(file)
    return {**attributes.of_modules(trainer, modules), **dict(functions), **dict(settings), **dict(environment)}


def _functions(trainer: object, modules: Sequence[ModuleType]) -> Iterator[tuple[str, Seen]]:
    """Which functions stand in these modules and in their classes, since others may have been put in their places; and
    the values that cached ones keep.
    """
    left_out = attributes.caches(trainer)
    for before, where, names in _namespaces(modules):
        for name, value in [] if before.rstrip(".") in left_out else list(names.items()):
            if isinstance(value, FunctionType) and name not in left_out:
                yield f"{before}{name}{where}", Seen(str(id(value.__code__)))
            elif isinstance(value, CACHED) and name not in left_out:
                for arguments, kept in _kept(value).items():
                    yield from attributes.seen_in(f"{before}{name}({arguments})", kept, KEPT).items()


def _namespaces(modules: Sequence[ModuleType]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The names in the modules and in their classes, with the words that stand before and behind each in a message."""
    for module in modules:
        file = (getattr(module, "__file__", None) or module.__name__).rpartition("/")[2]
        yield "", f" (a global of {file})", vars(module)
        for kind in [each for each in vars(module).values() if isinstance(each, type)]:
            if kind.__module__ == module.__name__:
                yield f"{kind.__name__}.", " (of the class)", vars(kind)


def _kept(function: Any) -> dict[str, Any]:
    """What a function that `functools.cache` wraps has returned, by its arguments; nothing of a bounded cache."""
    parts = (part for part in gc.get_referents(function) if type(part) is dict and part is not vars(function))
    return {repr(arguments)[:LONGEST_KEY]: value for part in parts for arguments, value in part.items()}


def _settings() -> Iterator[tuple[str, Seen]]:
    """The settings of libraries that change a step's numbers; `determinism` of the study sets its own at each build."""
    cuda = torch.backends.cuda.matmul
    settings: dict[str, Any] = {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": torch.get_default_device(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_autocast_enabled()": torch.is_autocast_enabled("cpu"),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.backends.cuda.matmul": (cuda.allow_tf32, cuda.allow_fp16_reduced_precision_reduction),
        "torch.backends.cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32),
        "np.geterr()": np.geterr(),
        "decimal.getcontext()": (decimal.getcontext().prec, decimal.getcontext().rounding),
        "os.getcwd()": os.path.realpath("."),
    }
    yield from ((name, _told(value)) for name, value in settings.items())


def _environment(file: str) -> Iterator[tuple[str, Seen]]:
    """The variables that stand in the user's code by their names: libraries set others as they are needed first."""
    code = b"\n".join(imports_of(Path(file).resolve()).files.values())
    for name, value in list(os.environ.items()):
        if any(quote + os.fsencode(name) + quote in code for quote in (b"'", b'"')):
            yield f"os.environ[{name!r}]", _told(value)


def _told(value: object) -> Seen:
    return Seen(hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest())
