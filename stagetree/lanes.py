"""What those who choose packs, and those who train them, must agree on. Imports no torch."""

from __future__ import annotations

LANES = 8
"""What `packing: true` says: few devices gain much by more, and a lane that nobody has is computed all the same."""

MOST_LANES = 64

BATCH_SIZES = ("bs", "batch_size")
"""Hyper-parameters by which trials read other batches; such trials are not packed together."""
