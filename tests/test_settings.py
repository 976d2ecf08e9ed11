"""What the environment says."""

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


def test_limits_are_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_ROW_DAYS", "3")
    monkeypatch.setenv("STAGETREE_MAX_TRIALS", "9")
    assert (settings().row_days, settings().limits.trials, settings().limits.depth) == (3.0, 9, LIMITS.depth)


def test_a_policy_of_the_benchmarks_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_POLICY", "breadth_first")
    with pytest.raises(SettingsError, match=r"STAGETREE_POLICY=breadth_first.*'fair_share' or 'critical_path'"):
        settings()
