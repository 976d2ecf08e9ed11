"""Why a chain ends where nothing has failed."""

from __future__ import annotations


class Lost(Exception):
    """The chain is over, or another worker's."""


class Stopped(Exception):
    """The chain is not wanted any more before its model is where it begins."""


class PackBroken(Exception):
    """What trained the chain together with others failed, and none of them can be told to be the reason; or there is no
    memory for it beside them."""
