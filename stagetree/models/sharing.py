"""A study with and without sharing, on one clock. For the page; a client does not load it."""

from __future__ import annotations

from pydantic import Field

from stagetree.models.answer import Answer


class Blocks(Answer):
    """What slots did, block by block, by column. Seconds since the first block, without idle times."""

    seconds: float = Field(description="until the last block ends")
    steps: int
    slot: list[int] = Field(description="the row of each block, from 0 on")
    begun: list[float]
    ended: list[float]
    trials: list[int] = Field(description="how many trials of the study need what was trained")
    again: list[bool] = Field(description="whether an earlier block of another trial had trained the same steps")


class SideBySide(Answer):
    """The study as it was, and as its trials would have been trained alone, which is computed."""

    slots: int = Field(description="rows: the most slots that trained for it at once")
    seconds_per_step: float = Field(
        description="of a slot, by which `alone` is computed; 0 as long as that is not known"
    )
    shared: Blocks = Field(description="as it happened")
    alone: Blocks = Field(description="computed: the same trials and decisions, each trial trained from its first step")
    text: str = Field(description="both in words")
