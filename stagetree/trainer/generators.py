"""The global random generators: Python's, NumPy's and torch's on the CPU and on one device, as one state."""

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
    """Put every generator where a study with this seed begins."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


@contextmanager
def kept(device: str) -> Iterator[None]:
    """Whatever is drawn in the block, the generators are where they were after it."""
    before = state(device)
    try:
        yield
    finally:
        restore(before, device)


def state(device: str) -> dict[str, Any]:
    """Where the generators are, as tensors and JSON values; of the GPUs, only that of `device`."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(tuple[Any, ...], np.random.get_state(legacy=True))
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.startswith("cuda") else None,
    }


def restore(saved: dict[str, Any], device: str) -> None:
    """Put the generators back where `state` found them."""
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(saved["torch"])
    if device.startswith("cuda"):
        _restore_gpu(saved, device)


def are_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states are of generators at the same place."""
    if one is other:
        return True
    (_, keys, *rest), (_, other_keys, *other_rest) = one["numpy"], other["numpy"]
    tensors = ((one["torch"], other["torch"]), (keys, other_keys), (one["cuda"], other["cuda"]))
    return (one["python"], rest) == (other["python"], other_rest) and all(
        a is b if a is None or b is None else a.equal(b) for a, b in tensors
    )


def mark(device: str) -> Mark:
    """Where the generators are, for `go_back` in this process: it costs half of what `state` does."""
    on_device = torch.cuda.get_rng_state(device) if device.startswith("cuda") else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_device


def go_back(to: Mark, device: str) -> None:
    """Put the generators back where `mark` found them."""
    python, numpy, cpu, on_device = to
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)


def are_at(place: Mark) -> bool:
    """Whether nothing was drawn on the CPU since `mark` found them there."""
    python, numpy, cpu, _ = place
    kind, keys, *rest = numpy
    now_kind, now_keys, *now_rest = np.random.get_state()
    is_numpys = (kind, rest) == (now_kind, now_rest) and np.array_equal(keys, now_keys)
    return is_numpys and python == random.getstate() and torch.equal(cpu, torch.get_rng_state())


class _StillImports:
    """A finder of modules, the first one of `sys.meta_path`: it has the others find them, and undoes their draws."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        others = (each for each in sys.meta_path if each is not self)
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        loader = spec and spec.loader
        if isinstance(loader, Loader) and hasattr(loader, "exec_module") and hasattr(loader, "__dict__"):
            vars(loader).setdefault("exec_module", partial(_executed, loader.exec_module))
        return spec


_importing = set[str]()


def _executed(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Of modules that import others, the outermost undoes it. Other threads than the one that trains undo nothing."""
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
    """From here on, an import leaves the generators of this process where they are.

    Packages draw random numbers while they are imported. A trainer may import some in its constructor, and the first
    one that a process builds would begin with other numbers than the next. Where finders are added to `sys.meta_path`,
    this has to be called again.
    """
    mark("cpu")  # NumPy imports its generators when it is first asked for them
    sys.meta_path[:] = [_StillImports(), *(each for each in sys.meta_path if not isinstance(each, _StillImports))]


def _restore_gpu(saved: dict[str, Any], device: str) -> None:
    """A state of a CPU has no generator of a GPU: one that is a function of the state, wherever it goes on."""
    if saved["cuda"] is not None:
        torch.cuda.set_rng_state(saved["cuda"], device)
    else:
        digest = blake2b(saved["torch"].numpy().tobytes(), digest_size=7).digest()
        torch.cuda.manual_seed_all(int.from_bytes(digest, "little"))
