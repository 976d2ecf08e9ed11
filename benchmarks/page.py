"""The page of a large study, in Chromium: `python benchmarks/page.py [--trials 10000] [--events 40000] [--pages 100]`.

Two simulated studies with 20 hyper-parameters, each in a SQLite log, and the real API over it: one of successive
halving under way, after `--events`, and all of one of ASHA. Printed for each view: seconds from the request to the
first paint and to all that it shows, right after the server's start, when its log is still to be read, and once more;
what the main thread works for a move of the pointer across its drawing, and the memory of the page. Then the frames of
a scroll through the trials, ten new rows in each, and the bytes of the columns; and for each route of the page the CPU
time of its first answer and of the next. Then some followers that ask for the data of a page whenever something
happens, while events are added: the CPU time that the API takes. Budgets: first paint 0.5 s, all of it 2 s, a frame
16 ms, 250 MB, 1 MB, one core.

A frame is measured twice. Its interval, from one to the next, with the display's rate taken away, below whose 16.7 ms
no frame could come; without a GPU that has the painting of pixels by the CPU in it, so that of the same text as plain
lines, without a script, stands beside it. And what the page's main thread works for it, in CPU time, which other work
on the machine does not change: script, style, layout and painting orders.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
from large_study import OPEN, STREAM, STUDY, halving_study, open_study, whole
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from app.domain import events as e
from app.embedded.machine import reserve
from app.events.database import Database
from app.events.sql_log import SqlLog

PORT, _kept = reserve("127.0.0.1", 0)
URL = f"http://127.0.0.1:{PORT}"
VIEWS = {
    "": "[aria-label='Best trial'] .value",
    "tree": "canvas",
    "trials": ".rows .body .row",
    "curves": ".u-over",
    "tree/rungs": ".ladder-row",
    "tree/stages": "canvas",
    "timeline": "canvas",
    "importance": "canvas",
    "events": ".events li",
}
"""Each with its content once it is there."""

PATHS = ("?trials=false", "/history", "/tree", "/rungs", "/trials:columns?digits=6")
ROUTES = (*PATHS, "/timeline", "/side-by-side", "/importance", "/sampler", "/events?before=1000000&limit=500")
NO_DISPLAY = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
WORK = {"TaskDuration": "all", "ScriptDuration": "script", "RecalcStyleDuration": "style", "LayoutDuration": "layout"}
FRAMES = 240
MOVES = 60
DRAWING = "main canvas, main .u-over"
FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
SCROLL = """async () => {
  const rows = document.querySelector('.rows'), frames = [];
  let last = performance.now();
  for (let step = 0; step < FRAMES; step += 1) {
    rows.scrollTop += 300;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  return frames.slice(5);
}""".replace("FRAMES", str(FRAMES))
STILL = """() => {
  const table = document.querySelector('.rows'), rows = [...table.querySelectorAll('.body > .row')];
  const lines = Array.from({length: 10 * FRAMES + 60}, (_, number) => {
    const line = document.createElement('div');
    line.style.cssText = 'height: 30px; white-space: nowrap';
    for (const cell of rows[number % rows.length].children) {
      const text = line.appendChild(document.createElement('span'));
      text.style.cssText = 'display: inline-block; width: 80px';
      text.textContent = cell.textContent;
    }
    return line;
  });
  table.replaceChildren(...lines);
}""".replace("FRAMES", str(FRAMES))
"""The same text as plain lines, complete and without a script: their time is the browser's painting."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, help="where the logs are, or are made and left")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for database in (halving_study(folder, arguments.trials, arguments.events), whole(folder, arguments.trials)):
            log = SqlLog(Database(database))
            print(f"{arguments.trials} trials, {log.version(STREAM)} events", flush=True)
            looked_at(database)
            priced(database)
        with serving(database) as api:
            asyncio.run(followed(api, log, arguments.pages, arguments.seconds))


@contextmanager
def serving(database: str) -> Iterator[psutil.Process]:
    """The API in a process of its own, which has just come to answer."""
    command = [sys.executable, "-m", "uvicorn", "--factory", "app.main:create_app", "--port", str(PORT)]
    environment = os.environ | {"STAGETREE_DATABASE_URL": database, "STAGETREE_BROKER_URL": "memory://"}
    process = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
    try:
        while not answers(f"{URL}/healthz"):
            if process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.01)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60):
            return True
    except OSError:
        return False


def looked_at(database: str) -> None:
    """Every view, right after a server's start and once more; scrolling, and memory."""
    chromium = shutil.which("chromium") or sys.exit("this needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--enable-precise-memory-info", *NO_DISPLAY]
        )
        for view, shown in VIEWS.items():
            with serving(database):
                painted, first = seconds_until(browser, view, shown)
                painted_again, again = seconds_until(browser, view, shown, scrolled if view == "trials" else hovered)
            print(
                f"{view or 'overview':10} after a server start: first paint {painted:5.2f} s, all {first:5.2f} s; "
                f"once more {painted_again:5.2f} s, all {again:5.2f} s",
                flush=True,
            )
        browser.close()


def priced(database: str) -> None:
    """The CPU time of the API for each route of the page, once and once more, when it has read the log."""
    with serving(database) as api:
        answer_bytes(ROUTES[0])
        for route in ROUTES:
            first, again = (cpu_of(api, route) for _ in range(2))
            print(f"{route:36} {first:5.2f} s of CPU, {again:5.2f} s again", flush=True)


def cpu_of(api: psutil.Process, route: str) -> float:
    before = api.cpu_times()
    answer_bytes(route)
    after = api.cpu_times()
    return after.user + after.system - before.user - before.system


