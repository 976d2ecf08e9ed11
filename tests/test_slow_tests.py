"""Each slow test is in a part."""

from __future__ import annotations

import pytest
from turns import PARTS, chosen_part, commit_part, part_of


@pytest.fixture(autouse=True)
def _fresh_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAGETREE_TEST_PART", raising=False)
    chosen_part.cache_clear()
    monkeypatch.setattr("turns.AT_NIGHT", False)


def test_parts_are_about_as_large_as_each_other() -> None:
    parts = [part_of(f"tests/e2e/test_faults.py::test_{number}", number % 7) for number in range(40 * PARTS)]
    assert {parts.count(part) > 20 for part in range(PARTS)} == {True}
    assert {part_of("tests/world/test_histories.py::test_results", case) for case in range(PARTS)} == {*range(PARTS)}


def test_a_part_is_chosen_by_name_or_by_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_part() == (None if commit_part() == "all" else int(commit_part()))
    for wanted, part in [("0", 0), (str(PARTS - 1), PARTS - 1), ("all", None)]:
        chosen_part.cache_clear()
        monkeypatch.setenv("STAGETREE_TEST_PART", wanted)
        assert chosen_part() == part


@pytest.mark.parametrize("wanted", [str(PARTS), "-1", "every"])
def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv("STAGETREE_TEST_PART", wanted)
    with pytest.raises(pytest.UsageError, match=f"write a number from 0 to {PARTS - 1}, or all"):
        chosen_part()


def test_at_night_all_of_them_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turns.AT_NIGHT", True)
    assert chosen_part() is None
