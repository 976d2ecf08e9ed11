"""One trial on several devices: the ranks and their shards, and sums that do not depend on the number of ranks.

A batch is cut into *shards*, a power of two of them. The processes that train a trial, its *ranks*, have equally many
consecutive shards. Sums follow one binary tree over the shards: (0 + 1) + (2 + 3), and so on. Each addition has the
same two operands in any process, so that the bits are the same for 1, 2, 4, ... ranks.
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

from stagetree.system.files import descriptor_path
from stagetree.trainer.ranks.summing import Exchanges, TreeSum, buckets, byte_view, spread

PINNED = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
"""Settings for torch's own sums on GPUs: otherwise NCCL chooses an algorithm, and with it the order of the sum, by size
and topology. Variables of the environment take precedence."""


class Ranks:
    """The processes that train a trial, seen from one of them; a trainer's `self.ranks`.

    All of them must make the same calls in the same order, with tensors of the same shapes: only the work between calls
    may depend on `rank`. On one device there is one rank, and the same sums.

    rank: the number of this process; 0 is the leader, whose state is saved. world: the number of ranks, a power of two.
    shards: the number of shards of a batch; 0 if the study sets none. parallel: the study's way of training on them.
    """

    def __init__(self, rank: int = 0, world: int = 1, shards: int = 0, parallel: str = "tree") -> None:
        self.rank, self.world, self.shards, self.parallel = rank, world, shards, parallel

    @classmethod
    def alone(cls, shards: int = 0) -> Ranks:
        """One process with all shards."""
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
        """Wait until all ranks are there.

        fd: a file that all can write to; or, for ranks on other machines that know host and port, the leader's
        listening socket. seconds: how long to wait for a rank, here and in each call. interface: the network interface;
        empty for any. Raises ValueError, and RuntimeError if a rank does not come.
        """
        if not is_power_of_two(world):
            raise ValueError(f"a trial has 1, 2, 4, 8, ... ranks, not {world}")
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ():
            os.environ.setdefault(name, interface)  # the host name may not resolve, if all ranks are on one machine
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
            else dist.FileStore(descriptor_path(fd), world),  # type: ignore[attr-defined]
            rank=rank,
            world_size=world,
            timeout=late,
        )
        return cls(rank, world)

    def give_up_after(self, seconds: float) -> None:
        """Set the time to wait for other ranks in each later call, by gloo and NCCL."""
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))

    def mesh(self, device: str) -> Any:
        """A one-dimensional mesh of all ranks; also for one process."""
        if not dist.is_initialized():
            backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        return init_device_mesh(torch.device(device).type, (self.world,))

    def with_nccl_settings(self, machine: Mapping[str, Any], device: str) -> dict[str, Any]:
        """The machine description of a state, with the NCCL settings if torch chooses the order of sums."""
        others = {name: value for name, value in machine.items() if name != "nccl"}
        if device == "cpu" or ":" not in self.parallel:
            return others
        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        return others | {"nccl": " ".join([version, *map(os.environ.__getitem__, PINNED)])}

    # Which shards ---------------------------------------------------------------------------------------------------

    def own(self, shards: int) -> range:
        """The shards of this rank. Raises ValueError if they cannot be divided equally."""
        if not is_power_of_two(shards) or shards < self.world:
            raise ValueError(f"shards must be a power of two, one at least for each of {self.world} ranks: {shards}")
        each = shards // self.world
        return range(self.rank * each, (self.rank + 1) * each)

    # Sums -----------------------------------------------------------------------------------------------------------

    def sum(self, parts: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """The sum over all shards, in the order of the tree, on every rank.

        parts: the tensors to add, for each shard of this rank in order; a generator keeps only a few of them in memory.
        The first ones may be overwritten. Raises ValueError if their number is not a power of two.
        """
        tree = TreeSum()
        for part in parts:
            tree.add(list(part))
        return self.across(tree.take())

    def across(self, mine: list[Tensor]) -> list[Tensor]:
        """The sum over all ranks of each one's sum over its own shards, in place."""
        if self.world > 1:
            sums = Exchanges(self.world)
            for bucket in buckets(mine):
                sums.begin(bucket, bucket)
            sums.finish()
        return mine

    # Agreement -------------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Copy the tensors of `source` to all ranks, in place."""
        for bucket in buckets(tensors) if self.world > 1 else ():
            whole = torch.cat([each.reshape(-1) for each in bucket])
            dist.broadcast(byte_view(whole), source)
            spread(whole, bucket)

    def agree(self, number: int) -> int:
        """The leader's number."""
        if self.world == 1:
            return number
        shared = torch.tensor([number])
        dist.broadcast(shared, 0)
        return int(shared)

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is set on any rank."""
        if self.world == 1 or not flags:
            return list(flags)
        shared = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return [bool(each) for each in shared.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in order."""
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
        """Wait until all ranks are here."""
        self.agree(0)
        self.any([False])


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


_here = Ranks.alone()


def here() -> Ranks:
    """The ranks of this process."""
    return _here


def be(ranks: Ranks) -> None:
    """Set the ranks of this process."""
    global _here
    _here = ranks


def shard_bounds(count: int, shards: int) -> list[tuple[int, int]]:
    """The begin and end of each shard of a batch; some are empty for a small batch."""
    return [(count * shard // shards, count * (shard + 1) // shards) for shard in range(shards)]
