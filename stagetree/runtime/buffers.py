"""Memory for checkpoints that is a file as well, so that another process can have it: filled again and again.

Memory that is new costs more than copying a state into it does. What a GPU copies to is pinned, which costs still more,
once.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

import torch

from stagetree.runtime.wire import anonymous_file

GRAIN = 2**16
"""Sizes are rounded up to this: the header of a state is not always equally long."""

MOST_FREE = 2
"""So many that nobody uses are kept: one is filled while the other is on its way."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """number: by which the other side names it."""

    number: int
    fd: int
    area: mmap.mmap
    is_pinned: bool

    def close(self) -> None:
        """Its memory is free once the other side has let go of it as well."""
        if self.is_pinned:
            torch.cuda.cudart().cudaHostUnregister(_address(self.area))  # type: ignore[no-untyped-call]
        os.close(self.fd)


class Buffers:
    """Those of one process. device: what is copied from, `cpu` or a GPU. free: those that nobody uses."""

    def __init__(self, device: str) -> None:
        self._device, self._numbers = device, count()
        self._used: dict[int, Buffer] = {}
        self.free: list[Buffer] = []

    def take(self, size: int) -> Buffer:
        """One of at least so many bytes, for whoever reads it until it is given back. Raises OSError: no room."""
        fitting = [buffer for buffer in self.free if size <= len(buffer.area) <= 2 * size + GRAIN]
        buffer = min(fitting, key=lambda buffer: len(buffer.area)) if fitting else self._made(size)
        if fitting:
            self.free.remove(buffer)
        self._used[buffer.number] = buffer
        return buffer

    def give_back(self, numbers: Iterable[int]) -> None:
        """Nobody reads these any more, or will: they may be filled again."""
        for number in numbers:
            if (buffer := self._used.pop(number, None)) is not None:
                self.free.append(buffer)
        while len(self.free) > MOST_FREE:
            self.free.pop(0).close()

    def take_back(self, closed: Iterable[tuple[int, bool]]) -> None:
        """These were closed, and are filled again, except lent ones, which others may read forever."""
        for number, is_lent in closed:
            (self.drop if is_lent else self.give_back)([number])

    def drop(self, numbers: Iterable[int]) -> None:
        """Others may read these for as long as they like: they are never filled again."""
        for number in numbers:
            if (buffer := self._used.pop(number, None)) is not None:
                buffer.close()

    def forget(self) -> None:
        """Another model has another size. Those in use stay with whoever reads them."""
        for buffer in (*self.free, *self._used.values()):
            buffer.close()
        self.free.clear()
        self._used.clear()

    def _made(self, size: int) -> Buffer:
        size += -size % GRAIN
        fd = anonymous_file(size)
        try:
            area = mmap.mmap(fd, size)
            return Buffer(next(self._numbers), fd, area, self._device != "cpu" and _pin(area))
        except BaseException:
            os.close(fd)
            raise


def _pin(area: mmap.mmap) -> bool:
    """Whether a GPU can copy there by itself; else it goes through memory of the driver, which takes longer."""
    code = torch.cuda.cudart().cudaHostRegister(_address(area), len(area), 0)  # type: ignore[no-untyped-call]
    return int(code) == 0


def _address(area: mmap.mmap) -> int:
    return torch.frombuffer(area, dtype=torch.uint8).data_ptr()
