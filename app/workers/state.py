"""A model's whole state on its way between processes: an image in a file without a name."""

from __future__ import annotations

import mmap
import os

from stagetree.runtime.anonymous_file import anonymous_file


class State:
    """Owns the descriptor `fd` of a file that holds `size` bytes. Loading it into another process copies nothing."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self._area: mmap.mmap | None = None

    @classmethod
    def of(cls, image: bytes | memoryview) -> State:
        """A copy of an image that was read from somewhere. Raises OSError if there is no room."""
        state = cls.empty()
        state.append(image)
        return state

    @classmethod
    def empty(cls) -> State:
        """An image of which nothing is there yet. Raises OSError if there is no room."""
        return cls(anonymous_file(0), 0)

    def append(self, part: bytes | memoryview) -> None:
        """The next part of an image that arrives in parts. Raises OSError if there is no room."""
        rest = memoryview(part)
        while rest:
            written = os.pwrite(self.fd, rest, self.size)
            self.size, rest = self.size + written, rest[written:]

    def copy(self) -> State:
        """The same image under another descriptor, to be closed apart from this one."""
        return State(os.dup(self.fd), self.size)

    def view(self) -> memoryview:
        """The image, where it is; usable until `close`."""
        if self._area is None:
            self._area = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
        return memoryview(self._area)

    def close(self) -> None:
        """The memory is free when nobody has it open or uses a view of it any more. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd, self._area = -1, None
