"""Refusals, and what several answers hold."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.examples import shown_as


class Problem(BaseModel):
    """RFC 9457: what went wrong."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str = Field(description="one sentence for whoever asked")
    instance: str = Field(description="the path that was asked for")
    errors: list[FieldError] = Field(default=[], description="what is wrong with which field")


class FieldError(BaseModel):
    field: str = Field(description="a path such as space.lr[1].gamma")
    problem: str


class Result(BaseModel):
    """The study's metric after a step."""

    step: int
    value: float


class Steps(BaseModel):
    requested: int = Field(description="what the trials asked for, each counted alone")
    unique: int = Field(description="distinct (beginning, step) pairs among them")
    executed: int = Field(description="steps that workers really ran, repeats included")


class Health(BaseModel):
    model_config = shown_as({"status": "ok"})
    status: Literal["ok"]


CHECKS = ("database", "schema", "broker", "store", "scheduler", "slots")


class Readiness(BaseModel):
    model_config = shown_as({"status": "ok", "checks": dict.fromkeys(CHECKS, "ok")})
    status: Literal["ok"]
    checks: dict[str, str]
