"""Every element of each view is pressed, and its effect tested. An element that is in no table here fails the test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from addresses import expect_report
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from pressing import (
    LISTEN,
    Deed,
    Found,
    Thing,
    alike,
    all_things,
    asks,
    drag,
    fill,
    found_again,
    hover,
    keys,
    leads,
    look_at,
    redraws,
    saves,
    shows,
    turn_wheel,
)
from stacks import Json, Service
from toys import grid, trials

from tests.page.test_page_views import ASHA
from tests.page.test_page_views import VIEWS as HEADINGS

pytestmark = pytest.mark.slow(together=True)

FIELDS = {
    "metrics": [{"name": "score", "mode": "max"}, {"name": "size", "mode": "min"}],
    "constraints": ["trained <= 1e9"],
}
HYPERBAND = {"kind": "hyperband", "max_steps": 4, "reduction_factor": 2, "sampling_seed": 1, "distinct": False}
WAITING = {"kind": "asha", "num_trials": 20, "min_steps": 4000, "max_steps": 4000}
BARS = "the more trials share a bar, the higher it is. Click a node to see its subtree."
ZOOM_KEYS = "Plus and minus zoom, arrows move, # shows all."


@pytest.fixture(scope="module")
def studies(stack: Service) -> Iterator[Json]:
    """A study of each kind that has controls of its own, by name."""
    names = {
        "done": str(stack.run(grid("buttons-done", tuner=ASHA))["study"]),
        "failed": str(stack.run(trials("buttons-failed", ({"mood": "raise"}, 2), ({"mood": "chatty"}, 3)))["study"]),
        "brackets": str(stack.run(grid("buttons-brackets", tuner=HYPERBAND))["study"]),
        "asked": external(stack, "buttons-asked"),
        "paused": stack.submit(
            grid("buttons-paused", seconds=0.05, space={"lr": {"loguniform": [0.1, 1]}}, tuner=WAITING)
        ),
    }
    spec = {key: each for key, each in grid("buttons-several", **FIELDS).items() if key not in ("metric", "mode")}
    names["several"] = str(stack.run(spec)["study"])
    stack.client.add_note(names["done"], "about all of it")
    stack.client.add_note(names["done"], "about one", trial=1)
    stack.client.label(names["done"], add=["paper"])
    stack.client.pause(names["paused"])
    stack.client.suggest(names["paused"], [{"lr": 0.25}])
    yield names
    for name in ("asked", "paused"):
        stack.client.cancel(names[name])


def external(stack: Service, name: str) -> str:
    spec = grid(name, tuner={"kind": "external"})
    return stack.submit({key: each for key, each in spec.items() if key != "space"})


@pytest.fixture
def page(browser: Browser, errors: list[str], stack: Service) -> Iterator[Page]:
    """A page that marks all listeners, may use the clipboard, and fails on errors."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=stack.url)
    context.add_init_script(LISTEN)
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(10_000)
    page.goto(stack.url)
    yield page
    context.close()
    assert errors == []


def views_of(kind: str, *views: str) -> list[str]:
    return [f"#/studies/{{{kind}}}{view}" for view in views]


SHOWN = [
    *views_of(
        "done", *(f"/{view}" for view in HEADINGS), "/sampler", "/tree?trials=0,1", "/tree/rungs?trials=0", "?at=20"
    ),
    *views_of("done", "/importance?brush=shape.lr:0.000-1.000", "/events?from=5"),
    *views_of("failed", "", "/trials", "/trials/0"),
    *views_of("several", "", "/compare"),
    *views_of("brackets", "/tree/rungs"),
    *views_of("asked", ""),
    *views_of("paused", "", "/sampler", "/trials/0"),
    *("#/", "#/slots", "#/compare?studies={done},{several}", "#/?studies={done},{several}"),
    *("#/studies/none", "#/submit"),
]
"""Addresses of all views."""


# --------------------------------------------------------------------------------------------------- what each one does

