"""The numbers of the page equal the log: states, measurements, times, and the labels of axes.

The test reads the log event by event and counts without any function of `app`.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
from addresses import turn_to
from playwright.sync_api import Locator, Page, expect
from stacks import Json, Service
from toys import grid, trials

from tests.page.test_page_views import ASHA

pytestmark = pytest.mark.slow(together=True)

SVG = "{http://www.w3.org/2000/svg}"
Point = tuple[float, float]
HALF_A_PIXEL = 0.5
FEW_FAIL = ({"mood": "raise"}, 2), ({}, 6), ({"lr": 0.2}, 8)


@dataclass(frozen=True)
class Log:
    """The events of a study."""

    study: str
    events: list[Json]

    def events_of(self, kind: str) -> list[Json]:
        return [each for each in self.events if each["type"] == kind]

    @property
    def submission_time(self) -> float:
        return float(self.events_of("StudySubmitted")[0]["data"]["at"])

    @property
    def end_time(self) -> float:
        return float(next(each["at"] for each in self.events if each["type"] in ("StudyCompleted", "StudyFailed")))

    @property
    def chains(self) -> dict[str, Json]:
        """The chains that train, without verifications."""
        return {
            each["data"]["chain"]: each for each in self.events_of("ChainAssigned") if not each["data"].get("proof")
        }

    def stages(self) -> Iterator[tuple[Json, float]]:
        """Each trained stage, and the time at which it ended."""
        for each in self.events_of("StageCompleted"):
            if each["data"]["chain"] in self.chains:
                yield self.chains[each["data"]["chain"]]["data"]["stages"][each["data"]["index"]], each["at"]

    def states(self) -> dict[int, str]:
        """The final state of each trial: pruned if its tuner might have requested more steps."""
        asked = {each["data"]["trial"]: each["data"]["steps"] for each in self.events_of("TrialAdded")}
        asked |= {each["data"]["trial"]: each["data"]["steps"] for each in self.events_of("TrialExtended")}
        most = self.events_of("StudySubmitted")[0]["data"]["spec"]["tuner"].get("max_steps", 0)
        states = {trial: "pruned" if steps < most else "completed" for trial, steps in asked.items()}
        failed = {stage["node"] for stage in self.failed_stages()}
        for each in self.events_of("TrialAdded"):
            if failed.intersection(each["data"]["path"]):
                states[each["data"]["trial"]] = "failed"
        return states

    def failed_stages(self) -> Iterator[Json]:
        for each in self.events_of("StageFailed"):
            if each["data"]["chain"] in self.chains:
                yield self.chains[each["data"]["chain"]]["data"]["stages"][each["data"]["index"]]

    def values(self, metric: str = "score") -> list[Point]:
        """(step, value) of each measurement."""
        return [(each["data"]["step"], each["data"]["metrics"][metric]) for each in self.events_of("Evaluated")]

    def best(self) -> list[Point]:
        """(seconds, value) of each result at a step that the tuner requested, if it is better than all earlier ones."""
        found: list[Point] = []
        paths: dict[int, dict[str, int]] = {}
        asked, values = set[tuple[str, int]](), dict[tuple[str, int], float]()
        for each in self.events:
            data, place = each["data"], None
            if each["type"] == "Evaluated":
                place = data["node"], data["step"]
                values[place] = data["metrics"]["score"]
            elif each["type"] in ("TrialAdded", "TrialExtended"):
                path = paths.setdefault(data["trial"], {})
                path |= data["path"] or {}
                place = [node for node, start in path.items() if start < data["steps"]][-1], data["steps"]
                asked.add(place)
            if place in asked and place in values and (not found or values[place] > found[-1][1]):
                found.append((each["at"] - self.submission_time, values[place]))
        return found


@pytest.fixture(scope="module")
def pruning(stack: Service) -> Log:
    return read(stack, grid("page-numbers", tuner=ASHA, seconds=0.05))


@pytest.fixture(scope="module")
def failing(stack: Service) -> Log:
    return read(stack, trials("page-numbers-failed", *FEW_FAIL, seconds=0.05))


def read(stack: Service, spec: Json) -> Log:
    study = str(stack.run(spec)["study"])
    return Log(study, [each.to_json() for each in stack.client.events(study)])


@pytest.mark.parametrize("kind", ["pruning", "failing"])
def test_states_of_trials(
    open_page: Callable[..., Page], stack: Service, request: pytest.FixtureRequest, kind: str
) -> None:
    log: Log = request.getfixturevalue(kind)
    page, states = open_page(f"{stack.url}/#/studies/{log.study}/trials"), log.states()
    table = page.get_by_role("table", name="Trials")
    for trial, state in states.items():
        row = table.get_by_role("row").filter(has=page.get_by_role("link", name=str(trial), exact=True))
        expect(row.get_by_role("cell").filter(has_text=re.compile(f"^. {state}$"))).to_have_count(1)
    counts = Counter(states.values())
    for state in counts:
        turn_to(page, f"#/studies/{log.study}/trials?q=state:{state}")
        title = f"{counts[state]} of {len(states)} trials" if counts[state] < len(states) else f"{len(states)} trials"
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    failed = page.locator("header.study .bad")
    expect(failed).to_have_count(1 if counts["failed"] else 0)
    if counts["failed"]:
        expect(failed).to_have_text(f"▲ {counts['failed']} failed")


def test_times_and_durations(open_page: Callable[..., Page], stack: Service, pruning: Log) -> None:
    page = open_page(f"{stack.url}/#/studies/{pruning.study}")
    expect(page.locator("header.study .facts")).to_contain_text(clock(pruning.end_time - pruning.submission_time))
    spent = sum(each["data"]["seconds"] for each in pruning.events_of("StageCompleted")) + sum(
        verification_seconds(pruning)
    )
    cost = page.get_by_role("region", name="Cost, in steps")
    told = re.search(r"([\d:]+) of slot time", cost.inner_text())
    assert told and abs(seconds(told[1]) - spent) <= 0.51


def test_the_time_lines_of_slots_and_their_axis(open_page: Callable[..., Page], stack: Service, pruning: Log) -> None:
    page = open_page(f"{stack.url}/#/studies/{pruning.study}/timeline?idle=shown")
    panel = page.get_by_role("region", name="Slots over time")
    head, *rows = saved_rows(page, panel)
    told = sorted(
        (int(row["from step"]), int(row["to step"]), float(row["ended at"])) for row in columns_of(head, rows)
    )
    training = [row for row in columns_of(head, rows) if not row["verification"] and row["own"] == "true"]
    wanted = sorted((stage["start"], stage["end"], at) for stage, at in pruning.stages())
    assert [row for row in told if row in wanted] == wanted
    assert len(training) == len(wanted)
    picture = saved_picture(page, panel)
    axis = axis_of(
        (x, seconds(text)) for x, y, text in texts(picture) if re.fullmatch(r"\d+:\d\d(\.\d)?", text) and y < 12
    )
    drawn = {round(float(each.get("x", 0)), 1) for each in picture.iter(f"{SVG}rect")}
    for row in training:
        assert min(abs(axis(float(row["begun at"]) - pruning.submission_time) - x) for x in drawn) < 2 * HALF_A_PIXEL


def test_measurements_and_the_axes_that_show_them(open_page: Callable[..., Page], stack: Service, pruning: Log) -> None:
    page = open_page(f"{stack.url}/#/studies/{pruning.study}/curves?value=all&y=linear")
    panel = page.get_by_role("region", name="Learning curves")
    head, *rows = saved_rows(page, panel)
    told = {(float(row["step"]), float(row["score"])) for row in columns_of(head, rows)}
    assert told == set(pruning.values())
    picture = saved_picture(page, panel)
    across = axis_of((x, amount(text)) for x, y, text in texts(picture) if is_below(y, picture) and is_amount(text))
    upright = axis_of((y, amount(text)) for x, y, text in texts(picture) if x < 60 and is_amount(text))
    for step, value in told:
        place = across(step), upright(value)
        assert any(math.dist(place, each) < 2 * HALF_A_PIXEL for each in points(picture)), (step, value)


def test_the_best_measurement_over_time(open_page: Callable[..., Page], stack: Service, pruning: Log) -> None:
    page = open_page(f"{stack.url}/#/studies/{pruning.study}")
    panel = page.get_by_role("region", name="Best measurement so far")
    head, *rows = saved_rows(page, panel)
    told = [(float(row["time since submission (h:min:s)"]), float(row["score"])) for row in columns_of(head, rows)]
    assert told[:-1] == [(pytest.approx(at, abs=1e-3), value) for at, value in pruning.best()]
    assert told[-1] == (pytest.approx(pruning.end_time - pruning.submission_time, abs=1e-3), told[-2][1])


# ------------------------------------------------------------------------------------------------------- shown numbers


def clock(time: float) -> str:
    return f"{round(time) // 60}:{round(time) % 60:02}"


def seconds(text: str) -> float:
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total


def verification_seconds(log: Log) -> Iterator[float]:
    """Seconds of verifications, which are part of the slot time."""
    for each in log.events_of("ChainEnded"):
        if each["data"]["chain"] not in log.chains:
            yield float(each["data"].get("seconds") or 0)


def saved_text(page: Page, panel: Locator, kind: str) -> str:
    """A file of the panel's menu, as text."""
    panel.locator("summary").filter(has_text="Save").click()
    with page.expect_download() as file:
        panel.get_by_role("button", name=kind).click()
    return file.value.path().read_text(encoding="utf-8")


