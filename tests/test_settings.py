"""What the environment says, and what it cannot say any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.settings import PREFIX, REMOVED, Settings, SettingsError, settings
from stagetree.limits import LIMITS


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize("name", REMOVED)
def test_a_setting_that_was_removed_is_named_once_with_what_holds_instead(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(PREFIX + name, "3")
    for _ in range(2):
        settings()
    (said,) = caplog.messages
    assert said == f"STAGETREE_{name} is no setting any more and has no effect: {REMOVED[name]}"
    assert name.lower() not in Settings.model_fields


def test_nothing_is_said_of_settings_that_are_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STAGETREE_ROW_DAYS", "3")
    monkeypatch.setenv("STAGETREE_MAX_TRIALS", "9")
    assert (settings().row_days, settings().limits.trials, settings().limits.depth) == (3.0, 9, LIMITS.depth)
    assert caplog.messages == []


def test_a_policy_of_the_benchmarks_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_POLICY", "breadth_first")
    with pytest.raises(SettingsError, match=r"STAGETREE_POLICY=breadth_first.*'fair_share' or 'critical_path'"):
        settings()
