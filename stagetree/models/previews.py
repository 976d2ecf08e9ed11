"""Cost previews of studies."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stagetree.models.answer import Answer


class PricedOption(Answer):
    """A value that some trials have, and the steps it costs."""

    field: str = Field(description="its path in the hyper-parameters, such as lr.peak, or max_steps")
    value: Any
    trials: int = Field(description="the number of trials with this value")
    steps: int = Field(description="the steps that only these trials need, and that are saved without the value")


class EstimatedTime(Answer):
    """An estimate of a study's duration from steps measured on its plan."""

    slot_seconds: float = Field(description="the time of all slots, with one device for each stage and without packs")
    makespan_seconds: float = Field(description="the duration on the requested number of slots")
    error: float = Field(
        description="the median relative error of an estimate of a step, over settings, each estimated from the others"
    )
    settings: int = Field(description="the number of measured settings")


class EstimatedMemory(Answer):
    """The peak memory of stages on the plan with the same batch sizes.

    On a GPU it is the memory allocated by torch, without CUDA's own; on a CPU, that of the whole training process.
    """

    gpu: str = Field(description="the kind of GPU; empty for a CPU, or an unknown one")
    bytes: int
    seen: int = Field(description="the number of batch sizes that were measured")
    sizes: int = Field(description="the number of batch sizes in the study")


class PricedRewrite(Answer):
    """Another way to write the study, whose trials share more."""

    name: str = Field(description="horizon, order or peak")
    change: str = Field(description="the difference, and so the question that the study asks instead")
    trials: int
    unique: int = Field(description="its unique steps, as planned")
    saved: float = Field(description="the part of the study's unique steps that it does not take")
    study: dict[str, Any] = Field(description="the study file, which can be submitted")


class Preview(Answer):
    """The cost of a study in steps."""

    trials: int
    requested: int = Field(default=0, description="the steps of the trials, each counted alone")
    unique: int = Field(default=0, description="the unique steps among them")
    known: int = Field(
        default=0, description="the unique steps that are trained already on its plan; 0 without a server"
    )
    merge_rate: float
    by_results: bool = Field(
        default=False,
        description="whether the tuner decides by results: all are equal in a preview, so a run has other numbers",
    )
    alone: int = Field(default=0, description="the steps of all trials, each trained alone to the end")
    saved_by_sharing: float | None = Field(default=None, description="the part of `requested` that sharing saves")
    saved_by_stopping: float | None = Field(
        default=None, description="the part of `alone` that early stopping saves, if all results are equal"
    )
    critical_path_steps: int = Field(description="the lower bound of the duration, for any number of slots")
    makespan_steps: int = Field(description="the duration on the requested number of slots")
    time: EstimatedTime | None = Field(
        default=None, description="an estimate in seconds; null until at least four settings were measured on its plan"
    )
    memory: list[EstimatedMemory] = Field(
        default=[], description="the memory of such stages on its plan, by kind of GPU; for a study without packs"
    )
    packed_makespan_steps: int | None = Field(
        default=None, description="makespan_steps with packs, according to measurements; for a study with packs"
    )
    ranks: dict[str, Any] | None = Field(
        None,
        description="how many `times_faster` several devices are, as measured on a `kind` of device; the `assumed` "
        "numbers take each doubling to be 1.8 times as fast",
    )
    packing: dict[str, Any] | None = Field(
        default=None,
        description="the width of these packs, and the device on which it was measured; without a measurement, a "
        "pack is taken to be as fast as one trial",
    )
    cooldowns: dict[str, int] | None = Field(
        default=None,
        description="the number of `trials` that are cooldowns at rungs, and the `steps` of these after their trunks; "
        "for a study with a `rung_value`",
    )
    merges: dict[str, int] | None = Field(
        default=None,
        description="the number of `trials` that are means of states at rungs, for which no step is trained, and of "
        "the `states` that are saved for them; for a study whose `rung_value` is a merge",
    )
    budget: dict[str, Any] | None = Field(
        default=None,
        description="where a budget `ends` the study: `by` which, after how many `steps`, with how many complete "
        "`trials`; and the `seconds_per_step` from which `max_slot_seconds` would; for a study with a budget",
    )
    slots: int = Field(default=1, description="the requested number of slots")
    choices: list[PricedOption] = Field(
        default=[],
        description="the values of each field in which trials differ, if the tuner does not decide by results",
    )
    rewrites: list[PricedRewrite] = Field(
        default=[], description="nearly the same question written so that trials share more, each planned whole"
    )
    advice: list[str] = Field(default=[], description="changes that would let trials share more, in sentences")
