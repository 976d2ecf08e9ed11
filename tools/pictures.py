"""Pictures of the page: every view in light, dark, wide and narrow, into `pictures/`; the guide's into `docs/pictures`.

    make pictures
    python -m tools.pictures kinds                      the gang, the ladder, the inexact study and the large ones alone
    python -m tools.pictures trunk.html charlm-trunk    the rung tree of one report alone, into docs/pictures

On the embedded stack: a store with nothing in it, a study of the digits example that takes about a minute, while it
runs and after that, one of two objectives with losses that explode, and one with repeats and failed trials; then a
gang, a ladder of cooldowns and a study whose trainer is not exact, and simulated studies of 300 and 2,000 trials. The
README's first one is the rung tree of a report that is in the guide: its study takes six minutes of a GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from app.embedded.stack import Embedded, embedded
from benchmarks.large_study import whole
from stagetree.client import Client
from tools.picture_studies import GANG, INEXACT, LADDER, TRAINERS

ROOT = Path(__file__).parents[1]
INTO, SHOWN = ROOT / "pictures", ROOT / "docs" / "pictures"
STUDY: dict[str, Any] = {
    "name": "digits-asha",
    "trainer": "digits",
    "trainer_args": {"width": 32},
    "metric": "val_accuracy",
    "mode": "max",
    "eval_every": 2,
    "space": {
        "lr": [
            {
                "family": "multistep",
                "init": {"loguniform": [0.01, 0.5]},
                "milestones": [8, 20],
                "gamma": {"choice": [0.1, 0.3]},
            },
            {"family": "exponential", "init": {"choice": [0.05, 0.1, 0.2]}, "gamma": {"uniform": [0.9, 1.0]}},
            {"family": "warmup", "steps": 4, "then": {"family": "cosine", "init": 0.2, "min": 0.001, "period": 28}},
            0.1,
        ],
        "bs": [64, {"family": "values", "values": [64, 128], "milestones": [6]}],
        "momentum": {"choice": [0.5, 0.9]},
    },
    "tuner": {
        "kind": "asha",
        "num_trials": 40,
        "min_steps": 2,
        "max_steps": 32,
        "reduction_factor": 2,
        "sampling_seed": 3,
    },
}
TWO_OBJECTIVES: dict[str, Any] = {
    "name": "two-objectives",
    "trainer": "digits",
    "trainer_args": {"width": 32},
    "metrics": [{"name": "val_accuracy", "mode": "max"}, {"name": "val_loss", "mode": "min"}],
    "space": {"lr": [0.01, 0.1, 1.0, 1e12], "bs": [64, 100_000], "momentum": [0.0, 0.9]},
    "tuner": {"kind": "grid", "max_steps": 4},
}
"""With a learning rate at which losses come to 1e36, and a batch size beyond the data."""
FAILING: dict[str, Any] = {
    "name": "some-fail",
    "trainer": "digits",
    "trainer_args": {"width": 32},
    "metric": "val_loss",
    "mode": "min",
    "eval_every": 1,
    "repeats": 3,
    "space": {"lr": [0.01, 0.05, {"family": "values", "values": [0.05, 1e30], "milestones": [3]}, 1e30], "bs": 64},
    "tuner": {"kind": "grid", "max_steps": 6},
}
"""Two of its four trials come to no number, one at once and one later; each is trained three times."""
LARGE = {"many": 300, "large": 2000}
LOOKS = {
    "light": {"width": 1440, "height": 900},
    "dark": {"width": 1440, "height": 900},
    "wide": {"width": 1920, "height": 1080},
    "narrow": {"width": 390, "height": 844},
}
VIEWS = (
    *(
        "",
        "trials",
        "curves",
        "tree",
        "tree/rungs",
        "tree/stages",
        "importance",
        "timeline",
        "events",
        "sampler",
        "film",
    ),
    "moments?a=60",
)
CHOSEN = ("compare?trials=0,1,2", "trials/0")
MOST_PIXELS = 2400
TREE_OF_REPORT = """'#/' + Object.keys(JSON.parse(document.getElementById('answers').textContent))
  .find((path) => path.startsWith('studies/')).split('?')[0] + '/rung-tree?x=linear'"""
"""An address that reports of all versions know."""
REPORT = ROOT / "docs" / "_static" / "charlm-gpu.html"
README = {"light-overview": "page-overview", "dark-tree": "page-rung-tree"}


def chromium() -> str:
    return shutil.which("chromium") or sys.exit("pictures need Chromium: apt-get install chromium")


def main() -> None:
    INTO.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        trunk(browser, REPORT, "charlm-gpu")
        draw_stack(browser, Path(folder) / "digits")
        draw_kinds(browser, Path(folder))
        browser.close()
    for name, shown in README.items():
        shutil.copy(INTO / f"{name}.png", SHOWN / f"{shown}.png")
    print(f"{len(list(INTO.glob('*.png')))} pictures in {INTO.relative_to(ROOT)}/")


def draw_stack(browser: Browser, folder: Path) -> None:
    """With nothing in it, with a study under way, and with two that are over."""
    trainer = str(ROOT / "examples" / "digits" / "trainer.py")
    with embedded(Embedded(folder, 2, [trainer])) as running, Client(running.url) as client:
        look_at_all(browser, running.url, "empty", ("", "slots"))
        study = client.submit(STUDY).study
        client.add_note(study, "Is a decayed learning rate worth it on so little data?")
        page = browser.new_page()
        page.goto(f"{running.url}/#/studies/{study}")
        expect(page.locator("header.study")).to_contain_text(re.compile("[12][0-9] of 40 trials"), timeout=300_000)
        look(browser, f"{running.url}/#/studies/{study}", "running", "light")
        expect(page.locator("header.study")).to_contain_text("completed", timeout=300_000)
        fronts = client.submit(TWO_OBJECTIVES).study
        look_at_all(browser, running.url, "", tuple(f"studies/{study}/{view}" for view in (*VIEWS, *CHOSEN)))
        page.goto(f"{running.url}/#/studies/{fronts}")
        expect(page.locator("header.study")).to_contain_text("completed", timeout=300_000)
        look_at_all(browser, running.url, "fronts", tuple(f"studies/{fronts}/{view}" for view in VIEWS))
        failing = client.submit(FAILING).study
        page.goto(f"{running.url}/#/studies/{failing}")
        expect(page.locator("header.study")).to_contain_text("completed", timeout=300_000)
        look_at_all(
            browser, running.url, "failing", tuple(f"studies/{failing}/{view}" for view in (*VIEWS, "trials/2"))
        )
        look_at_all(browser, running.url, "all", ("", "slots", "submit"))


def draw_kinds(browser: Browser, folder: Path) -> None:
    """Of studies of a kind of their own, each over; the gang and the inexact one while they run, too."""
    file = folder / "trainers.py"
    file.write_text(TRAINERS, encoding="utf-8")
    with embedded(Embedded(folder / "kinds", 2, [str(file)])) as running, Client(running.url) as client:
        for spec in (GANG, LADDER, INEXACT):
            study, name = client.submit(spec).study, spec["name"]
            page = browser.new_page()
            page.goto(f"{running.url}/#/studies/{study}")
            expect(page.locator(".running progress").first).to_be_visible(timeout=300_000)
            look(browser, f"{running.url}/#/studies/{study}", f"{name}-running", "light")
            look(browser, f"{running.url}/#/slots", f"{name}-slots", "light")
            expect(page.locator("header.study")).to_contain_text("completed", timeout=300_000)
            page.close()
            views = (*VIEWS, "compare?trials=0,1,2", "trials/0")
            look_at_all(browser, running.url, name, tuple(f"studies/{study}/{view}" for view in views))
        look_at_all(browser, running.url, "kinds", ("",))
    for name, trials in LARGE.items():
        draw_many_trials(browser, folder / name, name, trials)


def draw_many_trials(browser: Browser, folder: Path, name: str, trials: int) -> None:
    folder.mkdir()
    whole(folder, trials)
    (folder / "log.db").rename(folder / "stagetree.db")
    command = [sys.executable, "-c", "from app.cli import main; main()", "open", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            look_at_all(browser, url, name, tuple(f"studies/scale/{view}" for view in VIEWS))
        finally:
            process.terminate()


def look_at_all(browser: Browser, url: str, kind: str, hashes: tuple[str, ...]) -> None:
    for theme in LOOKS:
        for hash in hashes:
            look(browser, f"{url}/#/{hash}", "-".join(filter(None, (kind, name_of(hash)))), theme)


def draw_kinds_alone() -> None:
    INTO.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        draw_kinds(browser, Path(folder))
        browser.close()


def draw_report(report: Path, name: str) -> None:
    """Its rung tree, for a page of the guide: `stagetree run examples/charlm/trunk.yaml` takes ten minutes."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        trunk(browser, report.resolve(), name)
        browser.close()


