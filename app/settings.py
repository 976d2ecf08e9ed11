"""All settings, from the environment (`STAGETREE_...`) and from nowhere else. What each means is said here, once."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.domain.chain_assignment import MOST_SHARES
from app.domain.terms import Principal, Scope
from stagetree.limits import LIMITS, Limits

PREFIX = "STAGETREE_"


class SettingsError(Exception):
    """A setting that cannot be used; the message says which, and what would be right."""


class Settings(BaseSettings):
    """Where things are, and how patient we are. The defaults serve one machine with a Redis beside it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    database_url: str = Field(
        default="sqlite:///stagetree.db", description="the event log: sqlite:///FILE or postgresql://..."
    )
    broker_url: str = Field(default="redis://127.0.0.1:6379/0", description="the Celery broker")
    checkpoints: str = Field(default="checkpoints", description="a folder, or s3://BUCKET/PREFIX")
    trainers: str = Field(default="", description="Python files with trainers, separated by commas")
    tuners: str = Field(default="", description="Python files with tuners of your own, separated by commas")
    hosts: str = Field(
        default="", description="names by which the API is reached, separated by commas, or *; addresses always do"
    )
    access: Literal["loopback", "always", "open"] = Field(
        default="loopback",
        description="which callers of the API need a token: those on other machines (loopback), all (always), "
        "or none (open)",
    )
    proxies: str = Field(
        default="",
        description="addresses or networks of proxies, separated by commas, whose X-Forwarded-User and "
        "X-Forwarded-Groups are trusted",
    )
    groups: str = Field(
        default="",
        description="what the users of a proxy may do, by group: GROUP=SCOPE or GROUP=SCOPE@PROJECT, separated by "
        "commas; * for every user",
    )
    study_files: str = Field(
        default="",
        description="folders of the API's machine whose files studies may name in begin_from and inputs, separated by "
        "commas; / for all",
    )
    sinks: str = Field(
        default="",
        description="sinks that study files may name besides tensorboard:DIR, as NAME=ADDRESS, separated by commas; "
        "* for any",
    )
    proofs: bool = Field(
        default=True,
        description="whether slots train some steps again to compare them; without, every study that resumes from a "
        "saved state says that it is unchecked",
    )
    policy: Literal["fair_share", "critical_path"] = Field(
        default="fair_share", description="which outstanding stages a free slot takes"
    )
    turn_seconds: float = Field(
        default=60.0,
        gt=0,
        description="how long a study keeps a slot that others are due as much of",
    )
    threads: int = Field(
        default=1, ge=1, description="CPU threads of a slot without a GPU; another number may round otherwise"
    )
    lease_seconds: float = Field(
        default=60.0, gt=0, description="a worker that is silent for so long has lost its chain"
    )
    tick_seconds: float = Field(default=5.0, gt=0, description="the scheduler looks at the log at least this often")
    stop_seconds: float = Field(
        default=25.0, gt=0, description="a process that is asked to end does so within so long, whatever is away"
    )
    address: str = Field(
        default="", description="a name or IP address by which other machines reach the workers here, for shared trials"
    )
    locks: str = Field(default="", description="a local folder for the locks of slots; by default one of the user's")
    intermediate_overhead: float = Field(
        default=0.01, ge=0, le=1, description="the share of training time that checkpoints inside a stage may take"
    )
    intermediate_bytes: int = Field(
        default=2**30,
        ge=0,
        description="the most bytes a plan spends on checkpoints inside stages, beside those at their ends; of a stage "
        "under way the newest is kept in any case; 0 for none",
    )
    memory_bytes: int = Field(
        default=2**30,
        ge=0,
        description="the most bytes of checkpoints that a slot keeps in memory, those where trials part first of all",
    )
    backlog_bytes: ByteSize | None = Field(
        default=None,
        description="the most bytes of states that the slots of a machine hold in memory on their way to the store, "
        "beyond one each, such as 100GiB; training waits for room; by default a quarter of its memory",
    )
    cache: str = Field(
        default="",
        description="a folder on a disk of the worker's machine for copies of checkpoints from a bucket, and how many "
        "bytes they may take, such as /nvme/stagetree,200GiB; by default none",
    )
    checkpoint_budget: ByteSize | None = Field(
        default=None,
        description="the most bytes of all checkpoints, such as 200GiB, before the least valuable go; by default any",
    )
    strike_after_seconds: float = Field(
        default=30.0, ge=0, description="a checkpoint that is missing or damaged is looked at again for so long"
    )
    silence_seconds: float = Field(
        default=1800.0,
        gt=0,
        description="a trainer that is silent for so long, and ten times longer than ever, hangs; after its first step,"
        " one that takes a minute, and ten times longer than any",
    )
    trainer_env: str = Field(
        default="*",
        description="the environment variables that trainers get, separated by commas, such as HF_*,DATA; never those "
        "of the service, STAGETREE_...",
    )
    logs: str = Field(
        default="",
        description="the folder for what trainers print, of a slot on its way to PostgreSQL; by default `logs` beside "
        "a local database, or here",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="how the API and workers write their own logs: text, or json, an object a line"
    )
    warm: str = Field(default="", description="the socket of an interpreter that forks trainers for all slots here")
    allow_cpu: bool = Field(default=False, description="a slot called gpu0 may train on the CPU where there is no GPU")
    slots_per_gpu: int = Field(
        default=1, ge=1, le=MOST_SHARES, description="how many slots share a GPU: those of gpu0 are gpu0a, gpu0b, ..."
    )
    memory_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="the part of its GPU's memory that a slot may have; by default an even one",
    )
    cuda_graphs: bool = Field(default=False, description="record passes of packs as CUDA graphs, for small models")

    row_days: float = Field(
        default=7.0, gt=0, description="how long idempotency keys and the rows of chains that are over are remembered"
    )
    max_trials: int = Field(default=LIMITS.trials, ge=1, description="the most trials that a study may have")
    max_steps: int = Field(default=LIMITS.steps, ge=1, description="the most steps that a trial may be trained for")
    max_evaluations: int = Field(default=LIMITS.evaluations, ge=1, description="the most evaluations of a trial")
    max_nodes: int = Field(default=LIMITS.nodes, ge=1, description="the most nodes of a search plan")
    max_bytes: int = Field(default=LIMITS.bytes, ge=1024, description="the most bytes of a study file or a body")

    @field_validator("database_url")
    @classmethod
    def _is_of_a_known_kind(cls, url: str) -> str:
        kind, separator, _ = url.partition("://")
        if not separator or kind.partition("+")[0] not in ("sqlite", "postgres", "postgresql"):
            raise ValueError("it is to be sqlite:///FILE or postgresql://USER@HOST/NAME")
        return url

    @field_validator("cache")
    @classmethod
    def _is_folder_and_size(cls, written: str) -> str:
        folder, _, size = written.rpartition(",")
        if written and not folder.startswith("/"):
            raise ValueError("it is to be the path of a folder and a size, such as /nvme/stagetree,200GiB")
        TypeAdapter(ByteSize).validate_python(size or 0)
        return written

    @field_validator("proxies")
    @classmethod
    def _are_networks(cls, written: str) -> str:
        for each in _listed(written):
            ip_network(each, strict=False)
        return written

    @field_validator("groups")
    @classmethod
    def _are_scopes(cls, written: str) -> str:
        for each in _listed(written):
            Scope.parse(each.rpartition("=")[2].partition("@")[0])
        return written

    @property
    def cache_folder(self) -> tuple[Path, int] | None:
        """Where copies of checkpoints are kept, and how many bytes they may take."""
        folder, _, size = self.cache.rpartition(",")
        return (Path(folder), TypeAdapter(ByteSize).validate_python(size)) if folder else None

    @property
    def proxy_networks(self) -> list[IPv4Network | IPv6Network]:
        return [ip_network(each, strict=False) for each in _listed(self.proxies)]

    @property
    def principals_by_group(self) -> dict[str, Principal]:
        """What a member of each group may do, as a principal without a name."""
        principals = {}
        for each in _listed(self.groups):
            group, _, grant = each.rpartition("=")
            scope, has_project, project = grant.partition("@")
            principals[group] = Principal("", Scope.parse(scope), project if has_project else None)
        return principals

    @property
    def host_names(self) -> list[str]:
        return _listed(self.hosts)

    @property
    def study_folders(self) -> list[str]:
        return _listed(self.study_files)

    @property
    def limits(self) -> Limits:
        """How much may be asked for, as one thing."""
        return Limits(
            trials=self.max_trials,
            steps=self.max_steps,
            evaluations=self.max_evaluations,
            nodes=self.max_nodes,
            bytes=self.max_bytes,
        )

    @property
    def logs_folder(self) -> Path:
        """Where the logs of trials are, in a folder for each study."""
        if self.logs:
            return Path(self.logs)
        kind, _, path = self.database_url.partition(":///")
        return (Path(path).parent if kind == "sqlite" else Path()) / "logs"

    @property
    def grace_seconds(self) -> float:
        """How long a slot that must end waits for what it has not saved yet, so that it ends in time."""
        return 0.6 * self.stop_seconds

    @property
    def heartbeat_seconds(self) -> float:
        """How often a slot shows that it is alive, and how far it is."""
        return min(2.0, self.lease_seconds / 6)

    @property
    def patience_seconds(self) -> float:
        """How long to wait for an answer of the database or the broker: a dead one must be noticed within a lease."""
        return max(1.0, min(20.0, self.lease_seconds / 3))

    @property
    def trainer_files(self) -> list[str]:
        return _listed(self.trainers)

    @property
    def tuner_files(self) -> list[str]:
        return _listed(self.tuners)


def _listed(written: str) -> list[str]:
    """What is separated by commas."""
    return [each.strip() for each in written.split(",") if each.strip()]


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once. Raises `SettingsError`."""
    try:
        return Settings()
    except ValidationError as wrong:
        raise SettingsError("\n".join(_sentence(each) for each in wrong.errors())) from None


def _sentence(wrong: ErrorDetails) -> str:
    problem = wrong["msg"].removeprefix("Value error, ")
    return f"{PREFIX}{'_'.join(map(str, wrong['loc'])).upper()}={wrong['input']}: {problem}"
