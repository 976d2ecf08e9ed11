"""Inputs of a study's trainer besides hyper-parameters: initial weights, data files and devices.

The content of these files is part of the study (docs/decisions/0037-what-is-read.md), so the server fingerprints it on
submission. The shards of a batch are part of the study too; the number of devices is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from stagetree.limits import DATA_SEED, MOST_SHARDS
from stagetree.sequences import SequenceError
from stagetree.spec.errors import FieldError, shorten
from stagetree.spec.fields import Count, SpecPart, Text, as_json

MOST_INPUTS = 100
"""How many paths a study may name."""

MOST_REPEATS = 64


def _as_trial(value: Any) -> Any:
    """A trial number or "best"."""
    if value is None or value == "best" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise SequenceError("", f"must be best, or the number of a trial, got {shorten(value)}")


FilePath = Annotated[str, Field(min_length=1, max_length=4096)]
Inputs = Annotated[list[FilePath], Field(max_length=MOST_INPUTS)]
WhichTrial = Annotated[int | str | None, PlainValidator(_as_trial, json_schema_input_type=int | str | None)]


class BeginFrom(SpecPart):
    """Initial weights for every trial of a study: from a file, a folder, or a trial of another study."""

    file: FilePath | None = Field(
        default=None, description="a file of weights: safetensors, a state dict of torch.save, or a checkpoint"
    )
    dcp: FilePath | None = Field(
        default=None, description="a folder that torch.distributed.checkpoint wrote, of which the tensors are taken"
    )
    study: Text | None = Field(default=None, description="the id of a study on the same server")
    trial: WhichTrial = Field(default=None, description="best, or the number of a trial of that study; by default best")
    step: Count | None = Field(
        default=None,
        description="a step at which its state is kept, by default the one where its value was measured; of a file or "
        "a folder, the step of the program that wrote it, which is shown beside results",
    )
    state: bool = Field(
        default=False, description="true for all of a checkpoint, optimizer and generators too; false for its weights"
    )

    @model_validator(mode="after")
    def _check_one(self) -> BeginFrom:
        if sum(each is not None for each in (self.file, self.dcp, self.study)) != 1:
            raise SequenceError("", "must have one of file, dcp and study")
        if self.study is None and self.trial is not None:
            raise SequenceError("trial", "must be left out beside file and dcp: it is one of a study")
        if self.dcp is not None and self.state:
            raise SequenceError("state", "must be left out beside dcp: what another program wrote are weights")
        return self


def absolute(values: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """Make the paths in a study's JSON absolute, relative to `folder`."""
    fields, begin, inputs = dict(values), values.get("begin_from"), values.get("inputs")
    if isinstance(begin, Mapping):
        paths = {name: begin[name] for name in ("file", "dcp") if isinstance(begin.get(name), str)}
        fields["begin_from"] = {**begin, **{name: _absolute(path, folder) for name, path in paths.items()}}
    if isinstance(inputs, list):
        fields["inputs"] = [_absolute(each, folder) if isinstance(each, str) and each else each for each in inputs]
    return fields


def _absolute(path: str, folder: str | Path) -> str:
    return os.path.abspath(os.path.join(folder, os.path.expanduser(path))) if path else path


def as_ranks(value: Any) -> Any:
    """How many devices a stage may use: a power of two, or an object with `least` and `most`."""
    ends = value if isinstance(value, Mapping) else {"least": value, "most": value}
    if ends.keys() <= {"least", "most"} and "most" in ends and all(map(_is_power_of_two, ends.values())):
        least, most = ends.get("least", 1), ends["most"]
        if least <= most <= MOST_SHARDS:
            return most if least == most else {"least": least, "most": most}
    raise SequenceError("", f"must be 1, 2, 4, 8, ..., or an object with least and most of these, got {shorten(value)}")


def as_shards(value: Any) -> Any:
    """The number of parts in which each batch is computed."""
    if value is None or (_is_power_of_two(value) and 2 <= value <= MOST_SHARDS):
        return value
    raise SequenceError("", f"must be a power of two from 2 to {MOST_SHARDS}, got {shorten(value)}")


def _is_power_of_two(value: Any) -> bool:
    return _is_whole(value, 1) and value & (value - 1) == 0


Ranks = Annotated[
    Annotated[int, Field(ge=1)] | dict[str, int],
    BeforeValidator(as_ranks),
    Field(description="1, 2, 4, 8, ..., or an object with least and most: how many devices of a machine train a stage"),
]
Parallel = Annotated[
    Literal["tree", "fsdp", "ddp"],
    Field(
        description="tree, where each device has the whole model; fsdp, where each has a part of its parameters; or "
        "ddp, torch's own sums, where the number of ranks is part of the results"
    ),
]

FreshProcesses = Annotated[
    Literal["auto", "always"],
    Field(
        description="auto, or always to begin each chain in a process in which nothing was trained, even where that "
        "takes more than 2 % of its time"
    ),
]