def trunk(browser: Browser, report: Path, name: str) -> None:
    """The rung tree of a report, into `docs/pictures` under a name."""
    page = browser.new_page(viewport={"width": 1100, "height": 760}, color_scheme="light")
    page.goto(report.as_uri())
    settled(page)
    page.evaluate(f"location.hash = {TREE_OF_REPORT}")
    expect(page.get_by_role("heading", name="Rung tree")).to_be_visible()
    page.wait_for_timeout(300)
    page.locator("main .panel").first.screenshot(path=SHOWN / f"{name}.png")
    page.close()


def name_of(hash: str) -> str:
    """As the page names the view, without the study: `tree-rungs`, `trials-0`."""
    if not hash.startswith("studies/"):
        return hash or "studies"
    view = hash.split("/", 2)[2]
    return view.partition("?")[0].replace("/", "-") or "overview"


def look(browser: Browser, url: str, name: str, theme: str) -> None:
    """One view, when everything that it asks for is there."""
    scheme: Any = "dark" if theme == "dark" else "light"
    size: Any = LOOKS[theme]
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    page.goto(url)
    settled(page)
    if name == "all-submit":
        page.get_by_role("button", name="Preview cost").click()
        expect(page.get_by_text("unique steps")).to_be_visible()
    page.wait_for_timeout(300)  # canvases are drawn in the next frame
    if theme == "narrow":  # scrolled to its end, with the line of moments shown
        page.evaluate("document.querySelector('.scrubber')?.style.setProperty('position', 'static')")
        height = min(MOST_PIXELS, page.evaluate("document.documentElement.scrollHeight"))
        clip: Any = {"x": 0, "y": 0, "width": size["width"], "height": height}
        page.screenshot(path=INTO / f"{theme}-{name}.png", full_page=True, clip=clip)
    else:
        page.screenshot(path=INTO / f"{theme}-{name}.png")
    context.close()


def settled(page: Page) -> None:
    expect(page.locator("main .panel").first).to_be_visible(timeout=30_000)
    expect(page.get_by_text("Loading …")).to_have_count(0, timeout=30_000)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["kinds"]:
            draw_kinds_alone()
        case [report, name]:
            draw_report(Path(report), name)
        case _:
            main()
