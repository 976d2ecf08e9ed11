"""What rows refuse."""

from __future__ import annotations


class SlotTaken(Exception):
    """The slot is unknown, has a chain already, or is another worker's."""


class SlotLost(Exception):
    """The slot is no longer this worker's."""


class ChainNotClaimable(Exception):
    """The chain is not there to be claimed: another worker has it, or it is over."""


class Fenced(Exception):
    """The chain is no longer this worker's: whatever it still has to say must not be written."""