LED_TO = {
    r"#/(\?.*)?": "Studies",
    "#/slots": "Slots and workers",
    "#/submit": "New study",
    r"#/compare\?.*": "2 studies",
    r"#/studies/STUDY/sampler": "Sampler",
    **{
        rf"#/studies/STUDY{'/' + view.partition('?')[0] if view else ''}": heading for view, heading in HEADINGS.items()
    },
    "#/studies/STUDY/trials/#": "Trial",
}
"""The heading of each view that a link leads to."""


def follows(ids: list[str]) -> Deed:
    """A link leads to its address, and to a view with its own heading and no error."""

    def do(page: Page, found: Found) -> None:
        found.locator.click()
        page.wait_for_function("(wanted) => location.hash === wanted", arg=found.href)
        where = alike(found.href, ids)
        path = where if where.startswith(("#/compare", "#/?")) else where.partition("?")[0]
        heading = next((text for pattern, text in LED_TO.items() if re.fullmatch(pattern, path)), None)
        assert heading, f"LED_TO has no heading for {where}"
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)

    return do


def copies(page: Page, found: Found) -> None:
    """The copied Python that loads the weights runs."""
    found.locator.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    code = page.evaluate("navigator.clipboard.readText()")
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", f"{code}print(file)"], cwd=folder, check=True)
        assert len(list(Path(folder, "weights").glob("*.safetensors"))) == 1


def darkens(page: Page, found: Found) -> None:
    found.locator.select_option("dark")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    found.locator.select_option("auto")


def skips(page: Page, found: Found) -> None:
    found.locator.focus()
    found.locator.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def answers(page: Page, found: Found) -> None:
    """A page of the server."""
    assert page.request.get(found.locator.evaluate("(each) => each.href")).status == 200


def type_text(text: str) -> Deed:
    def do(page: Page, found: Found) -> None:
        found.locator.fill(text)
        expect(found.locator).to_have_value(text)

    return do


def sorts(name: str) -> Deed:
    return shows("[aria-sort=ascending]", name)


def takes_the_focus(page: Page, found: Found) -> None:
    """Then keys scroll it."""
    found.locator.focus()
    expect(found.locator).to_be_focused()


def picks_columns(page: Page, found: Found) -> None:
    found.locator.click()
    page.get_by_role("checkbox", name="rank", exact=True).check()
    expect(page).to_have_url(re.compile("columns=.*rank"))
    expect(page.get_by_role("columnheader", name="rank")).to_be_visible()
    page.get_by_role("button", name="reset").click()
    expect(page.get_by_role("columnheader", name="rank")).to_have_count(0)


def opens_below(page: Page, found: Found) -> None:
    """A bar of the tree, and the way back."""
    leads("node=", by=drag((0.05, 0.2)))(page, found)
    page.get_by_role("button", name="the whole tree").click()
    expect(page).to_have_url(re.compile("tree/stages$"))


def zooms_time(page: Page, found: Found) -> None:
    redraws()(page, found)
    for name in ("earlier", "later", "zoom out", "all"):
        redraws()(page, Found(page.get_by_role("button", name=name, exact=True), ""))
    expect(page.get_by_role("button", name="earlier")).to_be_disabled()


def zooms_and_opens_events(page: Page, found: Found) -> None:
    redraws(by=keys("+"))(page, found)
    redraws(by=keys("0"))(page, found)
    for place in range(10, 90):
        place_of_it = (place / 100, 0.35 + 0.4 * (place % 2))
        hover(*place_of_it)(page, found)
        if page.locator(".tip").count():
            break
    leads("events[?]event=", by=drag(place_of_it))(page, found)


def opens_an_event(page: Page, found: Found) -> None:
    found.locator.click()
    expect(page.locator("details[open]").get_by_role("link", name="link to this event")).to_be_visible()


def steps_on(page: Page, found: Found) -> None:
    redraws()(page, Found(page.get_by_role("button", name="Previous moment"), ""))
    redraws()(page, found)


