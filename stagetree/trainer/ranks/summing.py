"""Sums over shards and ranks in the order of one tree, and how they go from rank to rank while others are computed.

Between ranks, a sum has the traffic of a ring: each rank is sent its chunk of each rank's sum, adds it up in the tree's
order, and sends the sum to all. In which buckets tensors are sent changes no bit: each number goes up the tree alone.
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
"""Of tensors that are sent at once."""

IN_FLIGHT = 2
"""So many buckets are on their way while another one is added up."""

EARLY_BYTES = {"cuda": 2**23}
"""By type of device, of gradients that are sent at once during a backward pass. On others, none are before it is over:
the cores of a CPU compute and send, and one waits for the other.
"""


class TreeSum:
    """Adds up the parts of neighbouring shards, first to last, as the tree does. It keeps a sum for each level at most.

    Tensors that are added are its own from there on.
    """

    def __init__(self) -> None:
        self._sums: list[tuple[int, list[Tensor]]] = []  # of how many shards, and their sum

    def add(self, part: list[Tensor]) -> None:
        """The part of the next shard."""
        count = 1
        while self._sums and self._sums[-1][0] == count:
            _, before = self._sums.pop()
            part, count = add(before, part), 2 * count
        self._sums.append((count, part))

    def whole(self, number: int, part: Tensor) -> Tensor:
        """The sum of all for one of the tensors, of which that is the last shard's part. It changes nothing."""
        for _, before in reversed(self._sums):
            part = before[number] + part
        return part

    def take(self) -> list[Tensor]:
        """The sum of all. Raises ValueError if they are not as many as a power of two."""
        if len(self._sums) != 1:
            raise ValueError(f"the parts of {sum(count for count, _ in self._sums)} shards are no whole tree")
        return self._sums.pop()[1]


def add(one: list[Tensor], other: list[Tensor]) -> list[Tensor]:
    """Into the first. Raises ValueError: they are of different lengths."""
    for mine, theirs in zip(one, other, strict=True):
        mine.add_(theirs)
    return one


class Exchanges:
    """Sums of buckets over all ranks, a few on their way at once. All ranks begin the same ones in the same order."""

    def __init__(self, world: int) -> None:
        self._world, self._sent = world, deque[_Exchange]()

    def begin(self, bucket: Sequence[Tensor], places: Sequence[Tensor]) -> None:
        """Add up these tensors; the sums go to the places, at the latest when all is finished."""
        self._sent.append(_Exchange(bucket, places, self._world))
        if len(self._sent) > IN_FLIGHT:
            self._sent.popleft().finish()

    def finish(self) -> None:
        """The sums are in their places."""
        while self._sent:
            self._sent.popleft().finish()


class _Exchange:
    """The sum of a bucket over all ranks, on its way. places: of the sums."""

    def __init__(self, tensors: Sequence[Tensor], places: Sequence[Tensor], world: int) -> None:
        self._tensors, self._world = places, world
        flat = torch.cat([each.reshape(-1) for each in tensors])
        self._length = len(flat)
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % world))
        self._mine, self._flat = torch.empty_like(flat), flat  # until it is there, what is sent must stay
        self._work = dist.all_to_all_single(as_bytes(self._mine), as_bytes(flat), async_op=True)

    def finish(self) -> None:
        """The sum is in its places."""
        self._work.wait()
        chunks = list(self._mine.view(self._world, -1))
        while len(chunks) > 1:
            chunks = [one + other for one, other in zip(chunks[::2], chunks[1::2], strict=True)]
        dist.all_gather([as_bytes(each) for each in self._flat.view(self._world, -1)], as_bytes(chunks[0]))
        spread(self._flat[: self._length], self._tensors)


def spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Tensors that were put together get their new values."""
    for tensor, values in zip(tensors, torch.split(flat, [each.numel() for each in tensors]), strict=True):
        tensor.copy_(values.view(tensor.shape))


def as_bytes(tensor: Tensor) -> Tensor:
    """They are only carried: what carries them need not know the type."""
    return tensor.view(torch.uint8)


def buckets(tensors: Sequence[Tensor], size: int = BUCKET_BYTES) -> Iterator[list[Tensor]]:
    """Tensors of one type, a few large ones or many small ones."""
    kinds: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        bucket = kinds.setdefault((tensor.dtype, tensor.device), [])
        bucket.append(tensor)
        if sum(each.numel() * each.element_size() for each in bucket) >= size:  # as in each rank
            yield kinds.pop((tensor.dtype, tensor.device))
    yield from kinds.values()


class EarlySums:
    """Begins to add up gradients over all ranks while the last shard's backward pass goes on.

    The parameters that had a gradient in the batch before are expected to have one again, in all ranks, and each as
    often in a pass: where a part of the model is used again, it may come in several pieces. Buckets of them are sent
    in one order, the last parameters first, as soon as this rank has all of the next one; the rest follows when the
    pass is over. If more comes of a parameter that was sent already, all ranks send it once more.
    """

    def __init__(self) -> None:
        self._expected: list[int] = []
        self._times = dict[int, int]()  # how often each parameter's gradient came in the last batch
        self._sums, self._seen, self._again = dict[int, Tensor](), dict[int, int](), set[int]()
        self._waiting, self._exchanges = list[list[int]](), Exchanges(1)

    @contextmanager
    def during(self, parameters: Sequence[nn.Parameter], tree: TreeSum, world: int) -> Iterator[None]:
        """The last shard of this rank is learned from inside. tree: with the shards before. world: of the ranks."""
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

        hooks = [_hook(each, note(number)) for number, each in enumerate(parameters) if size]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def send_rest(self, leaf: Sequence[Tensor], tree: TreeSum) -> None:
        """The pass is over, and these are all its gradients."""
        while self._waiting:
            self._send(tree, {number: leaf[number] for number in self._waiting[0]})

    def came_late(self, count: int) -> list[bool]:
        """Of each parameter, whether it was sent before it had all of its gradient."""
        return [number in self._again for number in range(count)]

    def take(self, is_late: Sequence[bool], is_present: Sequence[bool]) -> dict[int, Tensor]:
        """The sums by the numbers of their parameters, but for the late ones of any rank.

        is_present: what is expected in the next batch.
        """
        self._exchanges.finish()
        sums, self._sums = self._sums, {}
        self._expected = [number for number, is_there in enumerate(is_present) if is_there]
        self._times = self._seen or self._times
        return {number: each for number, each in sums.items() if not is_late[number]}

    def _send(self, tree: TreeSum, parts: dict[int, Tensor]) -> None:
        """The next bucket."""
        del self._waiting[0]
        sums = {number: torch.empty_like(part) for number, part in parts.items()}
        self._sums |= sums
        self._exchanges.begin([tree.whole(number, part) for number, part in parts.items()], list(sums.values()))

    def _is_there(self, number: int) -> bool:
        return 0 < self._times.get(number, 0) <= self._seen.get(number, 0)


def _hook(parameter: nn.Parameter, came: Callable[[Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(came)  # type: ignore[no-untyped-call]


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
