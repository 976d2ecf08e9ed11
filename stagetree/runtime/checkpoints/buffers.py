"""Reusable memory for checkpoints that is also a file, so that another process can map it.

Allocating memory costs more than copying a state into it. Memory that a GPU copies to is pinned, which costs even more.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

import torch

from stagetree.system.files import anonymous_file

SIZE_STEP = 2**16
"""Sizes are rounded up to this many bytes, since the header of a state varies in length."""

MAX_FREE = 2
"""Free buffers to keep: one is filled while the other is being sent."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """number: its name on the other side."""

    number: int
    fd: int
    area: mmap.mmap
    is_pinned: bool

    def close(self) -> None:
        """The memory is freed once the other side has closed it too."""
        if self.is_pinned:
            torch.cuda.cudart().cudaHostUnregister(_address(self.area))  # type: ignore[no-untyped-call]
        os.close(self.fd)


class Buffers:
    """The buffers of a process. device: the source of the copies, `cpu` or a GPU. free: buffers not in use."""

    def __init__(self, device: str) -> None:
        self._device, self._numbers = device, count()
        self._used: dict[int, Buffer] = {}
        self.free: list[Buffer] = []

    def take(self, size: int) -> Buffer:
        """A buffer of at least `size` bytes, in use until it is given back. Raises OSError if there is no room."""
        fitting = [buffer for buffer in self.free if size <= len(buffer.area) <= 2 * size + SIZE_STEP]
        buffer = min(fitting, key=lambda buffer: len(buffer.area)) if fitting else self._allocate(size)
        if fitting:
            self.free.remove(buffer)
        self._used[buffer.number] = buffer
        return buffer

    def give_back(self, numbers: Iterable[int]) -> None:
        """Mark buffers as free, once no process reads them any more."""
        for number in numbers:
            if (buffer := self._used.pop(number, None)) is not None:
                self.free.append(buffer)
        while len(self.free) > MAX_FREE:
            self.free.pop(0).close()

    def take_back(self, closed: Iterable[tuple[int, bool]]) -> None:
        """Free the buffers that the other side has closed; drop lent ones."""
        for number, is_lent in closed:
            (self.drop if is_lent else self.give_back)([number])

    def drop(self, numbers: Iterable[int]) -> None:
        """Give up buffers that others may still read, so that they are never refilled."""
        for number in numbers:
            if (buffer := self._used.pop(number, None)) is not None:
                buffer.close()

    def forget(self) -> None:
        """Close all buffers, since another model has another size. Readers keep buffers in use."""
        for buffer in (*self.free, *self._used.values()):
            buffer.close()
        self.free.clear()
        self._used.clear()

    def _allocate(self, size: int) -> Buffer:
        size += -size % SIZE_STEP
        fd = anonymous_file(size)
        try:
            area = mmap.mmap(fd, size)
            return Buffer(next(self._numbers), fd, area, self._device != "cpu" and _pin(area))
        except BaseException:
            os.close(fd)
            raise


def _pin(area: mmap.mmap) -> bool:
    """Pin memory for copies by the GPU. Returns whether that worked; otherwise copies go through the driver's
    memory."""
    code = torch.cuda.cudart().cudaHostRegister(_address(area), len(area), 0)  # type: ignore[no-untyped-call]
    return int(code) == 0


def _address(area: mmap.mmap) -> int:
    return torch.frombuffer(area, dtype=torch.uint8).data_ptr()