def opens_a_dot(page: Page, found: Found) -> None:
    """The dot of a trial that is not on the front; trials on it have rings."""
    place = [float(str(found.locator.get_attribute(f"data-{axis}"))) for axis in "xy"]
    found.locator.hover(position={"x": place[0], "y": place[1]})
    expect(page.locator(".tip")).to_contain_text("dominated by another trial")
    found.locator.click(position={"x": place[0], "y": place[1]})
    expect(page).to_have_url(re.compile("trials/[0-9]+$"))


def submits(page: Page, found: Found) -> None:
    page.get_by_label("Study file").fill(json.dumps(grid("buttons-submitted", tuner={"kind": "grid", "max_steps": 1})))
    leads("studies/buttons-submitted")(page, found)
    expect(page.locator("header.study")).to_contain_text("completed")


def edit_text(text: str) -> Deed:
    def do(page: Page, found: Found) -> None:
        found.locator.fill(text)
        found.locator.press("Tab")

    return do


ASKED = {
    "Add a trial": "Add a trial",
    "Audit": "Audit the study",
    "Cancel": "Cancel the study",
    "Delete": "Delete the study",
    "Note": "A note about",
    "Pause": "Pause the study",
    "Tags": "Tags and attributes",
}
"""The title of the dialog of each action in the menu."""


def asks_each(page: Page, found: Found) -> None:
    """Each action of the menu, the last of which is red."""
    menu = found.locator.locator("..")
    found.locator.click()
    names = menu.get_by_role("button").all_inner_texts()
    assert names[-1] in ("Cancel", "Delete")
    for name in names:
        if not menu.get_by_role("list").is_visible():
            found.locator.click()
        asks(ASKED[name])(page, Found(menu.get_by_role("button", name=name, exact=True), ""))


def opens_a_menu(page: Page, found: Found) -> None:
    found.locator.click()
    expect(found.locator.locator("..").get_by_role("link").first).to_be_visible()


def exports(page: Page, found: Found) -> None:
    menu = found.locator.locator("..")
    for role, name, deed in (
        ("link", "Report", REPORT),
        ("link", "Report for others", REPORT),
        ("button", "Trials, CSV", saves(".csv", b"trial,")),
    ):
        found.locator.click()
        deed(page, Found(menu.get_by_role(role, name=name, exact=True), ""))  # type: ignore[arg-type]


def saves_a_chart(page: Page, found: Found) -> None:
    """As pictures of two formats, and as data."""
    for name, holds in (("SVG", b"<svg "), ("PNG", b"PNG"), ("CSV", b",")):
        found.locator.click()
        menu = found.locator.locator("..")
        saves(f".{name.lower()}", holds)(page, Found(menu.get_by_role("button", name=name), ""))
        expect(menu.get_by_role("button", name=name)).to_be_hidden()


def opens_a_trial(page: Page, found: Found) -> None:
    """The last dot that was drawn."""
    place = {axis: float(str(found.locator.get_attribute(f"data-{axis}"))) for axis in "xy"}
    found.locator.hover(position=place)  # type: ignore[arg-type]
    expect(page.locator(".tip")).to_contain_text(re.compile("trial [0-9]+ score"))
    found.locator.click(position=place)  # type: ignore[arg-type]
    expect(page).to_have_url(re.compile("trials/[0-9]+$"))