def as_repeats(value: Any) -> Any:
    """How often each trial is trained: a count, or an object with `seeds` and the step at which repeats branch."""
    parts = value if isinstance(value, Mapping) else {} if isinstance(value, list) else {"seeds": value}
    seeds, begin = parts.get("seeds", 0), parts.get("from", "start")
    begin = 0 if begin == "start" else begin
    if parts.keys() <= {"seeds", "from"} and _are_seeds(seeds) and (begin == "branch" or _is_whole(begin, 0)):
        return {"seeds": seeds, "from": begin} if isinstance(seeds, list) or (begin and seeds > 1) else seeds
    raise SequenceError(
        "",
        f"must be a number from 1 to {MOST_REPEATS}, or an object with seeds, which is one or a list of 2 to "
        f"{MOST_REPEATS} different values of data_seed, and from, which is start, branch or a step, "
        f"got {shorten(value)}",
    )


def _are_seeds(seeds: Any) -> bool:
    """Whether this is a number of repeats, or a list of their seeds."""
    if isinstance(seeds, list):
        is_each_a_seed = all(_is_whole(seed, 0) for seed in seeds)
        return is_each_a_seed and 2 <= len(seeds) <= MOST_REPEATS and len(set(seeds)) == len(seeds)
    return _is_whole(seeds, 1) and seeds <= MOST_REPEATS


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


Repeats = Annotated[
    Annotated[int, Field(ge=1)] | dict[str, int | str | list[int]],
    BeforeValidator(as_repeats),
    Field(
        description="how many times each trial is trained, each with a data_seed of its own, or an object with seeds, "
        "their number or a list of them, and from: the mean is its result"
    ),
]


def check_repeats(repeats: int | Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises `FieldError` if trials already have the hyper-parameter that repeats add."""
    if repeats != 1 and DATA_SEED in names:
        raise FieldError("repeats", f"must be left out where trials have a {DATA_SEED}: each repeat has its own")


def _as_device(value: Any) -> Any:
    """A kind of device, given as a part of its name."""
    if not (isinstance(value, str) and re.search("[A-Za-z0-9]", value)):
        raise SequenceError("", f"must be a kind of device such as H100, got {shorten(value)}")
    return value


Devices = Annotated[
    list[Annotated[Annotated[str, Field(max_length=100)], BeforeValidator(_as_device)]], Field(max_length=16)
]
Shards = Annotated[Annotated[int, Field(ge=2, le=MOST_SHARDS)] | None, BeforeValidator(as_shards)]


def check_ranks(
    ranks: int | Mapping[str, int], shards: int | None, parallel: str, packing: int | str, max_slots: int | None
) -> None:
    """Raises `FieldError` if these fields contradict each other."""
    least, most = (ranks, ranks) if isinstance(ranks, int) else (ranks["least"], ranks["most"])
    if has_fixed_ranks(parallel, shards):
        _check_fixed(parallel, shards, least, most)
        shards = most
    if shards is None and most > 1:
        raise FieldError("shards", f"is missing: a power of two, and at least the ranks, {most}")
    if shards is not None and most > shards:
        raise FieldError("ranks", f"must be at most the shards, {shards}, got {most}")
    if shards is not None and packing != 0:
        raise FieldError("packing", "must be left out where several devices train: a pack is trained by one")
    if max_slots is not None and max_slots < least:
        raise FieldError("max_slots", f"must be at least the ranks of a stage, {least}, got {max_slots}")


def has_fixed_ranks(parallel: str, shards: int | None) -> bool:
    """Whether results depend on the number of ranks, because torch's order of summation does."""
    return parallel == "ddp" or (parallel == "fsdp" and shards is None)


def reduction_name(parallel: str, shards: int | None, ranks: int | Mapping[str, int]) -> str:
    """How a plan describes the summation over ranks. Includes their number if results depend on it."""
    return f"{parallel}:{ranks}" if has_fixed_ranks(parallel, shards) else parallel


def _check_fixed(parallel: str, shards: int | None, least: int, most: int) -> None:
    way = parallel if parallel == "ddp" else f"{parallel} without shards"
    if shards is not None:
        raise FieldError("shards", f"must be left out with parallel: {way}, where each rank has a part of the batch")
    if least != most:
        raise FieldError("ranks", f"must be one number with parallel: {way}, whose results depend on it")
    if most == 1:
        raise FieldError("ranks", f"must be 2, 4, 8, ... with parallel: {way}, got 1")


def check_arguments(trainer_args: Mapping[str, Any], runtime_args: Mapping[str, Any]) -> None:
    """Raises `FieldError` if arguments of the trainer are reserved for the worker or given twice."""
    for field, arguments in (("trainer_args", trainer_args), ("runtime_args", runtime_args)):
        for name in ("seed", "device"):
            if name in arguments:
                raise FieldError(f"{field}.{name}", "must be left out: the trainer is given it by the worker")
    for name in runtime_args:
        if name in trainer_args:
            raise FieldError(f"runtime_args.{name}", "must be in one of trainer_args and runtime_args, not in both")


def without_data(value: Any) -> Any:
    """An argument without tensors, arrays and data frames, which a study file cannot hold. Single numbers are fine."""
    for path, item in _items(value, ""):
        if getattr(item, "ndim", 0):
            raise SequenceError(path, f"must be JSON, got an object of type {type(item).__name__}: {DATA_RECIPE}")
    return value


DATA_RECIPE = (
    'data come by a file: torch.save(X, path := os.path.abspath("X.pt")), then runtime_args={"X": path}, '
    "inputs=[path], and torch.load in the trainer"
)


def _items(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The value, and all values inside it, each with its path."""
    yield path, value
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _items(item, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _items(item, f"{path}[{number}]")


Argument = Annotated[Any, BeforeValidator(without_data), AfterValidator(as_json)]
