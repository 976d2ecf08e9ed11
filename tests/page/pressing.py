"""Everything on a page that can be pressed, by its place, its kind and its name; and ways to see the effect.

Elements that a browser can act on are listed: links, buttons and fields, and all with a listener of a script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from addresses import turn_to
from playwright.sync_api import Locator, Page, expect

LISTEN = """
const add = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, ...rest) {
  if (this instanceof Element && /^(click|dblclick|keydown|pointerdown|wheel)$/.test(type)) this.dataset.hears = "";
  return add.call(this, type, ...rest);
};
const arc = CanvasRenderingContext2D.prototype.arc;
CanvasRenderingContext2D.prototype.arc = function (x, y, ...rest) {
  Object.assign(this.canvas.dataset, { x, y });
  return arc.call(this, x, y, ...rest);
};
const ask = window.fetch;
window.asked = 0;
window.fetch = async function (...request) {
  window.asked += 1;
  try {
    const answer = await ask.apply(this, request);
    await answer.clone().arrayBuffer();
    return answer;
  } finally {
    window.asked -= 1;
  }
};
"""
"""Marks listeners of clicks and keys, and the last ring of a drawing, and counts the requests that the server has not
answered yet. To run before the page does.
"""

FIND = """() => {
  const words = (text) => (text ?? "").replace(/\\s+/g, " ").trim();
  const place = (each) => {
    const at = each.closest("dialog, section[aria-label], nav[aria-label], header.study");
    return at ? words(at.getAttribute("aria-label")) || "Head" : "";
  };
  const name = (each) => {
    if (each.matches(".events summary")) return "an event";
    const label = each.labels?.[0] && [...each.labels[0].childNodes].filter((part) => part !== each);
    const drawn = each.closest(".plot")?.getAttribute("aria-label");
    const own = each.matches("input, textarea, select") ? each.name : each.textContent;
    return words(each.getAttribute("aria-label") || label?.map((part) => part.textContent).join(" ") || drawn || own);
  };
  const role = (each) => each.getAttribute("role") ?? (each.matches("input") ? each.type : each.localName);
  const kinds = "a[href], button, select, input, textarea, summary, [tabindex='0'], [data-hears]";
  const top = document.querySelector("dialog[open]") ?? document;
  const all = [...top.querySelectorAll(kinds)].filter((each) => each.checkVisibility() && !each.disabled);
  return all.map((each, index) => {
    each.dataset.found = index;
    return { index, place: place(each), role: role(each), name: name(each), href: each.getAttribute("href") ?? "" };
  });
}"""

PICTURE = """(() => {
  const drawn = [...document.querySelectorAll("main canvas")].map((each) => each.toDataURL());
  const written = [...document.querySelectorAll("main svg")].map((each) => each.outerHTML);
  return [...drawn, ...written].join();
})()"""
"""All drawings of the view, as text."""

IS_SETTLED = """() => new Promise((told) => requestAnimationFrame(() => requestAnimationFrame(() => {
  told(document.querySelector("main .panel, main .empty") && !document.body.innerText.includes("Loading …"));
})))"""


IS_ANSWERED = "() => window.asked === 0"

CALM_MILLISECONDS, MOST_LOOKS = 100, 50
NUMBERS = count()
"""A change to an address that is the same would not be noticed."""


@dataclass(frozen=True)
class Thing:
    """An element to press. A number is `#`, and the id of a study `STUDY`, so that elements of one kind are equal."""

    place: str
    role: str
    name: str

    def __str__(self) -> str:
        return f"{self.place} | {self.role} | {self.name}"


@dataclass(frozen=True)
class Found:
    """The element's index in the page, and its address if it is a link."""

    locator: Locator
    href: str


Deed = Callable[[Page, Found], None]
"""Press an element, and fail unless it does its work."""


def things(page: Page, studies: Sequence[str]) -> dict[Thing, Found]:
    """All elements to press, the first of each kind. While a dialog is open, only its elements."""
    there: dict[Thing, Found] = {}
    for each in page.evaluate(FIND):
        place, name = (alike(each[field], studies) for field in ("place", "name"))
        found = Found(page.locator(f'[data-found="{each["index"]}"]'), each["href"])
        there.setdefault(Thing(place, each["role"], name), found)
    return there


def all_things(page: Page, studies: Sequence[str]) -> dict[Thing, Found]:
    """The elements after no more appear, so that even a slow server has answered."""
    there = things(page, studies)
    for _ in range(MOST_LOOKS):
        page.wait_for_timeout(CALM_MILLISECONDS)
        page.wait_for_function(IS_ANSWERED)
        before, there = there, things(page, studies)
        if before.keys() == there.keys() and page.evaluate(IS_ANSWERED):
            return there
    raise AssertionError("the view does not come to rest")


