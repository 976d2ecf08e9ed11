"""Sinks by their addresses, as a command line names them."""

from __future__ import annotations

from pathlib import Path

from stagetree.sinks.base import Sink, SinkError

KINDS = ("tensorboard:DIR", "wandb:PROJECT", "mlflow:URI")
POSITIONS = Path(".stagetree", "sinks")
"""Where it is noted what was written to a sink that is no folder."""


def open_sink(address: str) -> Sink:
    """The sink at an address. Raises `SinkError`, which says what is wrong with it or is not installed."""
    kind, _, where = address.partition(":")
    if kind not in ("tensorboard", "wandb", "mlflow") or not where:
        raise SinkError(f"--to: must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {address!r}")
    if kind == "tensorboard":
        from stagetree.sinks.tensorboard import TensorBoard

        return TensorBoard(Path(where))
    if kind == "wandb":
        from stagetree.sinks.wandb import Wandb

        return Wandb(where, POSITIONS / "wandb" / _as_name(where))
    from stagetree.sinks.mlflow import Mlflow

    return Mlflow(where, POSITIONS / "mlflow" / _as_name(where))


def _as_name(where: str) -> str:
    """A name for a folder, different for different places."""
    from urllib.parse import quote

    return quote(where, safe="")
