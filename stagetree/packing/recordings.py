"""Passes that are recorded on a GPU, and played again by one launch: CUDA graphs.

A small model's pass keeps the host busy for longer than the device: hundreds of launches for a millisecond of work.
A recording plays the kernels that it was made of, even if Python would now ask for others. So a pass is recorded only
for trainers without code between two batches, under a key of all that its loss may depend on besides tensors; and its
result is compared, to the bit, with the pass computed anew, the first times and every so often after that.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from stagetree.packing.loss import BackwardResult
from stagetree.packing.rows import OwnBatches
from stagetree.trainer import generators

logger = logging.getLogger(__name__)

Pass = Callable[[Any], BackwardResult]
"""From a batch: on the device, and with no result that another call would write into."""

Recorder = Callable[[Pass, Any], Pass]
"""Makes of a pass, and a batch like the coming ones, a pass that is played; each play overwrites the last result."""

TIMES_BEFORE = 2
"""A pass is computed before it is recorded: the first one has kernels chosen, which a recording must not."""

MOST = 8
"""Recordings are kept for a stack, those played last: each has memory of its own for its results."""

MOST_KEYS = 1024
"""So many are remembered: a hyper-parameter that the loss reads may make another one at each step."""

CHECK_EVERY = 256

_setting = {"is_on": False}


def set_recorded(is_on: bool) -> None:
    """Whether passes on a GPU are recorded in this process. On a CPU none is."""
    _setting["is_on"] = is_on


class OnGpu:
    """A `Recorder`: by CUDA graphs, which share the memory that a pass needs while it is computed.

    They are played one after the other, so each may write over all of another but its result. What a pass needs is
    gigabytes with models of ten million parameters, and each had it for itself once.
    """

    def __init__(self) -> None:
        self._graphs = WeakSet[torch.cuda.CUDAGraph]()

    def __call__(self, compute: Pass, batch: Any) -> Pass:
        """Raises what torch raises where a pass cannot be recorded."""
        own, graph = copied(batch), torch.cuda.CUDAGraph()
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
    """Of the passes over one stack. record: makes one; None where passes are not recorded."""

    def __init__(self, device: torch.device, record: Recorder | None = None) -> None:
        self._device = str(device)
        self._record = OnGpu() if record is None and device.type == "cuda" and _setting["is_on"] else record
        self._played: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._times, self._refused = Counter[Hashable](), set[Hashable]()

    @property
    def is_on(self) -> bool:
        return self._record is not None

    def result(self, key: Hashable, compute: Pass, batch: Any) -> BackwardResult:
        """What `compute` finds, which is recorded if it was computed before with this key.

        key: of all that the pass depends on besides the numbers in tensors. The next pass may overwrite the result.
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

    def give_up(self) -> bool:
        """Whether there were recordings. There are none from here on, as where their memory is needed."""
        had_some = bool(self._played)
        self._played.clear()
        self._record = None
        return had_some

    def _is_recorded(self, key: Hashable, compute: Pass, batch: Any) -> bool:
        """Whether there is a recording, made here if it is time. The generators are where they were."""
        if len(self._times) + len(self._refused) >= MOST_KEYS:
            self._times.clear()
            self._refused.clear()
        self._times[key] += 1
        if self._times[key] <= TIMES_BEFORE:
            return False
        assert self._record is not None
        before = generators.mark(self._device)
        try:
            recording = _Recording(self._record(compute, batch), compute, self._device)
        except Exception as error:  # the pass itself will raise it again, if it concerns it
            self._refuse(key, f"{type(error).__name__}: {str(error)[:200]}")
            return False
        finally:
            draws_on_host = not generators.are_at(before)
            generators.go_back(before, self._device)
        if draws_on_host:
            self._refuse(key, "its loss draws random numbers on the CPU")
            return False
        self._played[key] = recording
        while len(self._played) > MOST:
            self._times.pop(self._played.popitem(last=False)[0], None)
        return True

    def _refuse(self, key: Hashable, why: str) -> None:
        self._played.pop(key, None)
        self._refused.add(key)
        logger.warning("a pass is computed each time, and not recorded: %s", why)


class _Recording:
    """of: the pass, which holds on to the tensors that the recording reads."""

    def __init__(self, play: Pass, of: Pass, device: str) -> None:
        self._play, self._of, self._device, self._times = play, of, device, 0

    def result(self, compute: Pass, batch: Any) -> BackwardResult | None:
        """The result; None where it was compared, and the pass computed anew has another one."""
        self._times += 1
        if self._times & (self._times - 1) and self._times % CHECK_EVERY:
            return _kept(self._play(batch))
        before = generators.mark(self._device)
        played = self._play(batch)
        after = generators.state(self._device)
        generators.go_back(before, self._device)
        computed = compute(batch)
        if _is_same(played, computed) and generators.are_equal(after, generators.state(self._device)):
            return computed
        generators.go_back(before, self._device)
        return None


def _kept(result: BackwardResult) -> BackwardResult:
    """Logged values are added up later than the next pass."""
    sums = {name: each.clone() for name, each in result.sums.items()}
    return BackwardResult(result.gradients, result.buffers, sums, result.counts, result.numbers, result.flat_buffers)


def _is_same(one: BackwardResult, other: BackwardResult) -> bool:
    """To the bit: a NaN is what it is."""
    pairs = ((one.gradients, other.gradients), (one.buffers, other.buffers), (one.sums, other.sums))
    return one.counts == other.counts and all(
        mine.keys() == theirs.keys() and all(_bits(mine[name]).equal(_bits(theirs[name])) for name in mine)
        for mine, theirs in pairs
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def copied(batch: Any) -> Any:
    """A batch like this one in memory of its own."""
    if isinstance(batch, OwnBatches):
        return OwnBatches((number, copied(each)) for number, each in batch.items())
    return tree_map_only(Tensor, Tensor.clone, batch)


def _tensors(batch: Any) -> list[Tensor]:
    each = batch.values() if isinstance(batch, OwnBatches) else [batch]
    return [leaf for one in each for leaf in tree_leaves(one) if isinstance(leaf, Tensor)]