def found_again(page: Page, thing: Thing, studies: Sequence[str]) -> Found:
    """Find the element again. Fails if it does not appear. Drawings are replaced when more data arrives."""
    look = all_things if thing.role in ("div", "img") else things
    for _ in range(MOST_LOOKS):
        if found := look(page, studies).get(thing):
            return found
        page.wait_for_timeout(CALM_MILLISECONDS)
    raise AssertionError(f"{thing} is no longer there")


def alike(text: str, studies: Sequence[str]) -> str:
    for study in studies:
        text = text.replace(study, "STUDY")
    return re.sub(r"\d+(?:[.,]\d+)*", "#", text)


def look_at(page: Page, hash: str) -> None:
    """A freshly opened view: earlier presses are forgotten."""
    turn_to(page, f"#/slots?{next(NUMBERS)}")
    turn_to(page, hash)
    page.wait_for_function(IS_SETTLED)


# ------------------------------------------------------------------------------------------------------------ duties


def press(page: Page, found: Found) -> None:
    """Press an element by its kind: a click, or the last of its choices."""
    if found.locator.evaluate("(each) => each.localName") == "select":
        found.locator.select_option(index=found.locator.locator("option").count() - 1)
    else:
        found.locator.click()


def fill(text: str) -> Deed:
    return lambda page, found: found.locator.fill(text)


def keys(*names: str) -> Deed:
    def do(page: Page, found: Found) -> None:
        for name in names:
            found.locator.press(name)

    return do


def drag(*places: tuple[float, float]) -> Deed:
    """Drag from one place to the next, in fractions of width and height; a single place is a click."""

    def do(page: Page, found: Found) -> None:
        found.locator.scroll_into_view_if_needed()
        box = found.locator.bounding_box()
        assert box is not None
        (x, y), *others = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in places]
        page.mouse.move(x, y, steps=2)
        page.mouse.down()
        for x, y in others:
            page.mouse.move(x, y, steps=3)
        page.mouse.up()

    return do


def hover(x: float, y: float) -> Deed:
    """Hold the pointer at a place, in parts of width and height, until its text has been drawn."""

    def do(page: Page, found: Found) -> None:
        box = found.locator.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)
        page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    return do


def turn_wheel(pixels: int) -> Deed:
    """Turn the wheel over its middle, with Ctrl."""

    def do(page: Page, found: Found) -> None:
        hover(0.5, 0.5)(page, found)
        page.keyboard.down("Control")
        page.mouse.wheel(0, pixels)
        page.keyboard.up("Control")

    return do


def leads(pattern: str, by: Deed = press) -> Deed:
    """The press leads to an address after the #."""

    def do(page: Page, found: Found) -> None:
        by(page, found)
        expect(page).to_have_url(re.compile(rf"#/.*{pattern}"))
        expect(page.get_by_role("alert")).to_have_count(0)

    return do


def redraws(pattern: str = "", by: Deed = press) -> Deed:
    """The press changes a drawing, and the address if a pattern is given."""

    def do(page: Page, found: Found) -> None:
        before = page.evaluate(PICTURE)
        leads(pattern, by)(page, found)
        page.wait_for_function(f"(before) => {PICTURE} !== before", arg=before)

    return do


def shows(selector: str, text: str, by: Deed = press) -> Deed:
    """The press shows a new text."""

    def do(page: Page, found: Found) -> None:
        wanted = page.locator(selector).filter(has_text=re.compile(text, re.DOTALL))
        expect(wanted).to_have_count(0)
        by(page, found)
        expect(wanted.first).to_be_visible()

    return do


def saves(ending: str, holds: bytes) -> Deed:
    """The press saves a file with this suffix and content."""

    def do(page: Page, found: Found) -> None:
        with page.expect_download() as file:
            found.locator.click()
        assert file.value.suggested_filename.endswith(ending)
        assert holds in file.value.path().read_bytes()

    return do


def asks(title: str) -> Deed:
    """The press opens a dialog, which closes without an effect."""

    def do(page: Page, found: Found) -> None:
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.method))
        found.locator.click()
        dialog = page.get_by_role("dialog", name=re.compile(title))
        dialog.get_by_role("button", name="Back").click()
        expect(dialog).to_have_count(0)
        assert not {"POST", "DELETE", "PUT"} & set(sent)

    return do
