"""Sums over shards and ranks in the order of one tree, overlapped with computation.

Between ranks, a sum has the traffic of a ring all-reduce: each rank gets its chunk of all ranks' sums, adds them in
tree order, and sends the result to all. Bucketing does not change the bits: each number goes up the tree separately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

BUCKET_BYTES = 2**25
"""Size of the buckets in which tensors are sent."""

IN_FLIGHT = 2
"""Buckets in transfer while another one is added."""

EARLY_BYTES = {"cuda": 2**23}
"""Bucket sizes during a backward pass, by device type. Other devices send after the pass: on a CPU, computing and
sending compete for the same cores.
"""


class TreeSum:
    """Adds the parts of consecutive shards in tree order, with at most one sum a level.

    Added tensors belong to this object and may be overwritten.
    """

    def __init__(self) -> None:
        self._sums: list[tuple[int, list[Tensor]]] = []  # (number of shards, their sum)

    def add(self, part: list[Tensor]) -> None:
        """Add the part of the next shard."""
        count = 1
        while self._sums and self._sums[-1][0] == count:
            _, before = self._sums.pop()
            part, count = add(before, part), 2 * count
        self._sums.append((count, part))

    def whole(self, number: int, part: Tensor) -> Tensor:
        """The whole sum for one tensor, given the last shard's part of it. Changes nothing."""
        for _, before in reversed(self._sums):
            part = before[number] + part
        return part

    def take(self) -> list[Tensor]:
        """The sum of all parts. Raises ValueError if their number is not a power of two."""
        if len(self._sums) != 1:
            raise ValueError(f"the parts of {sum(count for count, _ in self._sums)} shards are no whole tree")
        return self._sums.pop()[1]


def add(one: list[Tensor], other: list[Tensor]) -> list[Tensor]:
    """Add in place to the first. Raises ValueError for different lengths."""
    for mine, theirs in zip(one, other, strict=True):
        mine.add_(theirs)
    return one


class Exchanges:
    """Sums of buckets over all ranks, several in transfer at once. All ranks begin the same ones in the same order."""

    def __init__(self, world: int) -> None:
        self._world, self._sent = world, deque[_Exchange]()

    def begin(self, bucket: Sequence[Tensor], places: Sequence[Tensor]) -> None:
        """Start the sum of these tensors. The results are written to `places` by `finish` at the latest."""
        self._sent.append(_Exchange(bucket, places, self._world))
        if len(self._sent) > IN_FLIGHT:
            self._sent.popleft().finish()

    def finish(self) -> None:
        """Wait for all sums."""
        while self._sent:
            self._sent.popleft().finish()


class _Exchange:
    """A bucket's sum in transfer. places: of the results."""

    def __init__(self, tensors: Sequence[Tensor], places: Sequence[Tensor], world: int) -> None:
        self._tensors, self._world = places, world
        flat = torch.cat([each.reshape(-1) for each in tensors])
        self._length = len(flat)
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % world))
        self._mine, self._flat = torch.empty_like(flat), flat  # kept alive while it is sent
        self._work = dist.all_to_all_single(byte_view(self._mine), byte_view(flat), async_op=True)

    def finish(self) -> None:
        """Wait for the sum and write it to its places."""
        self._work.wait()
        mine = tree_sum(self._mine, self._world)
        dist.all_gather([byte_view(each) for each in self._flat.view(self._world, -1)], byte_view(mine))
        spread(self._flat[: self._length], self._tensors)


def tree_sum(flat: Tensor, world: int) -> Tensor:
    """The sum of the ranks' chunks in a tensor, in the order of the tree."""
    chunks: list[Tensor] = list(flat.view(world, -1))
    while len(chunks) > 1:
        chunks = [one + other for one, other in zip(chunks[::2], chunks[1::2], strict=True)]
    return chunks[0]


def spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a concatenation back to its tensors."""
    for tensor, values in zip(tensors, torch.split(flat, [each.numel() for each in tensors]), strict=True):
        tensor.copy_(values.view(tensor.shape))


def byte_view(tensor: Tensor) -> Tensor:
    """The tensor's bytes: transfers need not know the dtype."""
    return tensor.view(torch.uint8)


