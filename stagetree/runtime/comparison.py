"""How a model that was trained in another way is compared with one on record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from stagetree.runtime import inexact_reasons, state_format
from stagetree.runtime.differences import Leaves, causes, first_difference, leaves
from stagetree.runtime.digests import digest
from stagetree.runtime.failures import plain
from stagetree.runtime.held_objects import UNSEEN, differing
from stagetree.runtime.model import Model
from stagetree.trainer.divided_tensors import Parted, map_parted

COMPARED = ("trainer", "generators")
"""Of a state. Where it was made, and what its trainer held besides, change nothing of what is loaded."""

MOST_NAMED = 20
"""So many names are told."""

HOLDINGS = "holdings"
"""In a saved state: what the trainer held besides when it was saved, see `stagetree.runtime.held_objects`."""


def compare(mine: Sequence[int], stored: Sequence[int], ignored: Collection[str] = ()) -> dict[str, Any]:
    """Two states in files: the first leaf that differs, what differs of the machine that made the stored one, and the
    names of what the two trainers held besides and that differs.

    Each state may be divided among the files of several ranks. The descriptors stay the caller's. ignored: leaves that
    may differ, but for tensors.
    """
    own, there = (map_parted(state_format.read(*fds), Parted.whole) for fds in (mine, stored))
    one, other = (leaves({name: saved.get(name) for name in COMPARED}) for saved in (there, own))
    for name in ignored:
        if not any(isinstance(each.get(name), torch.Tensor) for each in (one, other)):
            one.pop(name, None), other.pop(name, None)
    is_held, difference = HOLDINGS in own and HOLDINGS in there, first_difference(one, other)
    stray = differing(there[HOLDINGS], own[HOLDINGS]) if is_held else []
    if difference:
        likely = causes(stray, one)
        stray = [name for name in likely if name not in UNSEEN] or likely
    return {
        "difference": plain(difference),
        "elsewhere": inexact_reasons.others(there.get("machine", {}), own.get("machine", {})),
        "stray": list(map(plain, stray[:MOST_NAMED])),
    }


def leaf_digests(model: Model) -> Mapping[str, str]:
    """A digest of each leaf of a model's state, as it stands. Raises `TrainerFailed`."""
    found: Leaves = leaves({"trainer": model.state()["trainer"]})
    return {name: digest(value) for name, value in found.items()}
