"""What an agent reads to run a study to an answer: by the tools of `stagetree mcp`, and by the command line.

    python benchmarks/agent_tokens.py [--trials N] [--rounds N]

Both price a study of ASHA, submit it, wait for its end, look at its best trials, compare two, branch one off at a
price, wait for it, look at it, write a note and replay the study, on a stack of their own with two slots. Counted is
what each reads, four characters a token: the list of tools and their answers, or the help of the commands used and
their output, as tables and as JSON. The agent is that of `tests/e2e/scripted_agent.py`; it has no model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from app.embedded.stack import Embedded  # noqa: E402
from tests.e2e.scripted_agent import CHARACTERS_OF_A_TOKEN, ScriptedAgent, conclude, connect  # noqa: E402

TRAINER = """
from stagetree import Trainer

class Slope(Trainer):
    name = "slope"

    def __init__(self, *, seed, device, tag=""):
        self.n = 0.0

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        self.n += self.lr * (1 - self.n)

    def evaluate(self):
        return {"score": self.n}

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]
"""
MOST_TOKENS = 20_000


def study(trials: int, tag: str) -> dict[str, Any]:
    tuner = {"kind": "asha", "num_trials": trials, "min_steps": 5, "max_steps": 20, "reduction_factor": 2}
    tuner |= {"sampling_seed": 1}
    space = {"lr": {"loguniform": [0.001, 0.5]}}
    named = {"name": f"slope-{tag}", "trainer": "slope", "trainer_args": {"tag": tag}, "metric": "score", "mode": "max"}
    return {**named, "space": space, "tuner": tuner}


@dataclass
class Reading:
    """Tokens and calls of one way."""

    way: str
    learning: int = 0
    reading: int = 0
    calls: int = 0

    @property
    def tokens(self) -> int:
        return self.learning + self.reading


class CommandLine:
    """An agent that calls commands. options: added to each, such as `-o json`."""

    HELP = ("preview", "submit", "wait", "study", "trials", "trial", "branch", "note", "replay")

    def __init__(self, folder: Path, url: str, way: str, *options: str) -> None:
        self._folder, self._url, self._options, self.read = folder, url, options, Reading(way)

    def _run(self, *arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "stagetree", *arguments]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "STAGETREE_URL": self._url}
        done = subprocess.run(command, cwd=self._folder, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def call(self, *arguments: str) -> str:
        plain = self._options if arguments[0] != "note" else ()
        out = self._run(*arguments, *plain)
        self.read.calls += 1
        self.read.reading += len(out) // CHARACTERS_OF_A_TOKEN
        return out

    def conclude(self, spec: dict[str, Any]) -> Reading:
        """The same course as that of `conclude` of the tools."""
        self.read.learning = sum(len(self._run(name, "--help")) for name in self.HELP) // CHARACTERS_OF_A_TOKEN
        file = self._folder / f"{spec['name']}.json"
        file.write_text(json.dumps(spec))
        name = str(spec["name"])
        self.call("preview", str(file), "--trainers", "slope.py")
        self.call("submit", str(file))
        self.call("wait", name)
        self.call("study", name)
        self.call("trials", name, "--sort", "value")
        best = json.loads(self._run("study", name, "-o", "json"))["best"]["trial"]
        for number in (best, (best + 1) % spec["tuner"]["num_trials"]):
            self.call("trial", name, str(number))
        branch = ("branch", name, str(best), "--at", "20", "--steps", "30", "--set", "lr=0.01")
        self.call(*branch, "--preview")
        self.call(*branch)
        self.call("wait", name)
        self.call("trial", name, str(spec["tuner"]["num_trials"]))
        self.call("note", name, "the best is known")
        self.call("replay", name)
        return self.read


async def by_tools(url: str, spec: dict[str, Any]) -> Reading:
    async with connect(url, sys.executable) as client:
        agent = ScriptedAgent(client)
        await agent.learn()
        learning = agent.tokens
        agent.characters = 0
        await conclude(agent, spec)  # which reads the list of tools once more
        return Reading("tools", learning, agent.tokens - learning, agent.calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "slope.py").write_text(TRAINER)
        stack = Embedded(folder / "store", 2, [str(folder / "slope.py")])
        stack.start(await_slots=True)
        try:
            for number in range(asked.rounds):
                report(readings(folder, stack.url, asked.trials, number))
        finally:
            stack.stop()


def readings(folder: Path, url: str, trials: int, number: int) -> list[Reading]:
    """One round: each way on a plan of its own."""
    tools = asyncio.run(by_tools(url, study(trials, f"tools-{number}")))
    tables = CommandLine(folder, url, "tables").conclude(study(trials, f"tables-{number}"))
    documents = CommandLine(folder, url, "JSON", "-o", "json").conclude(study(trials, f"json-{number}"))
    return [tools, tables, documents]


def report(ways: list[Reading]) -> None:
    print("way     to learn  to read  tokens  calls")
    for each in ways:
        print(f"{each.way:<7} {each.learning:>8} {each.reading:>8} {each.tokens:>7} {each.calls:>6}")
    assert ways[0].tokens < MOST_TOKENS, f"the tools took {ways[0].tokens} tokens"


if __name__ == "__main__":
    main()
