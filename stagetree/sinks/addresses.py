"""Sinks by their addresses, as on the command line or in a study file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from stagetree.sinks.base import Sink, SinkError
from stagetree.sinks.follower import Onlooker

KINDS = ("tensorboard:DIR", "wandb:PROJECT", "mlflow:URI", "otlp:URL", "webhook:URL")
STORE = ".stagetree"
ACCOUNTS = (("databricks",), ("databricks-uc",), ("uc",))
"""Words that MLflow resolves with the profile of the user that runs it."""

WEB = ("http://", "https://")

NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names that an operator may give to a sink."""

_ELSEWHERE = "stagetree watch --to takes any"

POSITIONS = Path(STORE, "sinks")
"""The folder for the progress of sinks that do not write to a folder."""


ARTIFACTS = ("weights", "report")
"""Files that MLflow and W&B can receive at the end of a study."""

_OPTION = re.compile(r"[?&](artifact\w*)=([^?&]*)$")


def split_artifacts(address: str) -> tuple[str, tuple[str, ...]]:
    """Split an address from its artifacts: `mlflow:URI?artifacts=weights+report`. Raises `SinkError`."""
    option = None if address.startswith("webhook:") else _OPTION.search(address)
    if option is None:
        return address, ()
    wanted = option[2].split("+")
    if option[1] != "artifacts" or not {*wanted} <= {*ARTIFACTS}:
        forms = " or ".join(f"?artifacts={each}" for each in (*ARTIFACTS, "+".join(ARTIFACTS)))
        raise SinkError(f"must end with {forms} where it asks for artifacts, got {address!r}")
    return address[: option.start()], tuple(dict.fromkeys(wanted))


def split(address: str) -> tuple[str, str]:
    """The kind of a sink and its target. Raises `SinkError`."""
    address, artifacts = split_artifacts(address)
    kind, _, where = address.partition(":")
    if f"{kind}:" not in {each[: each.index(":") + 1] for each in KINDS} or not where:
        raise SinkError(f"must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {address!r}")
    if artifacts and kind not in ("mlflow", "wandb"):
        raise SinkError(f"must be mlflow:URI or wandb:PROJECT where it asks for artifacts, got {address!r}")
    if kind == "otlp" and not where.startswith(WEB):
        raise SinkError(f"must name a collector by http:// or https://, such as otlp:http://host:4318, got {address!r}")
    if kind == "webhook" and not where.startswith(WEB):
        raise SinkError("must name a webhook by http:// or https://, such as webhook:https://host/path")
    return kind, where


def check_of_study(address: str) -> None:
    """Check an address in a study file. Another user's process may open it, so files must be below that process's
    folder.

    Raises `SinkError`.
    """
    if NAMED.fullmatch(split_artifacts(address)[0]):
        return
    kind, where = split(address)
    if kind == "webhook":
        raise SinkError(f"must be the name of a webhook in STAGETREE_SINKS, {_ELSEWHERE}")
    if kind in ("wandb", "otlp") or (kind == "mlflow" and where.startswith(WEB)):
        return
    path = PurePosixPath(where.removeprefix("sqlite:///") if kind == "mlflow" else where)
    if kind == "mlflow" and path.parts[:1] in ACCOUNTS:
        raise SinkError(f"must not use an account of the service, got {address!r}")
    if STORE in path.parts:
        raise SinkError(f"must not lie in {STORE}, where studies are kept, got {address!r}")
    if path.is_absolute() or ".." in path.parts or ":" in str(path) or path.parts[:1] == ("~",):
        there = "a folder" if kind == "tensorboard" else "http://, https://, or a folder or sqlite:///FILE"
        raise SinkError(f"must name {there} below the folder where sinks are written, got {address!r}; {_ELSEWHERE}")


@dataclass(frozen=True, slots=True)
class Configured:
    """The sinks that study files may use: those configured by the operator, and TensorBoard folders."""

    named: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False
    """Whether any address is allowed, for a service with a single user."""

    @classmethod
    def parse(cls, written: str) -> Configured:
        """Parse STAGETREE_SINKS: `team=mlflow:https://tracking, *`. Raises `SinkError`."""
        parts = [each.strip() for each in written.split(",") if each.strip()]
        pairs = [each.partition("=") for each in parts if each != "*"]
        for name, _, address in pairs:
            if not NAMED.fullmatch(name):
                raise SinkError(f"must be NAME=ADDRESS, such as team=mlflow:https://tracking, got {name!r}")
            split(address)
        return cls({name: address for name, _, address in pairs}, "*" in parts)

    def address(self, name: str) -> str:
        """The address of a sink of a study file. Raises `SinkError` if the file may not use it.

        Artifacts named in the study file replace the artifacts of the configured address.
        """
        named, artifacts = split_artifacts(name)
        if named in self.named:
            address = self.named[named]
            if artifacts:
                address = f"{split_artifacts(address)[0]}?artifacts={'+'.join(artifacts)}"
                split(address)
            return address
        kind = "" if NAMED.fullmatch(named) else split(name)[0]
        if kind == "tensorboard" or (kind not in ("", "webhook") and self.is_open):
            return name
        expected = ", ".join([*self.named, "tensorboard:DIR"])
        raise SinkError(f"must be one of {expected}, which the operator has configured (STAGETREE_SINKS), got {name!r}")


def progress_folder(address: str, positions: Path = POSITIONS) -> Path:
    """The folder with the progress of a sink. Raises `SinkError`."""
    kind, where = split(address)
    is_secret = kind == "webhook"  # its path may be one
    name = sha256(where.encode()).hexdigest()[:16] if is_secret else quote(where, safe="")
    return Path(where) if kind == "tensorboard" else positions / kind / name


def redact_address(address: str) -> str:
    """The address without the path of a webhook, which may be a secret."""
    kind, _, where = address.partition(":")
    return f"webhook:{urlsplit(where).scheme}://{urlsplit(where).hostname}" if kind == "webhook" else address


def open_sink(address: str, positions: Path = POSITIONS) -> Sink | Onlooker:
    """Open the sink at an address. Raises `SinkError` if the address is wrong or the library is missing."""
    kind, where = split(address)
    artifacts = split_artifacts(address)[1]
    path = Path(where.removeprefix("sqlite:///"))
    if kind in ("tensorboard", "mlflow") and any(
        (folder / "stagetree.db").is_file() for folder in (path, *path.parents)
    ):
        raise SinkError(f"{address} lies in a store of stagetree: a sink of its own would write into the log")
    if kind == "tensorboard":
        from stagetree.sinks.tensorboard import TensorBoard

        return TensorBoard(Path(where))
    if kind == "wandb":
        from stagetree.sinks.trackers import Wandb

        return Wandb(where, progress_folder(address, positions), artifacts)
    if kind == "otlp":
        from stagetree.sinks.traces import OpenTelemetry

        return OpenTelemetry(where, progress_folder(address, positions))
    if kind == "webhook":
        from stagetree.sinks.webhook import Webhook

        return Webhook(where, progress_folder(address, positions))
    from stagetree.sinks.trackers import Mlflow

    return Mlflow(where, progress_folder(address, positions), artifacts)
