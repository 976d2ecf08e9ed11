"""One trial on several devices: which rank has which part of a batch, and sums that do not depend on their number.

A batch is cut into *shards*, a power of two of them. The processes that train a trial, its *ranks*, have equally many
shards each, side by side. Sums go up one binary tree over the shards: (0 + 1) + (2 + 3), and so on. Every addition is
of the same two numbers in any process, so the bits are the same for 1, 2, 4, ... ranks.

Between ranks, a sum has the traffic of a ring: each rank is sent its chunk of each rank's sum, adds it up in the tree's
order, and sends the sum to all.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

BUCKET_BYTES = 2**25
"""Of tensors that are sent at once."""

IN_FLIGHT = 2
"""So many buckets are on their way while another one is added up."""


class Ranks:
    """The processes that train a trial, as one of them sees them; `self.ranks` of a trainer.

    All of them make the same calls in the same order, with tensors of the same shapes: none of the calls may depend on
    `rank`, only the work in between. On one device there is one rank, and the same sums.

    rank: the number of this one; 0 is the leader, whose state is saved. world: how many there are, a power of two.
    shards: in how many the study has each batch cut; 0 where it says nothing. parallel: how the study has them trained.
    """

    def __init__(self, rank: int = 0, world: int = 1, shards: int = 0, parallel: str = "tree") -> None:
        self.rank, self.world, self.shards, self.parallel = rank, world, shards, parallel

    @classmethod
    def alone(cls, shards: int = 0) -> Ranks:
        """One process that has all shards."""
        return cls(shards=shards)

    @classmethod
    def meet(
        cls,
        fd: int,
        rank: int,
        world: int,
        seconds: float,
        device: str = "cpu",
        *,
        host: str = "",
        port: int = 0,
        interface: str = "lo",
    ) -> Ranks:
        """Wait until all are there. fd: a file that all can write to; or the leader's socket, at which it listens for
        those on other machines, who know its host and port. seconds: for which any of them may be late, here and in
        each call. interface: of the network on which they talk; empty for any. Raises ValueError, and RuntimeError if
        one does not come.
        """
        if not is_power_of_two(world):
            raise ValueError(f"a trial has 1, 2, 4, 8, ... ranks, not {world}")
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ():
            os.environ.setdefault(name, interface)  # all on one machine, say, which may have no other name
        late = timedelta(seconds=seconds)
        how: dict[str, Any] = {"is_master": rank == 0, "timeout": late, "wait_for_workers": False}
        if rank == 0:
            how["master_listen_fd"] = fd
        dist.init_process_group(
            "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
            store=dist.TCPStore(host, port, world, **how)  # type: ignore[attr-defined]
            if host
            else dist.FileStore(f"/proc/self/fd/{fd}", world),  # type: ignore[attr-defined]
            rank=rank,
            world_size=world,
            timeout=late,
        )
        return cls(rank, world)

    def mesh(self, device: str) -> Any:
        """All ranks in a row, as torch has its tensors divided; one process alone is a row as well."""
        if not dist.is_initialized():
            backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        return init_device_mesh(torch.device(device).type, (self.world,))

    # Which shards ---------------------------------------------------------------------------------------------------

    def own(self, shards: int) -> range:
        """Which of so many shards this rank has. Raises ValueError: they cannot be divided equally."""
        if not is_power_of_two(shards) or shards < self.world:
            raise ValueError(f"shards must be a power of two, one at least for each of {self.world} ranks: {shards}")
        each = shards // self.world
        return range(self.rank * each, (self.rank + 1) * each)

    # Sums -----------------------------------------------------------------------------------------------------------

    def sum(self, parts: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """The sum over all shards, in the order of the tree. Every rank has it.

        parts: for each shard of this rank, in their order, the tensors that are added up; taken one after the other,
        so that a generator needs the memory of a few. The first of them may be overwritten. Raises ValueError if they
        are not as many as a power of two.
        """
        tree = TreeSum()
        for part in parts:
            tree.add(list(part))
        return self.across(tree.take())

    def across(self, mine: list[Tensor]) -> list[Tensor]:
        """The sum over all ranks, each of which brings that over its own shards; in place."""
        if self.world > 1:
            sent = deque[_Exchange]()
            for bucket in _buckets(mine):
                sent.append(_Exchange(bucket, self.world))
                if len(sent) > IN_FLIGHT:
                    sent.popleft().finish()
            for exchange in sent:
                exchange.finish()
        return mine

    # What all must agree about --------------------------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Each rank has the tensors of `source`, in place."""
        for bucket in _buckets(tensors) if self.world > 1 else ():
            whole = torch.cat([each.reshape(-1) for each in bucket])
            dist.broadcast(as_bytes(whole), source)
            _spread(whole, bucket)

    def agree(self, number: int) -> int:
        """The leader's number."""
        if self.world == 1:
            return number
        told = torch.tensor([number])
        dist.broadcast(told, 0)
        return int(told)

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Of each flag, whether it is set in some rank."""
        if self.world == 1 or not flags:
            return list(flags)
        told = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return [bool(each) for each in told.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in their order."""
        if self.world == 1:
            return [value]
        text = json.dumps(value).encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(text)]))
        longest = max(int(size) for size in sizes)
        padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
        texts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(texts, padded)
        return [json.loads(bytes(each.tolist())) for each in texts]

    def barrier(self) -> None:
        """Wait until all are here."""
        self.agree(0)
        self.any([False])


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


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


class _Exchange:
    """The sum of a bucket over all ranks, on its way."""

    def __init__(self, tensors: Sequence[Tensor], world: int) -> None:
        self._tensors, self._world = tensors, world
        flat = torch.cat([each.reshape(-1) for each in tensors])
        self._length = len(flat)
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % world))
        self._mine, self._flat = torch.empty_like(flat), flat  # until it is there, what is sent must stay
        self._work = dist.all_to_all_single(as_bytes(self._mine), as_bytes(flat), async_op=True)

    def finish(self) -> None:
        """The tensors are the sum."""
        self._work.wait()
        chunks = list(self._mine.view(self._world, -1))
        while len(chunks) > 1:
            chunks = [one + other for one, other in zip(chunks[::2], chunks[1::2], strict=True)]
        dist.all_gather([as_bytes(each) for each in self._flat.view(self._world, -1)], as_bytes(chunks[0]))
        _spread(self._flat[: self._length], self._tensors)


def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Tensors that were put together get their new values."""
    for tensor, values in zip(tensors, torch.split(flat, [each.numel() for each in tensors]), strict=True):
        tensor.copy_(values.view(tensor.shape))


def as_bytes(tensor: Tensor) -> Tensor:
    """They are only carried: what carries them need not know the type."""
    return tensor.view(torch.uint8)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type, a few large ones or many small ones."""
    kinds: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        bucket = kinds.setdefault((tensor.dtype, tensor.device), [])
        bucket.append(tensor)
        if sum(each.numel() * each.element_size() for each in bucket) >= BUCKET_BYTES:  # as in each rank
            yield kinds.pop((tensor.dtype, tensor.device))
    yield from kinds.values()


_here = Ranks.alone()


def here() -> Ranks:
    """The ranks of which this process has a number."""
    return _here


def be(ranks: Ranks) -> None:
    """From here on, these are the ranks of this process."""
    global _here
    _here = ranks


def cut(count: int, shards: int) -> list[tuple[int, int]]:
    """Where each of so many shards of a batch begins and ends; of a small batch, some are empty."""
    return [(count * shard // shards, count * (shard + 1) // shards) for shard in range(shards)]
