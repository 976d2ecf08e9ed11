"""An agent without a model: it knows the descriptions of the tools, and runs a study to an answer.

It finds each tool by words of its description, and the arguments that it fills in by their schema. It counts the
characters of everything that it reads: the list of tools and each answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mcp import Client, StdioServerParameters

Json = dict[str, Any]
CHARACTERS_OF_A_TOKEN = 4
OVER = ("completed", "failed", "cancelled")
MOST_WAITS = 200


class Refused(Exception):
    """A tool has refused; the message is its sentence."""


@dataclass
class ScriptedAgent:
    """characters: read until now. calls: of tools."""

    client: Client
    tools: list[Any] = field(default_factory=list)
    characters: int = 0
    calls: int = 0
    refusals: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.characters // CHARACTERS_OF_A_TOKEN

    async def learn(self) -> None:
        """Read the list of tools."""
        self.tools = list((await self.client.list_tools()).tools)
        self.characters += sum(len(tool.model_dump_json(exclude_none=True)) for tool in self.tools)
        self.characters += len(self.client.instructions or "")

    def find(self, words: str) -> Any:
        """The tool whose description begins with these words."""
        (tool,) = (each for each in self.tools if each.description.startswith(words))
        return tool

    async def call(self, words: str, **known: Any) -> Json:
        """Call a tool with the `known` values of its arguments. Raises `Refused`."""
        tool = self.find(words)
        arguments = {name: value for name, value in known.items() if name in tool.input_schema["properties"]}
        assert set(tool.input_schema.get("required", ())) <= set(arguments), tool.name
        result = await self.client.call_tool(tool.name, arguments)
        (content,) = result.content
        self.calls += 1
        self.characters += len(content.text)
        if result.is_error:
            self.refusals.append(content.text)
            raise Refused(content.text)
        return dict(json.loads(content.text))

    async def wait(self, study: str, cursor: int, at_decision: Callable[[], Awaitable[None]] | None = None) -> Json:
        """Wait until the study is over, also while its server is away. at_decision: called once, at the first."""
        for _ in range(MOST_WAITS):
            try:
                waited = await self.call("Wait for the next decision", study=study, cursor=cursor)
            except Refused as problem:
                assert "no stagetree server answers" in str(problem), problem
                continue
            cursor = waited["cursor"]
            if str(waited["state"]).startswith(OVER):
                return waited
            if at_decision is not None:
                await at_decision()
                at_decision = None
        raise AssertionError("the study did not end")


@dataclass(frozen=True)
class Conclusion:
    """The agent's answer, and the answers that led to it."""

    study: str
    best: int
    verification: str
    price: str
    answers: list[Json]


def trials_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"trial (\d+)", text)]


async def conclude(
    agent: ScriptedAgent, spec: Json, between: Callable[[], Awaitable[None]] | None = None
) -> Conclusion:
    """Run a study, compare its best two trials, and decay the best one at the price that the tool says.

    between: called while the study runs, after its first decision.
    """
    await agent.learn()
    priced = await agent.call("Price a study", spec=spec)
    submitted = await agent.call("Submit a study", spec=spec, key="the-one")
    study = submitted["study"]
    waited = await agent.wait(study, submitted["cursor"], between)
    seen = await agent.call("Show a study", study=study)
    first, second = (trials_in(line)[0] for line in seen["best"][:2])
    compared = await agent.call("Compare two trials", study=study, trial=first, other=second)
    known = {"study": study, "trial": first, "at": 20, "steps": 30, "hp": {"lr": 0.01}}
    asked = await agent.call("Branch a new trial", **known)
    added = await agent.call("Branch a new trial", **known, confirm=asked["confirm"])
    longer = await agent.wait(study, seen["cursor"])
    shown = await agent.call("Show a trial", study=study, trial=trials_in(added["added"])[0])
    noted = await agent.call("Write a note", study=study, text=f"trial {first} is best; {compared['difference']}")
    replayed = await agent.call("Derive every decision", study=study)
    answers = [priced, submitted, waited, seen, compared, asked, added, longer, shown, noted, replayed]
    return Conclusion(study, first, str(longer["verification"]), str(priced["price"]), answers)


def connect_stdio(url: str, python: str) -> StdioServerParameters:
    """The tools as an agent's program starts them."""
    return StdioServerParameters(command=python, args=["-P", "-m", "stagetree", "mcp", "--server", url])


def connect(url: str, python: str) -> Client:
    return Client(connect_stdio(url, python), read_timeout_seconds=120)
