"""How few lanes a pass may have: those at which a lane's numbers are to the bit what they are among all lanes.

A device picks other kernels for other sizes, so that a lane of a pass over 2 may differ in its last bits from one of a
pass over 16. Where it does not, there is no need to compute lanes that nobody has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from torch import Tensor

Gradients = Mapping[str, Tensor]
Compute = Callable[[int, int], Gradients]

LOOKS = 4
"""With so many different weights it is looked at: by chance alone, few numbers may be rounded alike."""


class Widths:
    """What was seen in this process: by what was computed, the widths at which a lane has the same bits."""

    def __init__(self) -> None:
        self._usable: dict[Hashable, list[int]] = {}

    def fitting(self, what: Hashable, lanes: int, full: int, compute: Compute) -> int:
        """The smallest usable width for so many lanes. full: that of the pack, which is always one.

        what: all that decides which kernels are used. compute: the gradients of the lanes that there are, as many as
        there is room for, by a pass of a width, with weights that are a little off for each look but the first; asked
        once for each `what`.
        """
        if lanes >= full:
            return full
        if what not in self._usable:
            if (found := usable(full, compute)) is None:
                return full
            self._usable[what] = found
        return next((width for width in self._usable[what] if width >= lanes), full)


def usable(full: int, compute: Compute) -> list[int] | None:
    """The narrower widths that are as good as the full one; None where the numbers are such that it cannot be told."""
    widths = [2**power for power in range(1, full.bit_length()) if 2**power < full]
    for look in range(LOOKS):
        wanted = compute(full, look)
        if not all(bool(each.isfinite().all()) for each in wanted.values()):
            return None
        widths = [width for width in widths if _are_same(compute(width, look), wanted)]
    return widths


def _are_same(narrow: Gradients, wide: Gradients) -> bool:
    return all(each.equal(wide[name][: len(each)]) for name, each in narrow.items())


def signature(batch: object) -> Hashable:
    """The shapes and kinds of all tensors of a batch."""
    if isinstance(batch, Tensor):
        return tuple(batch.shape), batch.dtype
    if isinstance(batch, Mapping):
        return tuple((key, signature(each)) for key, each in batch.items())
    if isinstance(batch, list | tuple):
        return tuple(signature(each) for each in batch)
    return None
