"""`stagetree skill install`: each kind of agent gets the text where it looks for it; nothing else is overwritten."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from commandline import Stagetree
from typer.main import get_command

from app.agents.serving import TOOLS
from app.agents.skill import PLACES, TEXT, Agent, is_skill
from app.cli.commands import app as cli
from stagetree.spec import StudySpec


@pytest.mark.parametrize("agent", Agent)
def test_each_agent_finds_its_file(agent: Agent, here: Path, stagetree: Stagetree) -> None:
    said = stagetree("skill", "install", "--for", agent, "--to", "project")
    file = here / "project" / PLACES[agent]
    assert said.code == 0 and str(file.relative_to(here)) in said.out
    text = file.read_text()
    assert is_skill(text) and text.endswith(TEXT.read_text())
    if agent is not Agent.generic:
        header = yaml.safe_load(text.split("---\n")[1])
        assert "stagetree" in header["description"] and len(header["description"]) < 1024
    assert stagetree("skill", "install", "--for", agent, "--to", "project").code == 0, "an older one is replaced"


def test_a_file_of_others_is_not_overwritten(here: Path, stagetree: Stagetree) -> None:
    (here / "AGENTS.md").write_text("# Mine\n")
    said = stagetree("skill", "install")
    assert said.code == 4 and "AGENTS.md is there already" in said.err
    assert (here / "AGENTS.md").read_text() == "# Mine\n"


def test_the_skill_names_existing_commands() -> None:
    text = TEXT.read_text()
    assert set(TOOLS) <= set(re.findall(r"`(\w+)`", text))
    commands = get_command(cli).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"`stagetree (\w+)", text)) <= set(commands)
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert StudySpec.from_dict(json.loads(block)).name == "decays"
    assert len(text) < 1_500 * 4
