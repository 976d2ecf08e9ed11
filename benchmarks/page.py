"""The page of a large study, in Chromium: `python benchmarks/page.py [--trials 10000] [--pages 100] [--folder DIR]`.

A simulated study of ASHA with 20 hyper-parameters in a SQLite log, and the real API over it. Printed for each view:
seconds from the request to what it shows; then the frames of a scroll through the trials, ten new rows in each, the
memory of the page, and the bytes of the columns. Then so many followers who ask for what a page shows whenever
something happens, while events are added: the CPU time that the API takes. Budgets: 2 s, 16 ms, 300 MB, 1 MB, one core.

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import httpx
import psutil
from playwright.sync_api import CDPSession, Page, sync_playwright

from app.domain import commands as c
from app.domain import events as e
from app.domain.ids import StudyId
from app.domain.search_plan import Node
from app.events.database import Database
from app.events.log import SqlLog
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

BATCH = 50
STUDY, STREAM, OPEN, PORT = "scale", "simulated", "open", 8199
URL = f"http://127.0.0.1:{PORT}"
SPACE = {f"p{number}": {"uniform": [0.0, 1.0]} for number in range(20)}
TUNER = {"kind": "asha", "min_steps": 1, "max_steps": 81, "reduction_factor": 3}
VIEWS = {
    "": "[aria-label='Best trial'] .value",
    "rung-tree": "canvas",
    "trials": ".rows .body .row",
    "curves": ".u-over",
    "rungs": ".ladder-row",
    "tree": "canvas",
    "slots": "canvas",
    "relations": "canvas",
    "events": ".events li",
}
"""Each with what it shows when it is there."""

PATHS = ("?trials=false", "/history", "/tree", "/rungs", "/trials:columns?digits=6")
NO_DISPLAY = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
WORK = {"TaskDuration": "all", "ScriptDuration": "script", "RecalcStyleDuration": "style", "LayoutDuration": "layout"}
FRAMES = 240
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
"""The same text as plain lines, all of them there and without a script: what they take is the browser's painting."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, help="where the log is, or is made and left")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = (arguments.folder or Path(folder)) / "log.db"
        url, is_there = f"sqlite:///{path}", path.is_file()
        log = SqlLog(Database(url) if is_there else fill(url, arguments.trials))
        print(f"{arguments.trials} trials, {log.version(STREAM)} events", flush=True)
        with serving(url) as api:
            looked_at()
            asyncio.run(followed(api, log, arguments.pages, arguments.seconds))


def fill(url: str, trials: int) -> Database:
    """A database with the whole log of a study."""
    spec = {"name": "scale", "trainer": "none", "metric": "loss", "mode": "min", "space": SPACE}
    study = StudySpec.from_dict(spec | {"tuner": TUNER | {"num_trials": trials}})
    simulator = Simulator(slots=64, measure=loss)
    opened = e.PlanOpened(trainer="none", trainer_version="", trainer_args={}, seed=0)
    simulator.give(c.SubmitStudy(plan=opened, study=StudyId(STUDY), spec=study.to_json(), at=1e9))
    simulator.run()
    database = Database(url)
    database.create()
    copy(simulator, SqlLog(database), STREAM)
    return database


def copy(simulator: Simulator, log: SqlLog, stream: str) -> None:
    """What was simulated, as a stream of the log."""
    recorded = simulator.log()
    for first in range(0, len(recorded), BATCH):
        batch = recorded[first : first + BATCH]
        log.append(stream, [each.event for each in batch], expected=first, at=batch[0].at)


def open_study(log: SqlLog) -> None:
    """A study of a hundred trials that is under way."""
    spec = {"name": "open", "trainer": "none", "metric": "loss", "mode": "min", "space": SPACE}
    study = StudySpec.from_dict(spec | {"tuner": TUNER | {"num_trials": 100}})
    simulator = Simulator(slots=4, measure=loss)
    opened = e.PlanOpened(trainer="none", trainer_version="open", trainer_args={}, seed=0)
    simulator.give(c.SubmitStudy(plan=opened, study=StudyId(OPEN), spec=study.to_json(), at=1e9))
    simulator.run_until(100.0)
    copy(simulator, log, OPEN)


def loss(node: Node, step: int) -> e.Metrics:
    return {"loss": Random(f"{node.id}/{step}").random() + 1 / step}


@contextmanager
def serving(database: str) -> Iterator[psutil.Process]:
    """The API in a process of its own."""
    command = [sys.executable, "-m", "uvicorn", "--factory", "app.main:create_app", "--port", str(PORT)]
    environment = os.environ | {"STAGETREE_DATABASE_URL": database, "STAGETREE_BROKER_URL": "memory://"}
    process = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
    try:
        for _ in range(600):
            if answers(f"{URL}/healthz"):
                break
            time.sleep(0.1)
        begun = time.perf_counter()
        answers(f"{URL}/api/v1/studies/{STUDY}?trials=false")  # waits until the plan is folded
        print(f"first answer after the server's start: {time.perf_counter() - begun:.2f} s", flush=True)
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


def looked_at() -> None:
    """Every view, scrolling, and memory."""
    chromium = shutil.which("chromium") or sys.exit("this needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--enable-precise-memory-info", *NO_DISPLAY]
        )
        for turn in ("first", "again"):
            for view, shown in VIEWS.items():
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                print(f"{turn:6} {view or 'overview':10} {seconds_until(page, view, shown):5.2f} s", flush=True)
                if view == "trials" and turn == "again":
                    scrolled(page)
                page.close()
        browser.close()


def seconds_until(page: Page, view: str, shown: str) -> float:
    begun = time.perf_counter()
    page.goto(f"{URL}/#/studies/{STUDY}/{view}")
    page.locator(shown).first.wait_for()
    return time.perf_counter() - begun


def scrolled(page: Page) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    frames_of(page)  # once for the compiler of scripts
    before = work(session)
    frames = frames_of(page)
    spent = {name: 1000 * (after - before[name]) / FRAMES for name, after in work(session).items()}
    heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
    memory = f"memory of its scripts {heap:.0f} MB, of its process {renderer():.0f} MB; columns {columns():.0f} kB"
    page.evaluate(STILL)
    frames_of(page)  # once for what is laid out when it is first seen
    print(
        f"scroll: {told(frames)}; the same text as plain lines: {told(frames_of(page))}\n"
        f"main thread, CPU: {', '.join(f'{name} {each:.1f} ms' for name, each in spent.items())}\n{memory}",
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
    """Seconds of CPU that the page's main thread has taken so far, and for what."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return {title: metrics[name] for name, title in WORK.items()}


def renderer() -> float:
    """The largest of the browser's processes that draw pages, in MB that are its own."""
    of = (each for each in psutil.Process().children(recursive=True) if "--type=renderer" in each.cmdline())
    return max(each.memory_full_info().uss for each in of) / 2**20


def columns() -> float:
    asked = urllib.request.Request(
        f"{URL}/api/v1/studies/{STUDY}/trials:columns?digits=6", headers={"Accept-Encoding": "gzip"}
    )
    with urllib.request.urlopen(asked) as answer:
        return len(answer.read()) / 1000


async def followed(api: psutil.Process, log: SqlLog, pages: int, seconds: float) -> None:
    """So many pages of another study, small and growing, which is what most people have open."""
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
    """Follows events as a page does, and asks for what it shows at most every two seconds. Counts answers by status."""
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