def buckets(tensors: Sequence[Tensor], size: int = BUCKET_BYTES) -> Iterator[list[Tensor]]:
    """Group tensors of one dtype and device into buckets of at least `size` bytes."""
    kinds: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        bucket = kinds.setdefault((tensor.dtype, tensor.device), [])
        bucket.append(tensor)
        if sum(each.numel() * each.element_size() for each in bucket) >= size:  # equal on all ranks
            yield kinds.pop((tensor.dtype, tensor.device))
    yield from kinds.values()


class EarlySums:
    """Starts summing gradients over all ranks during the last shard's backward pass.

    Parameters that had a gradient in the last batch are expected to have one again, on all ranks, and in as many
    pieces: a reused part of the model may give several. Buckets of them are sent in one order, the last parameters
    first, as soon as this rank has a whole bucket; the rest follows after the pass. If a gradient changes after it was
    sent, all ranks send it again.
    """

    def __init__(self) -> None:
        self._expected: list[int] = []
        self._times = dict[int, int]()  # the number of pieces of each gradient in the last batch
        self._sums, self._seen, self._again = dict[int, Tensor](), dict[int, int](), set[int]()
        self._waiting, self._exchanges = list[list[int]](), Exchanges(1)

    @contextmanager
    def overlap(self, parameters: Sequence[nn.Parameter], tree: TreeSum, world: int) -> Iterator[None]:
        """The context of the last shard of this rank. tree: of the shards before. world: the number of ranks."""
        size = EARLY_BYTES.get(parameters[0].device.type, 0) if parameters else 0
        ready = [number for number in reversed(self._expected) if number < len(parameters) and size]
        numbers = {id(parameters[number]): number for number in ready}
        cut = buckets([parameters[number] for number in ready], size)
        self._waiting = [[numbers[id(each)] for each in bucket] for bucket in cut]
        self._sums, self._seen, self._again = {}, {}, set()
        self._exchanges = Exchanges(world)

        def note(number: int) -> Callable[[Tensor], None]:
            def came(parameter: Tensor) -> None:
                self._seen[number] = self._seen.get(number, 0) + 1
                if number in self._sums:
                    self._again.add(number)
                while self._waiting and all(map(self._is_there, self._waiting[0])):
                    self._send(tree, {each: _gradient(parameters[each]) for each in self._waiting[0]})

            return came

        numbered = list(enumerate(parameters)) if size else []
        hooks: list[Any] = [each.register_post_accumulate_grad_hook(note(number)) for number, each in numbered]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def send_rest(self, leaf: Sequence[Tensor], tree: TreeSum) -> None:
        """Send the remaining buckets after the pass, given all its gradients."""
        while self._waiting:
            self._send(tree, {number: leaf[number] for number in self._waiting[0]})

    def came_late(self, count: int) -> list[bool]:
        """For each parameter, whether it was sent before its gradient was complete."""
        return [number in self._again for number in range(count)]

    def take(self, is_late: Sequence[bool], is_present: Sequence[bool]) -> dict[int, Tensor]:
        """The sums by parameter number, except sums that were incomplete on any rank.

        is_present: the gradients to expect in the next batch.
        """
        self._exchanges.finish()
        sums, self._sums = self._sums, {}
        self._expected = [number for number, is_there in enumerate(is_present) if is_there]
        self._times = self._seen or self._times
        return {number: each for number, each in sums.items() if not is_late[number]}

    def _send(self, tree: TreeSum, parts: dict[int, Tensor]) -> None:
        """Send the next bucket."""
        del self._waiting[0]
        sums = {number: torch.empty_like(part) for number, part in parts.items()}
        self._sums |= sums
        self._exchanges.begin([tree.whole(number, part) for number, part in parts.items()], list(sums.values()))

    def _is_there(self, number: int) -> bool:
        return 0 < self._times.get(number, 0) <= self._seen.get(number, 0)


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