ZOOMS = redraws(by=drag((0.2, 0.5), (0.7, 0.6)))
WEIGHTS, REPORT = saves(".safetensors", b"{"), saves(".html", b'id="answers"')
ALIKE = {
    ".* [|] group [|] .*": takes_the_focus,
    ".* [|] div [|] .+": ZOOMS,
    ".* [|] summary [|] Save ▾": saves_a_chart,
    "Slices [|] img [|] .*": opens_a_trial,
    "Rung tree [|] img [|] .*": leads("trials=[0-9]", by=keys("ArrowRight", "Enter")),
    "Best trial.* [|] summary [|] .*": shows(".verification[open]", "Exactness"),
    "Best trial.* [|] a [|] Weights": WEIGHTS,
    "Best trial.* [|] button [|] Copy Python code": copies,
}
"""The effect of all elements of one kind, by a pattern of their names."""
EFFECTS: dict[str, Deed] = {
    " | a | Skip to content": skips,
    "Main | select | Colours": darkens,
    "Main | a | API": answers,
    "Head | button | Complete": asks("Complete the study"),
    "Head | button | Reopen": asks("Reopen with more"),
    "Head | button | Resume": asks("Resume the study"),
    "Head | summary | Actions ▾": asks_each,
    "Head | summary | Export ▾": exports,
    "Views of the study | summary | More ▾": opens_a_menu,
    "Best measurement so far | button | time": leads(""),
    "Best measurement so far | button | slot time": redraws("by=slots"),
    "Pareto front | select | x axis": redraws("frontX="),
    "Pareto front | select | y axis": redraws("frontY="),
    "Pareto front | img | size against score of # trials": opens_a_dot,
    "Notes | button | Correct the note of event #": asks("Correct the note"),
    "Moment | button | Time travel": shows(".scrubber", "Now"),
    "Moment | button | Previous decision": leads("at=(?!20$)"),
    "Moment | button | Next decision": leads("at=(?!20$)"),
    "Moment | button | Now": leads("studies/[^?]*$"),
    "Moment | range | Event after which the study is shown": leads("at=1$", by=fill("1")),
    "Rung tree | select | colour": redraws("colour="),
    "Rung tree | select | metric": leads("scale=linear"),
    "Rung tree | checkbox | log steps": redraws("x=linear"),
    "Rung tree | checkbox | all values": leads("y=all"),
    "Selected trials | button | Branch off trial #": asks("Branch off trial"),
    "Selected trials | button | clear": leads("/[a-z-]+$"),
    "Selected trials | button | Remove trial # from the selection": leads("trials=1$"),
    "# trials | search | Filter": shows("main h2", "6 of 12 trials", by=fill("rung>=1")),
    "# trials | summary | Columns": picks_columns,
    "# trials | button | CSV": saves(".csv", b"trial,"),
    "# trials | table | Trials": takes_the_focus,
    "# trials | checkbox | Choose trial #": leads("trials=[0-9]"),
    **{
        f"# trials | button | {name}": sorts(name)
        for name in ("trial", "steps", "lr", "momentum", "mood", "state", "why")
    },
    "# trials | button | value ▾": sorts("value"),
    "Learning curves | checkbox | log steps": redraws("x=log"),
    "Learning curves | select | metric": leads("y=linear"),
    "Learning curves | checkbox | all values": leads("value=all"),
    "Rung ladder | button | rank #▸ # promoted": leads("trials=[0-9]"),
    "Rung ladder | button | rank #✕ # not promoted": leads("trials=[0-9]"),
    "Rung ladder | button | rank #● #": leads("trials=[0-9]"),
    "Rung ladder | select | bracket": leads("bracket="),
    "What if | text | Field of the study file": type_text("tuner.min_steps"),
    "What if | text | had been": type_text("4"),
    "What if | button | Simulate": shows("[role=status]", "The tuner would have requested"),
    f"# nodes, # of them shared | img | The tree by steps: # nodes; {BARS}": opens_below,
    "Slots over time | checkbox | hide idle times": leads("idle=shown"),
    "Slots over time | button | Chrome trace": saves(".trace.json", b"traceEvents"),
    "Slots over time | button | zoom in": zooms_time,
    f"Slots over time | img | # slots over time, # stages. {ZOOM_KEYS}": zooms_and_opens_events,
    "Parallel coordinates | select | result at": redraws("rung="),
    "Parallel coordinates | div | ": redraws("brush=", by=drag((0.0375, 0.3), (0.0375, 0.7))),
    "Parallel coordinates | button | select them": leads("trials=[0-9]"),
    "Parallel coordinates | button | clear all": leads("importance$"),
    "Sequences by shape | select | Hyper-parameter": redraws("shape="),
    "Sequences by shape | checkbox | log": redraws("shapeY=log"),
    "Events | search | Find in events": leads("q=", by=fill("submitted")),
    "Events | select | Type": leads("type="),
    "Events | button | JSONL": saves(".events.jsonl", b"StudySubmitted"),
    "Events | button | earlier": leads("before="),
    "Events | button | latest": leads("events$"),
    "Events | summary | an event": opens_an_event,
    "Film | button | Save as SVG": saves(".svg", b"<svg"),
    "Film | a | Save as GIF": saves(".gif", b"GIF89a"),
    "Film | button | ▶ Play": shows("button", "Pause"),
    "Film | button | Previous moment": redraws(),
    "Film | button | Next moment": steps_on,
    "Film | range | Moment of the film": redraws(by=fill("0")),
    "Two moments | number | event": leads("a=7", by=edit_text("7")),
    "Trial # | a | Weights": WEIGHTS,
    "Trial # | button | Branch": asks("Branch off trial"),
    "Trial # | button | Note": asks("A note about"),
    "Trial # | button | Cancel this trial": asks("Cancel trial"),
    "Logged metrics | button | show": shows("main button", "again"),
    "Output | button | show": shows("main button", "again"),
    "Suggestions | button | Suggest": asks("Suggest a configuration"),
    "Suggestions | button | Withdraw suggestion #": asks("Withdraw suggestion"),
    "Studies | search | Find a study": leads("q=", by=fill("buttons")),
    "Studies | checkbox | Choose STUDY": leads("studies="),
    "Studies | button | Clear": leads("(?<=#/)$"),
    "New study | textarea | Study file, YAML or JSON": type_text("name: a"),
    "New study | number | slots": type_text("3"),
    "New study | button | Preview cost": shows("main", "unique steps"),
    "New study | button | Submit": submits,
    "Best score so far | button | slot time": leads(""),
    "Best score so far | button | time": redraws("by=time"),
}


