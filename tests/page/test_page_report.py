"""A study as one file: what `stagetree report` writes shows every view without a server, and asks for nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import turn_to
from playwright.sync_api import Page, expect
from stacks import Service
from toys import grid

ASHA = {"kind": "asha", "num_trials": 6, "min_steps": 2, "max_steps": 8, "reduction_factor": 2, "sampling_seed": 1}
VIEWS = {
    "": "Best trial",
    "rung-tree": "Rung tree",
    "trials": "6 trials",
    "curves": "Learning curves",
    "rungs": "Rung ladder",
    "tree": "nodes",
    "slots": "Slots over time",
    "relations": "Sequences by shape",
    "film": "Film",
    "events?event=1": "Events",
    "compare?trials=0,1": "Schedules",
    "trials/1": "Trial 1",
}
"""Each with a heading that it has."""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--public"]], ids=["whole", "public"])
def test_a_report_shows_every_view_without_a_server(
    open_page: Callable[..., Page], stack: Service, tmp_path: Path, options: list[str]
) -> None:
    study = str(stack.run(grid("page-report", tuner=ASHA))["study"])
    file = tmp_path / "report.html"
    command = [sys.executable, "-m", "stagetree", "report", study, "--server", stack.url, "-o", str(file), *options]
    subprocess.run(command, check=True)
    page, asked = open_page("about:blank"), list[str]()
    page.context.set_offline(True)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    for view, heading in VIEWS.items():
        turn_to(page, f"#/studies/{study}/{view}")
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert page.get_by_role("link", name="the study at this event").count() == 0
