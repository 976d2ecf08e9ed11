"""A notebook in a kernel of its own: a trainer in a cell, a service that trains it, and what the cells show."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.e2e.test_local import STUDY, TRAINER

pytestmark = pytest.mark.slow(together=True)

UNMEASURED = STUDY.replace('metric="n"', 'metric="m"')
CELLS = {
    "trainer": TRAINER,
    "server": "import stagetree\nserver = stagetree.local(slots=1)\nserver",
    "created": f"study = server.create(trainer=Count, {STUDY})\nstudy",
    "waited": "study.wait()",
    "frame": "study.dataframe()",
    "history": "study.plot.history()",
    "plot": "study.plot",
    "wrong": f"""
wrong = server.create(trainer=Count, {UNMEASURED})
try:
    wrong.wait(show=False)
except stagetree.FailedStudy as failed:
    assert failed.reason in str(failed)
wrong""",
    "stopped": "server.stop()\nserver",
}
Shown = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def cell_outputs(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """What each cell shows, by its media types."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in CELLS.values()])
    folder: Path = tmp_path_factory.mktemp("notebook")
    with TemporaryDirectory(prefix="st-") as place:  # short, as a socket's path must be
        # No ports: one that was free when it was chosen may not be when the kernel listens there.
        kernel = KernelManager(transport="ipc", connection_file=f"{place}/kernel.json")
        NotebookClient(notebook, km=kernel, timeout=600, startup_timeout=600).execute(cwd=str(folder))
    return {
        name: [output["data"] for output in cell.outputs if "data" in output]
        for name, cell in zip(CELLS, notebook.cells, strict=True)
    }


def test_while_it_is_trained(cell_outputs: Shown) -> None:
    """One place of the cell's output, updated in place: bars, the best trial; then the study itself."""
    live, study = cell_outputs["waited"]
    assert live["text/plain"].startswith("count-") and " completed · 2/2 trials" in live["text/plain"]
    assert '<progress value="2" max="2"></progress> 2/2' in live["text/html"]
    assert '<progress value="6" max="6"></progress> 6/6' in live["text/html"]
    assert "n <b>6</b> (trial 1 after 3 steps) lr=2" in live["text/html"]
    assert study["text/html"].count("<tr>") == 3
    assert "completed, 2 trials, best n 6 (trial 1 after 3 steps)" in study["text/plain"]


def test_results(cell_outputs: Shown) -> None:
    assert "n@3" in cell_outputs["frame"][0]["text/html"]
    assert any("image/png" in data for data in cell_outputs["history"])
    assert "history, curves" in cell_outputs["plot"][0]["text/plain"]


def test_a_study_that_failed_says_why(cell_outputs: Shown) -> None:
    [study] = cell_outputs["wrong"]
    for kind in ("text/plain", "text/html"):
        assert "failed" in study[kind] and "the trainer does not report 'm'" in unescape(study[kind])


def test_the_service(cell_outputs: Shown) -> None:
    assert "slots: 1" in cell_outputs["server"][0]["text/plain"]
    assert "stopped" in cell_outputs["stopped"][0]["text/plain"]
