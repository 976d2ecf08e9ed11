"""Tuners of an operator's own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stagetree.spec.fields import Json, Text
from stagetree.spec.tuners.base import SamplingTuner


class CustomTuner(SamplingTuner):
    """A tuner that the server's operator registered from a file; a submitted study records its version."""

    kind: Literal["custom"] = "custom"
    name: Text = Field(description="the name of a tuner that is registered on the server")
    version: Text | None = Field(default=None, description="the version of the tuner, set by the server")
    args: dict[str, Json] = Field(default={}, description="an object of JSON values, the tuner's own fields")