def saved_rows(page: Page, panel: Locator) -> list[list[str]]:
    return list(csv.reader(io.StringIO(saved_text(page, panel, "CSV"))))


def columns_of(head: list[str], rows: list[list[str]]) -> list[dict[str, str]]:
    return [dict(zip(head, row, strict=True)) for row in rows]


def saved_picture(page: Page, panel: Locator) -> ElementTree.Element:
    return ElementTree.fromstring(saved_text(page, panel, "SVG"))


def texts(picture: ElementTree.Element) -> Iterator[tuple[float, float, str]]:
    for each in picture.iter(f"{SVG}text"):
        yield float(each.get("x", 0)), float(each.get("y", 0)), each.text or ""


def points(picture: ElementTree.Element) -> list[Point]:
    """The corners of all lines."""
    found = [re.findall(r"[ML]([\d.-]+) ([\d.-]+)", each.get("d", "")) for each in picture.iter(f"{SVG}path")]
    return [(float(x), float(y)) for line in found for x, y in line]


def is_below(y: float, picture: ElementTree.Element) -> bool:
    """Whether the text is among the ticks of the steps."""
    return abs(y - (float(picture.get("height", 0)) - 27)) < 2


def is_amount(text: str) -> bool:
    return re.fullmatch(r"[−\d.,e]+", text) is not None


def amount(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def axis_of(ticks: Iterator[Point]) -> Callable[[float], float]:
    """The place of a value, by the first and the last tick; the others must be on the same axis."""
    marked = sorted({value: place for place, value in ticks}.items())
    (low, first), (high, last) = marked[0], marked[-1]
    assert high > low

    def place(value: float) -> float:
        return first + (value - low) / (high - low) * (last - first)

    assert all(abs(place(value) - at) < 2 * HALF_A_PIXEL for value, at in marked)
    return place
