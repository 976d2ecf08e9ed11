"""All tools, in the order in which an agent needs them."""

from __future__ import annotations

from app.agents import status, studies, trials
from app.agents.tool import Tool

INSTRUCTIONS = (
    "stagetree runs hyper-parameter studies, and trains the steps that trials share once. Price a study with "
    "`preview`, `submit` it, and call `wait` with the answered `cursor` until it is over. The server keeps each study "
    "and each decision, so `status` has everything after a break. Every answer says its price or its cost, and how far "
    "its numbers are verified. Write what you learn with `note`."
)


def _named(*tools: Tool) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


TOOLS = _named(
    Tool("preview", studies.preview, studies.PreviewArguments, reads=True),
    Tool("submit", studies.submit, studies.SubmitArguments, reads=False),
    Tool("status", status.status, status.StatusArguments, reads=True),
    Tool("wait", status.wait, status.StatusArguments, reads=True),
    Tool("trial", trials.trial, trials.TrialArguments, reads=True),
    Tool("compare", trials.compare, trials.CompareArguments, reads=True),
    Tool("branch", trials.branch, trials.BranchArguments, reads=False),
    Tool("enqueue", trials.enqueue, trials.EnqueueArguments, reads=False),
    Tool("stop", studies.stop, studies.StopArguments, reads=False),
    Tool("note", studies.note, studies.NoteArguments, reads=False),
    Tool("replay", studies.replay, studies.ReplayArguments, reads=True),
)
