"""Backward passes recorded as CUDA graphs and replayed by a single launch.

A small model's pass keeps the host busy for longer than the GPU: hundreds of launches for a millisecond of work. A
graph replays its kernels even if Python would now choose others. So passes are recorded only for trainers without code
between batches, under a key of all non-tensor values that the loss may depend on. The first results, and then every
`CHECK_EVERY`th, are compared bit for bit with the pass computed anew.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from stagetree.packing.constants import bits
from stagetree.packing.loss import BackwardResult
from stagetree.packing.rows import LaneBatches
from stagetree.trainer import generators

logger = logging.getLogger(__name__)

Pass = Callable[[Any], BackwardResult]
"""Computes a batch on the device. Its result is not overwritten by other calls."""

Recorder = Callable[[Pass, Any], Pass]
"""Makes a replayed pass of a pass and a batch like the coming ones. Each replay overwrites the last result."""

WARMUP_PASSES = 2
"""Passes before recording, in which kernels are chosen; that is not allowed while recording."""

MAX_RECORDINGS = 8
"""Recordings kept for a stack, the last played first: each has memory for its results."""

MAX_KEYS = 1024
"""Keys remembered: a hyper-parameter that the loss reads may make a new one at each step."""

CHECK_EVERY = 256

_setting = {"is_on": False}


def enable_recording(is_on: bool) -> None:
    """Switch recording on GPUs on or off in this process. CPU passes are never recorded."""
    _setting["is_on"] = is_on


class CudaGraphRecorder:
    """A `Recorder` by CUDA graphs, which share one memory pool for their intermediate tensors.

    They are replayed one after the other, so each may overwrite all of another except its result. With ten million
    parameters a pass needs gigabytes, which separate pools would multiply.
    """

    def __init__(self) -> None:
        self._graphs = WeakSet[torch.cuda.CUDAGraph]()

    def __call__(self, compute: Pass, batch: Any) -> Pass:
        """Raises torch's error if a pass cannot be recorded."""
        own, graph = clone_batch(batch), torch.cuda.CUDAGraph()
        into, shared = _tensors(own), next((each.pool() for each in self._graphs), None)
        with torch.cuda.graph(graph, pool=shared, capture_error_mode="thread_local"):
            result = compute(own)
        self._graphs.add(graph)

        def play(batch: Any) -> BackwardResult:
            for tensor, each in zip(into, _tensors(batch), strict=True):
                tensor.copy_(each, non_blocking=True)
            graph.replay()
            return result

        return play


class Recordings:
    """The recordings of passes over one stack. record: None where passes are not recorded."""

    def __init__(self, device: torch.device, record: Recorder | None = None) -> None:
        self._device = str(device)
        self._record = CudaGraphRecorder() if record is None and device.type == "cuda" and _setting["is_on"] else record
        self._played: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._times, self._refused = Counter[Hashable](), set[Hashable]()

    @property
    def is_on(self) -> bool:
        return self._record is not None

    def result(self, key: Hashable, compute: Pass, batch: Any) -> BackwardResult:
        """The result of `compute`, replayed from a recording if this key was computed before.

        key: everything the pass depends on except the numbers in tensors. The next pass may overwrite the result.
        Raises the errors of `compute`.
        """
        if self._record is None or key in self._refused:
            return compute(batch)
        if key not in self._played and not self._is_recorded(key, compute, batch):
            return compute(batch)
        self._played.move_to_end(key)
        played = self._played[key].result(compute, batch)
        if played is None:
            self._refuse(key, "it gave other numbers than the same pass computed anew")
            return compute(batch)
        return played

    def disable(self) -> bool:
        """Drop all recordings and record no more, to free their memory. Returns whether there were any."""
        had_some = bool(self._played)
        self._played.clear()
        self._record = None
        return had_some

    def _is_recorded(self, key: Hashable, compute: Pass, batch: Any) -> bool:
        """Whether there is a recording; makes one when it is time. Generators are restored."""
        if len(self._times) + len(self._refused) >= MAX_KEYS:
            self._times.clear()
            self._refused.clear()
        self._times[key] += 1
        if self._times[key] <= WARMUP_PASSES:
            return False
        assert self._record is not None
        before = generators.state(self._device)
        try:
            recording = _Recording(self._record(compute, batch), compute, self._device)
        except Exception as error:  # if the pass itself is at fault, it raises again when computed
            self._refuse(key, f"{type(error).__name__}: {str(error)[:200]}")
            return False
        finally:
            draws_on_host = not generators.are_at(before)
            generators.restore(before, self._device)
        if draws_on_host:
            self._refuse(key, "its loss draws random numbers on the CPU")
            return False
        self._played[key] = recording
        while len(self._played) > MAX_RECORDINGS:
            self._times.pop(self._played.popitem(last=False)[0], None)
        return True

    def _refuse(self, key: Hashable, why: str) -> None:
        self._played.pop(key, None)
        self._refused.add(key)
        logger.warning("a pass is computed each time, and not recorded: %s", why)


class _Recording:
    """of: the pass, kept since it holds the tensors that the recording reads."""

    def __init__(self, play: Pass, of: Pass, device: str) -> None:
        self._play, self._of, self._device, self._times = play, of, device, 0

    def result(self, compute: Pass, batch: Any) -> BackwardResult | None:
        """The result; None if it was compared with the pass computed anew and differs."""
        self._times += 1
        if self._times & (self._times - 1) and self._times % CHECK_EVERY:
            played = self._play(batch)
            sums = {name: each.clone() for name, each in played.sums.items()}  # read after the next
            return replace(played, sums=sums)
        before = generators.state(self._device)
        played = self._play(batch)
        after = generators.state(self._device)
        generators.restore(before, self._device)
        computed = compute(batch)
        if _is_same(played, computed) and after == generators.state(self._device):
            return computed
        generators.restore(before, self._device)
        return None


def _is_same(one: BackwardResult, other: BackwardResult) -> bool:
    """Compare bit for bit, so that NaNs are equal."""
    pairs = ((one.gradients, other.gradients), (one.buffers, other.buffers), (one.sums, other.sums))
    return one.counts == other.counts and all(
        mine.keys() == theirs.keys() and all(bits(mine[name]).equal(bits(theirs[name])) for name in mine)
        for mine, theirs in pairs
    )


def clone_batch(batch: Any) -> Any:
    """A copy of the batch in its own memory."""
    if isinstance(batch, LaneBatches):
        return LaneBatches((number, clone_batch(each)) for number, each in batch.items())
    return tree_map_only(Tensor, Tensor.clone, batch)


def _tensors(batch: Any) -> list[Tensor]:
    each = batch.values() if isinstance(batch, LaneBatches) else [batch]
    return [leaf for one in each for leaf in tree_leaves(one) if isinstance(leaf, Tensor)]
