"""Settings from the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.settings import SettingsError, settings
from stagetree.limits import LIMITS


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_the_size_of_a_study_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_MAX_BYTES", "2048")
    assert (settings().limits.bytes, settings().limits.trials, settings().limits.depth) == (2048, 100_000, LIMITS.depth)


def test_ticks_and_retries_follow_the_lease_and_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings().tick_seconds, settings().strike_after_seconds) == (5.0, 2.0)
    settings.cache_clear()
    monkeypatch.setenv("STAGETREE_CHECKPOINTS", "s3://bucket/prefix")
    monkeypatch.setenv("STAGETREE_DATABASE_URL", "postgresql://user@host/name")
    assert (settings().tick_seconds, settings().strike_after_seconds) == (5.0, 30.0)
    settings.cache_clear()
    monkeypatch.setenv("STAGETREE_LEASE_SECONDS", "4")
    assert (settings().tick_seconds, settings().strike_after_seconds) == (1.0, 5.0)


def test_an_unknown_policy_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_POLICY", "breadth_first")
    with pytest.raises(SettingsError, match=r"STAGETREE_POLICY=breadth_first.*'fair_share' or 'critical_path'"):
        settings()
