"""Compares a model that was trained again with the stored state of the same step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from stagetree.runtime import inexact_reasons
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.commands import Compared
from stagetree.runtime.exactness.differences import Leaves, causes, first_difference, leaves
from stagetree.runtime.exactness.digests import digest
from stagetree.runtime.exactness.held_values import UNREADABLE, differing_names
from stagetree.runtime.failures import plain
from stagetree.runtime.model import Model
from stagetree.trainer.divided_tensors import Parted, map_parted

COMPARED = ("trainer", "generators")
"""The parts of a state that are compared. The rest, such as the machine, does not affect training."""

MAX_NAMES = 20
"""The most names to report."""

HELD_VALUES = "holdings"
"""The key in a saved state of the digests of held values, see `stagetree.runtime.exactness.held_values`."""


def compare(mine: Sequence[int], stored: Sequence[int], ignored: Collection[str] = ()) -> Compared:
    """Compare two states in files.

    Each state may be divided among the files of several ranks. The descriptors stay the caller's. ignored: leaves that
    may differ if they are not tensors.
    """
    own, there = (map_parted(state_format.read(*fds), Parted.whole) for fds in (mine, stored))
    one, other = (leaves({name: saved.get(name) for name in COMPARED}) for saved in (there, own))
    for name in ignored:
        if not any(isinstance(each.get(name), torch.Tensor) for each in (one, other)):
            one.pop(name, None), other.pop(name, None)
    is_held, difference = HELD_VALUES in own and HELD_VALUES in there, first_difference(one, other)
    stray = differing_names(there[HELD_VALUES], own[HELD_VALUES]) if is_held else []
    if difference:
        likely = causes(stray, one)
        stray = [name for name in likely if name not in UNREADABLE] or likely
    elsewhere = inexact_reasons.others(there.get("machine", {}), own.get("machine", {}))
    return Compared(plain(difference), elsewhere, list(map(plain, stray[:MAX_NAMES])))


def leaf_digests(model: Model) -> Mapping[str, str]:
    """A digest of each leaf of the model's current state. Raises `TrainerFailed`."""
    found: Leaves = leaves({"trainer": model.state()["trainer"]})
    return {name: digest(value) for name, value in found.items()}
