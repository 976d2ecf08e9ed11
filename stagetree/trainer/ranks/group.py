"""One trial on several devices: which rank has which part of a batch, and sums that do not depend on their number.

A batch is cut into *shards*, a power of two of them. The processes that train a trial, its *ranks*, have equally many
shards each, side by side. Sums go up one binary tree over the shards: (0 + 1) + (2 + 3), and so on. Every addition is
of the same two numbers in any process, so the bits are the same for 1, 2, 4, ... ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from stagetree.trainer.ranks.summing import Exchanges, TreeSum, as_bytes, buckets, spread

PINNED = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
"""How GPUs add up by torch's own sums: NCCL would choose by size and by what connects them, and with that the order.
What the environment says already stays."""


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
        if device != "cpu":
            for name, value in PINNED.items():
                os.environ.setdefault(name, value)
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

    def give_up_after(self, seconds: float) -> None:
        """Wait so long for another rank in each call from here on, through gloo and through NCCL."""
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))

    def mesh(self, device: str) -> Any:
        """All ranks in a row, as torch has its tensors divided; one process alone is a row as well."""
        if not dist.is_initialized():
            backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        return init_device_mesh(torch.device(device).type, (self.world,))

    def noted_in(self, machine: Mapping[str, Any], device: str) -> dict[str, Any]:
        """What a state says of its machine, with how gradients are added up where their order is torch's to choose."""
        others = {name: value for name, value in machine.items() if name != "nccl"}
        if device == "cpu" or ":" not in self.parallel:
            return others
        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        return others | {"nccl": " ".join([version, *map(os.environ.__getitem__, PINNED)])}

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
            sums = Exchanges(self.world)
            for bucket in buckets(mine):
                sums.begin(bucket, bucket)
            sums.finish()
        return mine

    # What all must agree about --------------------------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Each rank has the tensors of `source`, in place."""
        for bucket in buckets(tensors) if self.world > 1 else ():
            whole = torch.cat([each.reshape(-1) for each in bucket])
            dist.broadcast(as_bytes(whole), source)
            spread(whole, bucket)

    def agree(self, number: int) -> int:
        """The leader's number."""
        if self.world == 1:
            return number
        shared = torch.tensor([number])
        dist.broadcast(shared, 0)
        return int(shared)

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Of each flag, whether it is set in some rank."""
        if self.world == 1 or not flags:
            return list(flags)
        shared = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return [bool(each) for each in shared.tolist()]

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


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


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
