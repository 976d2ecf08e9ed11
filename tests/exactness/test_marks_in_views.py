"""Every way to look at a study shows the mark of a trial that may be wrong, and none shows one where all is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from stacks import Service

import stagetree
from app.embedded.stack import Embedded
from stagetree.client import Client
from stagetree.sinks.addresses import open_sink
from stagetree.sinks.follower import follow

pytestmark = pytest.mark.slow(together=True)

TRAINERS = """
import torch
from stagetree import Trainer


class Keeps(Trainer):
    name = "keeps"

    def __init__(self, *, seed, device):
        self.weight, self.count = torch.zeros(2), 0

    def setup(self, hp):
        self.rate = hp["lr"]

    def train(self):
        self.count += 1
        self.weight = self.weight + self.rate * self.count

    def evaluate(self):
        return {"value": float(self.weight.sum())}

    def state_dict(self):
        return {"model": {"w": self.weight}, "count": self.count}

    def load_state_dict(self, state):
        self.weight, self.count = state["model"]["w"], state["count"]


class Forgets(Keeps):
    name = "forgets"

    def state_dict(self):
        return {"model": {"w": self.weight}}

    def load_state_dict(self, state):
        self.weight = state["model"]["w"]
"""
WORDS = ("may be wrong: ", "may differ: ", "unchecked: it ", "unchecked: trial")
"""One of them is in every mark."""

SHARED, ALONE = (1, 2), 0
"""The trials that share steps, and the one that shares none, and that no mark should stand beside."""

COMMANDS = {
    "watch": ("watch",),
    "trials": ("trials",),
    "trials -o csv": ("trials", "-o", "csv"),
    "trials -o json": ("trials", "-o", "json"),
    "trial": ("trial",),
    "report": ("report", "--to", "report.html"),
    "film": ("film", "--to", "film.svg"),
    "weights": ("weights", "--to", "weights.safetensors"),
}


@pytest.fixture(scope="module")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "doors.py").write_text(TRAINERS)
    embedded = Embedded(folder / "kept", 2, [str(folder / "doors.py")])
    embedded.start(await_slots=True)
    with Client(embedded.url) as client:
        yield Service(client)
    embedded.stop()


def spec(trainer: str) -> dict[str, Any]:
    """A trial that shares nothing, and two that part at step 6."""
    rates = [0.01, 0.1, {"family": "values", "values": [0.1, 0.2], "milestones": [6]}]
    trials = [{"hp": {"lr": rate}, "steps": 12} for rate in rates]
    tuner = {"kind": "trials", "trials": trials}
    more = {"metric": "value", "mode": "max", "eval_every": 3, "inexact": "allow", "tuner": tuner}
    return {"name": f"doors-{trainer}", "trainer": trainer, **more}


def collect_views(running_stack: Service, trainer: str, folder: Path) -> tuple[str, dict[str, str]]:
    """The study, and what each door shows of it."""

    def run_command(*arguments: str) -> str:
        command = [sys.executable, "-m", "stagetree", *arguments, "--server", running_stack.url]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    (folder / "study.yaml").write_text(json.dumps(spec(trainer)))
    shown = {"run": run_command("run", "study.yaml")}
    study = next(each["study"] for each in running_stack.client.studies() if each["name"] == f"doors-{trainer}")
    shown |= {name: run_command(words[0], study, *words[1:]) for name, words in COMMANDS.items()}
    shown["studies"] = run_command("studies")
    shown["report"] += (folder / "report.html").read_text()
    shown["film"] += " ".join(re.sub("<[^>]*>", " ", (folder / "film.svg").read_text()).split())
    with safe_open(folder / "weights.safetensors", "pt") as file:
        shown["metadata of the weights"] = json.dumps(file.metadata())
    with stagetree.Study.open(study, url=running_stack.url) as there:
        results = there.results()
        shown |= {"study in a notebook": there._repr_html_(), "results in a notebook": results._repr_html_()}
        shown |= {"data frame": results.dataframe().to_csv(), "results": repr(results)}
    follow(running_stack.client, study, [open_sink(f"tensorboard:{folder / 'events'}")])
    files = (path for path in (folder / "events").rglob("*") if path.is_file())
    shown["tensorboard"] = b"".join(path.read_bytes() for path in files).decode("utf-8", "replace")
    shown["REST"] = json.dumps(running_stack.client.study(study).to_json(), ensure_ascii=False)
    return study, shown


def test_an_inexact_trainer_is_marked_at_every_door(running_stack: Service, tmp_path: Path) -> None:
    study, shown = collect_views(running_stack, "forgets", tmp_path)
    answer = running_stack.client.study(study)
    trials = {trial["trial"]: trial.get("exactness", "") for trial in running_stack.client.trials(study)}
    best = answer["best"]["trial"]
    mark, verdict = trials[best], answer["exactness"]["text"]
    assert trials[ALONE] == "" and best in SHARED and answer["best"]["exactness"] == mark
    assert all(trials[each].startswith("may be wrong: the trainer is not exact: ") for each in SHARED)
    assert answer["story"]["lines"][0].endswith(f" Its value {mark}.")
    assert answer["exactness"]["verdict"] == "inexact" and mark.partition(": ")[0] in verdict
    of_study = {"studies", "study in a notebook", "results", "results in a notebook"}
    flat = {name: text.replace("&#x27;", "'").replace("&quot;", '"') for name, text in shown.items()}
    assert [name for name in flat if (verdict if name in of_study else mark[:60]) not in flat[name]] == []
    assert shown["trials -o csv"].count(mark[:60]) == len(SHARED)
    assert "  may be wrong  " in shown["run"] and "  may be wrong  " in shown["trials"], "in a column"


def test_a_right_trainer_has_no_mark_at_any_door(running_stack: Service, tmp_path: Path) -> None:
    study, shown = collect_views(running_stack, "keeps", tmp_path)
    exactness = running_stack.client.study(study)["exactness"]
    assert exactness["verdict"] in ("checked", "verified") and not exactness["mark"]
    shown["studies"] = next(line for line in shown["studies"].splitlines() if line.startswith(study))
    assert [(name, word) for name, text in shown.items() for word in WORDS if word in text] == []
    assert "exactness" not in shown["metadata of the weights"] and "exactness" not in shown["data frame"]
