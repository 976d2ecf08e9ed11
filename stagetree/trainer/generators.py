"""The states of the global random generators: Python's, NumPy's, and torch's on the CPU and on one device."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from threading import current_thread, main_thread
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch

Mark = tuple[Any, ...]


def seed(value: int) -> None:
    """Seed all generators for the beginning of a study."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


@contextmanager
def preserve(device: str) -> Iterator[None]:
    """Restore the generators on exit."""
    before = state(device)
    try:
        yield
    finally:
        restore(before, device)


def state(device: str) -> dict[str, Any]:
    """The states of the generators, as tensors and JSON values; of GPUs, only that of `device`."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(tuple[Any, ...], np.random.get_state(legacy=True))
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.startswith("cuda") else None,
    }


def restore(saved: dict[str, Any], device: str) -> None:
    """Set the generators to states that `state` returned."""
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(saved["torch"])
    if device.startswith("cuda"):
        _restore_gpu(saved, device)


def are_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states are equal."""
    if one is other:
        return True
    (_, keys, *rest), (_, other_keys, *other_rest) = one["numpy"], other["numpy"]
    tensors = ((one["torch"], other["torch"]), (keys, other_keys), (one["cuda"], other["cuda"]))
    return (one["python"], rest) == (other["python"], other_rest) and all(
        a is b if a is None or b is None else a.equal(b) for a, b in tensors
    )


def mark(device: str) -> Mark:
    """The states of the generators, for `go_back` in this process; half as expensive as `state`."""
    on_device = torch.cuda.get_rng_state(device) if device.startswith("cuda") else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_device


def go_back(to: Mark, device: str) -> None:
    """Set the generators to states that `mark` returned."""
    python, numpy, cpu, on_device = to
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)


def are_at(place: Mark) -> bool:
    """Whether nothing was drawn on the CPU since `mark`."""
    python, numpy, cpu, _ = place
    kind, keys, *rest = numpy
    now_kind, now_keys, *now_rest = np.random.get_state()
    is_numpys = (kind, rest) == (now_kind, now_rest) and np.array_equal(keys, now_keys)
    return is_numpys and python == random.getstate() and torch.equal(cpu, torch.get_rng_state())


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
    before = mark("cpu")
    _importing.add(module.__name__)
    try:
        execute(module)
    finally:
        _importing.clear()
        go_back(before, "cpu")


def undo_draws_of_imports() -> None:
    """Make imports leave the generators of this process unchanged, from now on.

    Some packages draw random numbers when they are imported. A trainer may import them in its constructor, so that the
    first model of a process would begin with other numbers than the next. Call this again after adding finders to
    `sys.meta_path`.
    """
    mark("cpu")  # NumPy imports its generators on first use
    sys.meta_path[:] = [
        _DrawUndoingFinder(),
        *(each for each in sys.meta_path if not isinstance(each, _DrawUndoingFinder)),
    ]


def _restore_gpu(saved: dict[str, Any], device: str) -> None:
    """Restore a GPU's generator; a state of a CPU has none, and seeds it by a hash of the state."""
    if saved["cuda"] is not None:
        torch.cuda.set_rng_state(saved["cuda"], device)
    else:
        digest = blake2b(saved["torch"].numpy().tobytes(), digest_size=7).digest()
        torch.cuda.manual_seed_all(int.from_bytes(digest, "little"))
