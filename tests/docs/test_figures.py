"""The papers' figures: their page is what their kept results make, and the bound beside them is one."""

from __future__ import annotations

import json
from heapq import heappop, heappush
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import (
    merge_or_decay,
    merge_or_decay_page,
    page,
    scheduling,
    several_studies,
    simulated,
    single_study,
)

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_made_of_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pictures").mkdir()
    monkeypatch.setattr(page, "DOCS", tmp_path)
    page.main()
    made = list(tmp_path.rglob("*.*"))
    assert len(made) == 3
    for path in made:
        assert path.read_text() == (ROOT / "docs" / path.relative_to(tmp_path)).read_text(), path.name


def test_merge_or_decay_is_made_of_what_was_measured() -> None:
    found = json.loads(merge_or_decay_page.DATA.read_text())
    assert merge_or_decay_page.page(found) == merge_or_decay_page.PAGE.read_text()


@pytest.mark.slow
def test_the_command_of_merge_or_decay_measures_a_smaller_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`merge-or-decay.md` has one command: the same studies, of fewer steps, make a page with all rows."""
    monkeypatch.setattr(merge_or_decay, "LENGTHS", (10, 20))
    for name in ("MODEL", "SMALL"):
        monkeypatch.setattr(merge_or_decay, name, {"layers": 1, "width": 16, "batches_per_step": 1})
    for name in ("DATA", "PAGE"):
        monkeypatch.setattr(merge_or_decay_page, name, tmp_path / name)
    monkeypatch.setattr(
        "sys.argv", ["merge_or_decay", "--seeds", "2", "--tasks", "2", "--dir", str(tmp_path / "store")]
    )
    merge_or_decay.main()
    found = json.loads((tmp_path / "DATA").read_text())
    assert (len(found["values"]), len(found["rungs"])) == (2 * 2 * (1 + 3 + 6), 2 * 3)
    assert all(row["regret"] >= 0 and -1 <= row["order"] <= 1 for row in found["rungs"])
    assert "| 20 |" in (tmp_path / "PAGE").read_text()


def test_the_intervals_are_students() -> None:
    """A difference counts as shown beyond 95 %: of two values beyond 12.71 standard errors, of a hundred beyond 2.2."""
    assert merge_or_decay_page.is_shown([1.0, 1.1]) and not merge_or_decay_page.is_shown([1.0, 1.2])
    assert merge_or_decay_page.quantile(7) == merge_or_decay_page.quantile(6)


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_no_order_of_work_beats_the_bound(seed: int, slots: int) -> None:
    """Trees of steps, each trained as soon as its parent is and a slot is free, in an order that is drawn."""
    draw = Random(seed)
    depth, children = {0: 0}, dict[int, list[int]]()
    for step in range(1, draw.randint(2, 30)):
        parent = draw.randrange(step)
        depth[step] = depth[parent] + 1
        children.setdefault(parent, []).append(step)
    waiting, time = [(draw.random(), 0)], 0
    while waiting:
        now = [heappop(waiting)[1] for _ in range(min(slots, len(waiting)))]
        for step in now:
            for child in children.get(step, ()):
                heappush(waiting, (draw.random(), child))
        time += 1
    assert simulated.shortest_of(depth.values(), slots) <= time


@pytest.mark.slow
def test_spaces_have_the_papers_merge_rates() -> None:
    for name, (spec, *_) in single_study.STUDIES.items():
        assert simulated.merge_rate(spec) == pytest.approx(single_study.PAPER[name][0], abs=0.06)
    two = [several_studies.space("little", number) for number in range(2)]
    assert simulated.merge_rate(*two) == pytest.approx(several_studies.PAPER_MERGE_RATES["little"][2], abs=0.1)


def test_sharing_costs_less_and_the_bound_holds() -> None:
    spec = {"name": "few", **scheduling.SPACE, "tuner": scheduling.TUNERS["grid"]}
    spec["space"] = {name: values[:3] for name, values in spec["space"].items()}
    alone, shared = (simulated.cost({"few": spec}, slots=2, shares=shares) for shares in (False, True))
    assert shared.steps < alone.steps and shared.slot_hours < alone.slot_hours
    assert shared.least_hours <= shared.end_hours and alone.least_hours <= alone.end_hours


def test_what_the_page_says_in_words_is_so_in_its_tables() -> None:
    for row in page.read("stragglers")["rows"]:
        (ended, first), (ended_by_asha, first_by_asha) = row["sha"], row["asha"]
        assert ended_by_asha > ended and first_by_asha < first
    order = page.read("scheduling")
    assert page.worst(order, "grid") <= 5
    assert all(hours >= row["bound"] for row in order["rows"] for hours in row["hours"].values())
    for row in page.read("single_study")["rows"].values():
        assert row["end_to_end"] <= row["at_most"]
    for row in page.read("several_studies")["rows"]:
        assert row["slot_time"] > row["merge_rate"]
