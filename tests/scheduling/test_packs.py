"""How many trials are trained together, by what is known of the device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.domain.events import PackingProfiled
from app.scheduling.packs import best_lanes, times_faster

SECONDS = st.floats(0.001, 10.0)


@st.composite
def profiles(draw: st.DrawFn) -> PackingProfiled:
    widths = [0, 2, 4, 8]
    exact = tuple(sorted({8, *draw(st.sets(st.sampled_from([2, 4])))}))
    return PackingProfiled(
        device="d",
        batch_seconds={str(width): draw(SECONDS) for width in widths},
        peak_bytes={},
        exact=exact,
        refusal="",
    )


@given(profile=profiles())
def test_no_other_number_of_lanes_gets_on_faster(profile: PackingProfiled) -> None:
    best = times_faster(best_lanes(8, profile), profile)
    assert all(times_faster(lanes, profile) <= best for lanes in (2, 4, 8))


def test_of_what_is_not_known_the_pack_is_full() -> None:
    assert best_lanes(8, None) == 8


def test_what_cannot_be_packed_is_trained_alone() -> None:
    refused = PackingProfiled(device="d", batch_seconds={}, peak_bytes={}, exact=(), refusal="it is no TorchTrainer")
    assert best_lanes(8, refused) == 1


def test_a_width_with_other_bits_costs_what_a_full_pass_does() -> None:
    """Two lanes would be fast, but not with the bits of the plan."""
    profile = PackingProfiled(device="d", batch_seconds={"0": 1.0, "2": 0.1, "4": 2.0}, peak_bytes={}, exact=(4,))
    assert best_lanes(4, profile) == 4
    assert times_faster(2, profile) == 1.0
