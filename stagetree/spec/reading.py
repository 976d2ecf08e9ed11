"""What a study reads besides its trainer's code: the weights that it begins from, and the files of its data.

Their content is part of what a study is (docs/decisions/0037-what-is-read.md): a server looks at them when the study is
submitted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, model_validator

from stagetree.sequences import SequenceError
from stagetree.spec.errors import shown
from stagetree.spec.fields import Count, SpecPart, Text

MOST_INPUTS = 100
"""So many paths a study may name."""


def _as_trial(value: Any) -> Any:
    """A trial's number, or "best"."""
    if value is None or value == "best" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise SequenceError("", f"must be best, or the number of a trial, got {shown(value)}")


FilePath = Annotated[str, Field(min_length=1, max_length=4096)]
Inputs = Annotated[list[FilePath], Field(max_length=MOST_INPUTS)]
WhichTrial = Annotated[int | str | None, PlainValidator(_as_trial, json_schema_input_type=int | str | None)]


class BeginFrom(SpecPart):
    """The weights that every trial of a study begins with: those in a file, or those of a trial of another study."""

    file: FilePath | None = Field(
        default=None, description="a file of weights: safetensors, a state dict of torch.save, or a checkpoint"
    )
    study: Text | None = Field(default=None, description="the id of a study on the same server")
    trial: WhichTrial = Field(default=None, description="best, or the number of a trial of that study; by default best")
    step: Count | None = Field(
        default=None, description="a step at which its state is kept; by default the one where its value was measured"
    )
    state: bool = Field(
        default=False, description="true for all of a checkpoint, optimizer and generators too; false for its weights"
    )

    @model_validator(mode="after")
    def _check_one(self) -> BeginFrom:
        if (self.file is None) == (self.study is None):
            raise SequenceError("", "must have either file or study")
        for name in ("trial", "step"):
            if self.file is not None and getattr(self, name) is not None:
                raise SequenceError(name, "must be left out beside file: it is about a trial of a study")
        return self


def absolute(values: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """A study's JSON whose paths are absolute: those that are not begin in `folder`. What is no path stays as it is."""
    found, begin, inputs = dict(values), values.get("begin_from"), values.get("inputs")
    if isinstance(begin, Mapping) and isinstance(begin.get("file"), str):
        found["begin_from"] = {**begin, "file": _absolute(begin["file"], folder)}
    if isinstance(inputs, list):
        found["inputs"] = [_absolute(each, folder) if isinstance(each, str) and each else each for each in inputs]
    return found


def _absolute(path: str, folder: str | Path) -> str:
    return os.path.abspath(os.path.join(folder, os.path.expanduser(path))) if path else path
