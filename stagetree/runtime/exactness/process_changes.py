"""What training has changed in a process that serves several chains, where the next chain would see it.

A process serves several chains only where fresh ones would cost too much. Before each model, the globals and classes of
the user's files, settings of libraries and environment variables are compared with those at the first model.
"""

from __future__ import annotations

import decimal
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from stagetree.runtime.exactness.digests import digest
from stagetree.runtime.exactness.held_values import HeldValues, caches, differing_names, digest_held_values
from stagetree.runtime.loading import code_modules, imports_of
from stagetree.runtime.scripts.interface import Script

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
        kinds = [
            each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__
        ]
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
