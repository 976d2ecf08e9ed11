"""How many trials are trained together, by what is known of the device."""

from __future__ import annotations

from app.domain.events import PackingProfiled
from app.scheduling.packs import best_lanes, times_faster

SECONDS = {"0": 1.0, "2": 0.1, "4": 2.0}


def profile(refusal: str = "") -> PackingProfiled:
    return PackingProfiled(device="d", batch_seconds={} if refusal else SECONDS, peak_bytes={}, refusal=refusal)


def test_a_pack_is_full_whatever_is_known_of_passes_that_are_not() -> None:
    assert best_lanes(4, None) == best_lanes(4, profile()) == 4


def test_what_cannot_be_packed_is_trained_alone() -> None:
    assert best_lanes(8, profile("it is no TorchTrainer")) == 1


def test_lanes_that_nobody_has_cost_what_others_do() -> None:
    """A pass of two lanes would be fast, but it would not give the bits of the plan."""
    assert times_faster(4, profile()) == 2.0
    assert times_faster(2, profile()) == 1.0
