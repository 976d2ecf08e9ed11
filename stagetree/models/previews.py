"""Cost previews of studies."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stagetree.models.answer import Answer


class PricedOption(Answer):
    """A value that some trials have, and the steps it costs."""

    field: str = Field(description="where it stands in the hyper-parameters, such as lr.peak, or max_steps")
    value: Any
    trials: int = Field(description="how many trials have it")
    steps: int = Field(description="the steps that only they train: so many fewer without that value")


class EstimatedTime(Answer):
    """An estimate of a study's duration from steps measured on its plan."""

    slot_seconds: float = Field(description="of all slots, one device a stage and no packs")
    makespan_seconds: float = Field(description="the same on the slots asked about")
    error: float = Field(
        description="the part of itself by which an estimate of a step is off, the median over settings, each "
        "estimated from the others"
    )
    settings: int = Field(description="how many settings were measured")


class EstimatedMemory(Answer):
    """The peak memory of stages on the plan with the same batch sizes.

    On a GPU it is the memory allocated by torch, without CUDA's own; on a CPU, that of the whole training process.
    """

    gpu: str = Field(description="the kind of GPU; empty for a CPU, or an unknown one")
    bytes: int
    seen: int = Field(description="of how many sizes of batches it is")
    sizes: int = Field(description="how many the study has")


class Preview(Answer):
    """The cost of a study in steps."""

    trials: int
    requested: int = Field(default=0, description="the steps that the trials take, each counted alone")
    unique: int = Field(default=0, description="the different steps among them: what is shared, once")
    merge_rate: float
    by_results: bool = Field(
        default=False, description="whether the tuner goes by results, which are all equal here: a run's numbers differ"
    )
    alone: int = Field(default=0, description="the steps of all trials, each trained alone to the end")
    saved_by_sharing: float | None = Field(default=None, description="the part of `requested` that sharing saves")
    saved_by_stopping: float | None = Field(
        default=None, description="the part of `alone` that early stopping saves, if all results are equal"
    )
    critical_path_steps: int = Field(description="no number of slots is faster")
    makespan_steps: int = Field(description="the time it takes on the slots asked about")
    time: EstimatedTime | None = Field(
        default=None, description="the same in seconds; null until at least four settings were measured on its plan"
    )
    memory: list[EstimatedMemory] = Field(
        default=[], description="by kind of GPU, the memory that such stages took on its plan; of a study without packs"
    )
    packed_makespan_steps: int | None = Field(
        default=None, description="the same with packs, by what was measured of them; of a study that packs"
    )
    ranks: dict[str, Any] | None = Field(
        None,
        description="how many `times_faster` several devices are, by what was measured on a `kind` of them; for the "
        "`assumed` numbers, each doubling is taken to be 1.8 times as fast",
    )
    packing: dict[str, Any] | None = Field(
        default=None,
        description="how wide these packs are, and on which device that was measured; without one, it was not, and a "
        "pack is taken to take no longer than one trial",
    )
    cooldowns: dict[str, int] | None = Field(
        default=None,
        description="how many `trials` are cooldowns at rungs, and the `steps` that these take behind their trunks; of "
        "a study with a `rung_value`",
    )
    budget: dict[str, Any] | None = Field(
        default=None,
        description="where a budget `ends` the study: `by` which, after how many `steps`, with how many `trials` at "
        "their end; and the `seconds_per_step` from which on `max_slot_seconds` would; of a study that has one",
    )
    slots: int = Field(default=1, description="how many slots were asked about")
    choices: list[PricedOption] = Field(
        default=[], description="each value of each field in which trials differ, where the tuner goes by no results"
    )
    advice: list[str] = Field(default=[], description="what would let trials share more, in sentences")
