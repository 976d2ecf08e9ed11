"""Measurements of packs and gangs for one plan serve other plans of the same trainer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.events import PackingProfiled, PlanOpened, RanksProfiled
from app.events import last_profile, packs_on_record, profiles_on_record
from app.events.log import EventLog
from app.events.memory import MemoryLog

OPENED = PlanOpened(trainer="t", trainer_version="1", trainer_args={"width": 4}, seed=0, packing=None)
BATCH = {"bs": 8}


def profile(device: str, seconds: float = 1.0, **fields: object) -> PackingProfiled:
    known = PackingProfiled(device=device, batch_seconds={"0": seconds, "2": 1.0}, peak_bytes={}, batch=BATCH)
    return replace(known, **fields)  # type: ignore[arg-type]


@pytest.fixture
def log() -> EventLog:
    log = MemoryLog()
    log.append("plan", [OPENED, profile("cpu"), profile("gpu", exact=True)], expected=0, at=0.0)
    return log


def test_profiles_of_another_seed_or_width_are_used(log: EventLog) -> None:
    found = packs_on_record(log, replace(OPENED, seed=1, packing=8, determinism="off"), BATCH)
    assert found == {"cpu": profile("cpu"), "gpu": profile("gpu")}, "exact belongs to the other plan's width"


def test_the_last_profile_counts(log: EventLog) -> None:
    log.append("other", [replace(OPENED, seed=2), profile("cpu", 5.0)], expected=0, at=0.0)
    assert packs_on_record(log, OPENED, BATCH)["cpu"] == profile("cpu", 5.0)
    assert last_profile(log, OPENED, BATCH, PackingProfiled) == profile("cpu", 5.0)


@pytest.mark.parametrize("other", [{"trainer": "u"}, {"trainer_version": "2"}, {"trainer_args": {"width": 8}}])
def test_profiles_of_another_model_are_not_used(log: EventLog, other: dict[str, object]) -> None:
    assert last_profile(log, replace(OPENED, **other), BATCH, PackingProfiled) is None  # type: ignore[arg-type]


def test_profiles_of_other_batch_sizes_are_not_used(log: EventLog) -> None:
    assert last_profile(log, OPENED, {"bs": 16}, PackingProfiled) is None
    assert last_profile(log, OPENED, {}, PackingProfiled) is None
    log.append("old", [replace(OPENED, seed=3), profile("cpu", batch=None)], expected=0, at=0.0)
    assert last_profile(log, OPENED, {}, PackingProfiled) is None, "that batch size is unknown"


def test_gang_profiles_are_separate_by_kind_of_device(log: EventLog) -> None:
    seen = [RanksProfiled(kind=kind, step_seconds={"1": 1.0, "2": 0.6}, batch=BATCH) for kind in ("A100", "H100")]
    log.append("gangs", [OPENED, *seen], expected=0, at=0.0)
    assert profiles_on_record(log, OPENED, BATCH, RanksProfiled) == {"A100": seen[0], "H100": seen[1]}
    assert last_profile(log, OPENED, BATCH, RanksProfiled) == seen[1]
    assert last_profile(log, OPENED, BATCH, RanksProfiled, ["A100"]) == seen[0], "the study's kind of device"
    assert last_profile(log, OPENED, BATCH, RanksProfiled, ["L4"]) is None
    assert last_profile(log, OPENED, {"bs": 16}, RanksProfiled) is None