def seconds_until(
    browser: Browser, view: str, shown: str, then: Callable[[Page], None] = lambda _: None
) -> tuple[float, float]:
    """From the request of a view in a page of its own to its first paint and to its content; `then` is done there."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    begun = time.perf_counter()
    page.goto(f"{URL}/#/studies/{STUDY}/{view}")
    page.locator(shown).first.wait_for()
    took, painted = time.perf_counter() - begun, page.evaluate(PAINTED) / 1000
    then(page)
    page.close()
    return painted, took


def hovered(page: Page) -> None:
    """Move the pointer across the drawing of the view, to and fro."""
    page.wait_for_timeout(4000)  # what comes later is drawn by then
    drawing, session = page.locator(DRAWING).first, measured(page)
    if drawing.count():
        drawing.evaluate("(each) => each.scrollIntoView({block: 'nearest'})")
        box = drawing.bounding_box() or sys.exit("the drawing is not shown")
        height, moves = min(box["height"], 600) - 90, list[float]()
        for move in range(MOVES):
            before = work(session)["all"]
            across, down = move * 37 % MOVES / MOVES, move * 17 % MOVES / MOVES
            page.mouse.move(box["x"] + 60 + (box["width"] - 80) * across, box["y"] + 40 + height * down)
            page.evaluate(FRAME)
            moves.append(1000 * (work(session)["all"] - before))
        print(f"{'':10} main thread, CPU, a move of the pointer: {told(sorted(moves))}", flush=True)
    print(f"{'':10} {memory(page)}", flush=True)


def measured(page: Page) -> CDPSession:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return session


def memory(page: Page) -> str:
    heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
    return f"memory of its scripts {heap:.0f} MB, of its process {renderer():.0f} MB"


def scrolled(page: Page) -> None:
    session = measured(page)
    frames_of(page)  # once for the compiler of scripts
    before = work(session)
    frames = frames_of(page)
    spent = {name: 1000 * (after - before[name]) / FRAMES for name, after in work(session).items()}
    used = f"{memory(page)}; columns {answer_bytes(PATHS[-1]) / 1000:.0f} kB"
    page.evaluate(STILL)
    frames_of(page)  # once for parts that are laid out when they are first seen
    print(
        f"scroll: {told(frames)}; the same text as plain lines: {told(frames_of(page))}\n"
        f"main thread, CPU: {', '.join(f'{name} {each:.1f} ms' for name, each in spent.items())}\n{used}",
        flush=True,
    )


def frames_of(page: Page) -> list[float]:
    """How long each frame of a scroll from the top took, sorted, in ms."""
    page.evaluate("document.querySelector('.rows').scrollTop = 0")
    return sorted(page.evaluate(SCROLL))


def told(frames: list[float]) -> str:
    p95 = frames[len(frames) * 95 // 100]
    return f"median frame {statistics.median(frames):.1f} ms, p95 {p95:.1f} ms, longest {frames[-1]:.1f} ms"


def work(session: CDPSession) -> dict[str, float]:
    """Seconds of CPU of the page's main thread so far, by purpose."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return {title: metrics[name] for name, title in WORK.items()}


def renderer() -> float:
    """The largest of the browser's processes that draw pages, in MB that are its own."""
    largest = 0
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # pages that were closed are about to end
            if "--type=renderer" in each.cmdline():
                largest = max(largest, each.memory_full_info().uss)
    return largest / 2**20


def answer_bytes(route: str) -> int:
    """The packed size of an answer about the study."""
    asked = urllib.request.Request(f"{URL}/api/v1/studies/{STUDY}{route}", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(asked) as answer:
        return len(answer.read())


async def followed(api: psutil.Process, log: SqlLog, pages: int, seconds: float) -> None:
    """This many pages of another study, small and growing, as most people have open."""
    if not log.version(OPEN):
        open_study(log)
    answers = Counter[int]()
    watchers = [asyncio.create_task(watcher(answers)) for _ in range(pages)]
    await asyncio.sleep(3.0)
    trials = (each.event for each in log.read(OPEN, limit=20) if isinstance(each.event, e.TrialAdded))
    first = next(iter(next(trials).path or {}))
    before, end, added = api.cpu_times(), time.monotonic() + seconds, 0
    answers.clear()
    while time.monotonic() < end:
        event = e.Evaluated(node=first, step=1, metrics={"loss": 1.0})
        await asyncio.to_thread(log.append, OPEN, [event], expected=None, at=2e9)
        added += 1
        await asyncio.sleep(0.5)
    after = api.cpu_times()
    spent = after.user + after.system - before.user - before.system
    print(
        f"{pages} open pages, {added / seconds:.1f} events a second: {100 * spent / seconds:.0f} % of a core, for "
        f"{', '.join(f'{count / seconds:.0f} answers {status}' for status, count in sorted(answers.items()))} a second",
        flush=True,
    )
    for task in watchers:
        task.cancel()


async def watcher(answers: Counter[int]) -> None:
    """Follows events as a page does, and asks for its data at most every two seconds. Counts answers by status."""
    tags, study = dict[str, str](), f"/api/v1/studies/{OPEN}"
    async with httpx.AsyncClient(base_url=URL, timeout=60) as http:
        accept = {"Accept": "text/event-stream"}
        async with http.stream("GET", f"{study}/events?after=1000000", headers=accept) as stream:
            async for _ in stream.aiter_bytes():
                await asyncio.sleep(2.0)
                for path in PATHS:
                    answer = await http.get(study + path, headers={"If-None-Match": tags.get(path, "")})
                    tags[path] = answer.headers.get("ETag", "")
                    answers[answer.status_code] += 1


if __name__ == "__main__":
    main()
