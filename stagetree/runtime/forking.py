"""What an interpreter imports from which processes that train are forked."""

from __future__ import annotations

import gc
import importlib

from stagetree.versions import know_modules

MODULES = ("stagetree.runtime.child", "torch._inductor.config", "torch._dynamo", "torch.utils.data")
"""The second and third are what torch imports when it is told to be deterministic, and for the first optimizer."""


def import_before_forking() -> None:
    """What a process that trains imports: here, so that none of the forks has to."""
    gc.disable()  # next to nothing of what is imported is garbage
    for name in MODULES:
        importlib.import_module(name)
    know_modules()
    gc.enable()
    gc.collect()
    gc.freeze()  # what is there by now stays shared with the forks