@pytest.mark.night
def test_whatever_is_shown_does_what_it_should(page: Page, stack: Service, studies: Json) -> None:
    """Each element is pressed on a freshly opened view."""
    ids = sorted((each.study for each in stack.client.studies()), key=len, reverse=True)
    done, wrong = set[str](), dict[str, str]()
    for address in (each.format(**studies) for each in SHOWN):
        look_at(page, address)
        for thing, found in all_things(page, ids).items():
            if (name := str(thing)) not in done:
                done.add(name)
                wrong |= problem(page, address, thing, ids, deed_of(name, found.href, ids))
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    assert sorted(EFFECTS.keys() - done) == []


def deed_of(name: str, href: str, ids: list[str]) -> Deed | None:
    if href.startswith("#/"):
        return follows(ids)
    return next((deed for pattern, deed in ALIKE.items() if re.fullmatch(pattern, name)), EFFECTS.get(name))


def problem(page: Page, address: str, thing: Thing, ids: list[str], deed: Deed | None) -> dict[str, str]:
    """The problem of an element with its kind; empty if it works."""
    if deed is None:
        return {str(thing): "is in no table: add its effect to one"}
    for is_last in (False, True):
        look_at(page, address)
        try:
            deed(page, found_again(page, thing, ids))
            return {}
        except (AssertionError, PlaywrightError) as error:
            # A first time-out may come from an element that was replaced by news of the study while it was pressed.
            if is_last or not isinstance(error, PlaywrightTimeout):
                return {str(thing): f"{address}: {error}"[:400]}
    return {}


def test_where_there_are_no_weights_none_are_offered(page: Page, studies: Json) -> None:
    look_at(page, f"#/studies/{studies['failed']}/trials/0")
    expect(page.get_by_role("button", name="Note").first).to_be_visible()
    expect(page.get_by_role("link", name="Weights")).to_have_count(0)


