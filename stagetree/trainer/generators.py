"""The states of the global random generators: Python's, NumPy's, and torch's on the CPU and on one device."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from threading import current_thread, main_thread
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor


def seed(value: int) -> None:
    """Seed all generators for the beginning of a study."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorStates:
    """The states of the generators; of GPUs, only that of one device, or None on a CPU."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: Tensor
    cuda: Tensor | None

    def saved(self) -> dict[str, Any]:
        """The states as tensors and JSON values."""
        version, numbers, gauss = self.python
        kind, keys, position, has_gauss, cached = self.numpy
        return {
            "python": [version, list(numbers), gauss],
            "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
            "torch": self.torch,
            "cuda": self.cuda,
        }

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> GeneratorStates:
        """The states that `saved` returned."""
        (version, numbers, gauss), (kind, keys, *rest) = saved["python"], saved["numpy"]
        numpy = (kind, keys.numpy().astype(np.uint32), *rest)
        return cls((version, tuple(numbers), gauss), numpy, saved["torch"], saved["cuda"])

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, GeneratorStates):
            return self is other
        (kind, keys, *rest), (other_kind, other_keys, *other_rest) = self.numpy, other.numpy
        is_numpy_equal = (kind, rest) == (other_kind, other_rest) and np.array_equal(keys, other_keys)
        tensors = ((self.torch, other.torch), (self.cuda, other.cuda))
        return (
            is_numpy_equal
            and self.python == other.python
            and all(a is b if a is None or b is None else a.equal(b) for a, b in tensors)
        )


def state(device: str) -> GeneratorStates:
    """The present states."""
    on_device = torch.cuda.get_rng_state(device) if device.startswith("cuda") else None
    return GeneratorStates(random.getstate(), cast(Any, np.random.get_state()), torch.get_rng_state(), on_device)


def restore(states: GeneratorStates, device: str) -> None:
    """Set the generators to these states. A state of a CPU seeds a GPU's generator by its hash."""
    random.setstate(states.python)
    np.random.set_state(cast(Any, states.numpy))
    torch.set_rng_state(states.torch)
    if states.cuda is not None:
        torch.cuda.set_rng_state(states.cuda, device)
    elif device.startswith("cuda"):
        digest = blake2b(states.torch.numpy().tobytes(), digest_size=7).digest()
        torch.cuda.manual_seed_all(int.from_bytes(digest, "little"))


@contextmanager
def preserve(device: str) -> Iterator[None]:
    """Restore the generators on exit."""
    before = state(device)
    try:
        yield
    finally:
        restore(before, device)


def are_at(states: GeneratorStates) -> bool:
    """Whether the generators of the CPU are in these states, so that nothing was drawn since."""
    return replace(state("cpu"), cuda=states.cuda) == states


class _DrawUndoingFinder:
    """The first finder in `sys.meta_path`: it delegates to the others, and undoes random draws of the imported
    modules."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        others = (each for each in sys.meta_path if each is not self)
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        loader = spec and spec.loader
        if isinstance(loader, Loader) and hasattr(loader, "exec_module") and hasattr(loader, "__dict__"):
            vars(loader).setdefault("exec_module", partial(_execute_module, loader.exec_module))
        return spec


_importing = set[str]()


def _execute_module(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module and undo its draws; only for outermost modules, and in the training thread."""
    if _importing or current_thread() is not main_thread():
        return execute(module)
    before = state("cpu")
    _importing.add(module.__name__)
    try:
        execute(module)
    finally:
        _importing.clear()
        restore(before, "cpu")


def undo_draws_of_imports() -> None:
    """Make imports leave the generators of this process unchanged, from now on.

    Some packages draw random numbers when they are imported. A trainer may import them in its constructor, so that the
    first model of a process would begin with other numbers than the next. Call this again after adding finders to
    `sys.meta_path`.
    """
    state("cpu")  # NumPy imports its generators on first use
    sys.meta_path[:] = [
        _DrawUndoingFinder(),
        *(each for each in sys.meta_path if not isinstance(each, _DrawUndoingFinder)),
    ]
