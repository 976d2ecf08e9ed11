"""An agent that knows the descriptions of the tools alone runs a study to an answer, over a restart of the server."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_agent import ScriptedAgent, conclude, connect
from stacks import TOYS

from app.embedded.stack import Embedded
from stagetree.client import Client

SPEC: dict[str, Any] = {
    "name": "which-decay",
    "trainer": "toy",
    "trainer_args": {"seconds": 0.2, "tag": "agent"},
    "metric": "score",
    "mode": "max",
    "space": {"lr": [0.1, {"family": "multistep", "init": 0.1, "milestones": [10], "gamma": 0.1}, 0.2, 0.3]},
    "tuner": {"kind": "asha", "num_trials": 4, "min_steps": 5, "max_steps": 20, "reduction_factor": 2},
}


def free_port() -> int:
    """One that no connection from this machine takes while the server is away: these have higher ones."""
    while True:
        try:
            with socket.create_server(("127.0.0.1", random.randrange(20_000, 30_000))) as free:
                return int(free.getsockname()[1])
        except OSError:
            continue


@pytest.mark.slow
def test_an_agent_reaches_an_answer_over_a_restart_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGETREE_PROOFS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    port = free_port()
    stacks = [Embedded(tmp_path, 1, TOYS, port=port)]
    stacks[0].start(await_slots=True)

    async def restart() -> None:
        """In this thread: the processes of a stack end with the one that started them."""
        stacks[-1].stop()
        stacks.append(Embedded(tmp_path, 1, TOYS, port=port))
        stacks[-1].start()

    async def play() -> tuple[ScriptedAgent, Any]:
        async with connect(f"http://127.0.0.1:{port}", sys.executable) as client:
            agent = ScriptedAgent(client)
            return agent, await conclude(agent, SPEC, restart)

    try:
        agent, conclusion = asyncio.run(play())
        with Client(stacks[-1].url) as client:
            study = client.study(conclusion.study)
            events = list(client.events(conclusion.study))
    finally:
        stacks[-1].stop()
    assert len(stacks) == 2 and study.state == "completed"
    assert conclusion.best in {trial.trial for trial in study.trials if trial.trained >= 20}
    assert agent.tokens < 20_000 and agent.calls < 40
    for answer in conclusion.answers:
        assert ("price" in answer) != ("cost" in answer) and answer["verification"]
    assert conclusion.answers[-1]["identical"] is True
    assert {event.by for event in events if event.type in ("StudySubmitted", "NoteAdded")} == {"agent"}