@pytest.mark.parametrize("kind", ["done", "asked", "paused"])
def test_each_action_asks_before_it_does_something(page: Page, studies: Json, kind: str) -> None:
    look_at(page, f"#/studies/{studies[kind]}")
    asks_each(page, Found(page.locator(".acts summary").filter(has_text="Actions"), ""))


def confirm_action(page: Page, address: str, button: str, verb: str, said: str, **fields: str) -> None:
    """The dialog behind a button is filled in and confirmed, closes, and its effect is reported."""
    look_at(page, address)
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    for name, value in fields.items():
        dialog.locator(f"[name={name}]").fill(value)
    dialog.get_by_role("button", name=verb).click()
    expect_report(page, said)


def test_acts_that_no_other_test_confirms(page: Page, stack: Service, studies: Json) -> None:
    asked, short = external(stack, "buttons-complete"), {"min_steps": 2, "max_steps": 2, "distinct": False}
    confirm_action(
        page, f"#/studies/{asked}", "Complete", "Complete", "It accepts no more trials. The study is completed."
    )
    assert stack.client.study(asked)["state"] == "completed"
    few = str(stack.run(grid("buttons-few", tuner=ASHA | short | {"num_trials": 2}))["study"])
    confirm_action(page, f"#/studies/{few}", "Reopen", "Reopen", "will have 3 trials", wanted="3")
    assert len(stack.wait(few)["trials"]) == 3
    confirm_action(page, f"#/studies/{studies['paused']}/trials/0", "Cancel this trial", "Cancel it", "is cancelled")
    assert stack.client.trial(studies["paused"], 0)["state"] == "cancelled"


def test_controls_that_come_with_another(page: Page, studies: Json) -> None:
    """Controls that the table cannot press: keys and the wheel on drawings, and controls that appear after others."""
    look_at(page, f"#/studies/{studies['done']}/events?before=9")
    page.get_by_role("button", name="later", exact=True).click()
    expect(page).to_have_url(re.compile("after=8"))
    expect(page.locator(".events li").last).to_contain_text("9")
    look_at(page, f"#/studies/{studies['done']}/tree/stages?node=")
    found = Found(page.get_by_role("img", name="The tree by steps"), "")
    redraws("node=", by=drag((0.05, 0.2)))(page, found)
    redraws("tree/stages$", by=keys("Escape"))(page, found)
    look_at(page, f"#/studies/{studies['done']}/timeline")
    found = Found(page.get_by_role("img", name="slots over time"), "")
    redraws(by=turn_wheel(-200))(page, found)
    expect(page.get_by_role("button", name="zoom out")).to_be_enabled()
    look_at(page, f"#/studies/{studies['done']}/trials")
    expect(page.locator(".rows .body a").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("trials/[0-9]+$"))
    page.keyboard.press("?")
    toast = page.locator(".toast").filter(has_text="/ search")
    expect(toast).to_be_visible()
    toast.get_by_role("button", name="Dismiss").click()
    expect(toast).to_have_count(0)


def test_older_studies_and_a_part_that_failed_are_asked_for_again(page: Page, stack: Service, studies: Json) -> None:
    """Elements of lists with more than fifty studies, and of views after a malformed answer."""
    listed = {"items": [stack.client.studies().__next__().to_json()], "next_cursor": "more"}
    page.route("**/studies?limit=*", lambda route: route.fulfill(json=listed))
    look_at(page, "#/")
    with page.expect_request("**/studies?limit=100"):
        page.get_by_role("button", name="Older studies").click()
    page.unroute_all(behavior="wait")
    page.route("**/timeline", lambda route: route.fulfill(json={"count": 1}))
    look_at(page, f"#/studies/{studies['brackets']}/timeline")
    again = page.get_by_role("button", name="Try again")
    expect(again).to_be_visible()
    page.unroute_all(behavior="wait")
    again.click()
    expect(page.get_by_role("img", name="slots over time")).to_be_visible()
