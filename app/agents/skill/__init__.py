"""The skill: a text by which agents learn to use stagetree, and where each kind of agent looks for it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

TEXT = Path(__file__).parent / "AGENTS.md"

DESCRIPTION = (
    "Run, watch and extend hyper-parameter studies with stagetree: price them in steps, submit, wait for decisions, "
    "compare trials against noise, branch trials. Use it for sweeps, learning-rate schedules and training experiments."
)


class Agent(StrEnum):
    """A kind of agent."""

    claude = "claude"
    codex = "codex"
    cursor = "cursor"
    generic = "generic"


PLACES = {
    Agent.claude: ".claude/skills/stagetree/SKILL.md",
    Agent.codex: ".agents/skills/stagetree/SKILL.md",
    Agent.cursor: ".cursor/rules/stagetree.mdc",
    Agent.generic: "AGENTS.md",
}
"""Where each looks for it, below a project or a home folder."""

HEADERS = {
    Agent.claude: f"---\nname: stagetree\ndescription: {DESCRIPTION!r}\n---\n\n",
    Agent.codex: f"---\nname: stagetree\ndescription: {DESCRIPTION!r}\n---\n\n",
    Agent.cursor: f"---\ndescription: {DESCRIPTION!r}\nalwaysApply: false\n---\n\n",
    Agent.generic: "",
}
"""The lines before the text, by which an agent decides when to read the rest."""


def skill_text(agent: Agent) -> str:
    """The file for a kind of agent."""
    return HEADERS[agent] + TEXT.read_text(encoding="utf-8")


def is_skill(text: str) -> bool:
    """Whether a file is a skill of this or of another version of stagetree."""
    return "# Hyper-parameter studies with stagetree\n" in text
