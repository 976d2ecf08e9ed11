"""A study with and without sharing on one time axis, for the page."""

from __future__ import annotations

from pydantic import Field

from stagetree.models.answer import Answer


class Blocks(Answer):
    """The work of slots, block by block, as columns. Seconds since the first block, without idle times."""

    seconds: float = Field(description="until the last block ends")
    steps: int
    slot: list[int] = Field(description="the row of each block, from 0 on")
    begun: list[float]
    ended: list[float]
    trials: list[int] = Field(description="the number of trials of the study that need the block")
    again: list[bool] = Field(description="whether an earlier block had trained the same steps for another trial")


class SideBySide(Answer):
    """The study as it ran, and a simulation in which each trial trains alone."""

    slots: int = Field(description="the number of rows: the most slots that trained for it at once")
    seconds_per_step: float = Field(
        description="the pace of a slot, from which `alone` is computed; 0 while that is unknown"
    )
    shared: Blocks = Field(description="as it happened")
    alone: Blocks = Field(description="computed: the same trials and decisions, each trial trained from its first step")
    text: str = Field(description="both in words")
