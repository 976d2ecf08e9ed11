"""All settings, read from environment variables (`STAGETREE_...`) and described here only."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.domain.slots import MOST_SHARES
from app.domain.terms import Principal, Scope
from stagetree.limits import LIMITS, Limits

PREFIX = "STAGETREE_"


class SettingsError(Exception):
    """A setting that cannot be used; the message names it, and says what would be right."""


class Settings(BaseSettings):
    """The defaults serve one machine with a Redis server on it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    database_url: str = Field(
        default="sqlite:///stagetree.db", description="the event log: sqlite:///FILE or postgresql://..."
    )
    broker_url: str = Field(default="redis://127.0.0.1:6379/0", description="the Celery broker")
    checkpoints: str = Field(default="checkpoints", description="a folder, or s3://BUCKET/PREFIX")
    trainers: str = Field(default="", description="Python files with trainers, separated by commas")
    tuners: str = Field(default="", description="Python files with tuners of your own, separated by commas")
    hosts: str = Field(
        default="",
        description="host names of the API, separated by commas, or * for any; IP addresses are always accepted",
    )
    access: Literal["loopback", "always", "open"] = Field(
        default="loopback",
        description="which callers of the API need a token: those on other machines and other users of this one "
        "(loopback), all (always), or none (open)",
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
        description="folders from which studies may name files: in begin_from and inputs on the API's machine, "
        "in inputs on each slot's; separated by commas, / for all",
    )
    sinks: str = Field(
        default="",
        description="sinks that study files may name besides tensorboard:DIR, as NAME=ADDRESS, separated by commas; "
        "* for any",
    )
    proofs: bool = Field(
        default=True,
        description="whether slots train some steps again to verify them; if not, every study that resumes from a "
        "saved state is marked as unchecked",
    )
    policy: Literal["fair_share", "critical_path"] = Field(
        default="fair_share", description="which outstanding stage a free slot takes"
    )
    threads: int = Field(
        default=1, ge=1, description="CPU threads of a slot without a GPU; another number may round differently"
    )
    lease_seconds: float = Field(
        default=60.0, gt=0, description="a worker that sends no heartbeat for this long loses its chain"
    )
    stop_seconds: float = Field(
        default=25.0,
        gt=0,
        description="a process ends within this time after SIGTERM, even if the database, broker or store is down",
    )
    address: str = Field(
        default="",
        description="a host name or IP address at which other machines reach the workers here, to train a trial "
        "together",
    )
    locks: str = Field(
        default="", description="a local folder for the locks of slots; by default in the user's runtime folder"
    )
    intermediate_overhead: float = Field(
        default=0.01, ge=0, le=1, description="the share of training time that checkpoints inside a stage may take"
    )
    memory_bytes: int = Field(
        default=2**30,
        ge=0,
        description="bytes of recent checkpoints that a slot keeps in memory; those at branch points stay longest",
    )
    backlog_bytes: ByteSize | None = Field(
        default=None,
        description="bytes of unsaved states, such as 100GiB, that the slots of a machine may hold in memory beyond "
        "one each before training waits; by default a quarter of the machine's memory",
    )
    cache: str = Field(
        default="",
        description="a local folder for copies of checkpoints from a bucket, and its size limit, such as "
        "/nvme/stagetree,200GiB; by default none",
    )
    checkpoint_budget: ByteSize | None = Field(
        default=None,
        description="a limit on the bytes of all checkpoints, such as 200GiB: beyond it the least valuable are "
        "deleted; by default none",
    )
    silence_seconds: float = Field(
        default=1800.0,
        gt=0,
        description="a trainer hangs if it is silent for this long and for ten times its longest pause so far; after "
        "its first step, for one minute and ten times its longest pause",
    )
    trainer_env: str = Field(
        default="*",
        description="the environment variables that trainers get, separated by commas, such as HF_*,DATA; never those "
        "of the service, STAGETREE_...",
    )
    logs: str = Field(
        default="",
        description="the folder for the output of trainers; a slot with PostgreSQL sends it from there; by default "
        "`logs` beside a local database, or in the working folder",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="the format of the API's and the workers' own logs: text, or one JSON object a line"
    )
    warm: str = Field(default="", description="the socket of the template process that forks trainers for all slots")
    allow_cpu: bool = Field(default=False, description="a slot called gpu0 may train on the CPU if there is no GPU")
    slots_per_gpu: int = Field(
        default=1,
        ge=1,
        le=MOST_SHARES,
        description="the number of slots that share a GPU; the slots of gpu0 are gpu0a, gpu0b, ...",
    )
    memory_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="the part of its GPU's memory that a slot may use; by default the slots of a GPU share it evenly",
    )
    cuda_graphs: bool = Field(default=False, description="record passes of packs as CUDA graphs, for small models")
    max_bytes: int = Field(default=LIMITS.bytes, ge=1024, description="the largest study file or request body in bytes")

    @field_validator("database_url")
    @classmethod
    def _check_database(cls, url: str) -> str:
        kind, separator, _ = url.partition("://")
        if not separator or kind.partition("+")[0] not in ("sqlite", "postgres", "postgresql"):
            raise ValueError("must be sqlite:///FILE or postgresql://USER@HOST/NAME")
        return url

    @field_validator("cache")
    @classmethod
    def _check_cache(cls, value: str) -> str:
        folder, _, size = value.rpartition(",")
        if value and not folder.startswith("/"):
            raise ValueError("must be the path of a folder and a size, such as /nvme/stagetree,200GiB")
        TypeAdapter(ByteSize).validate_python(size or 0)
        return value

    @field_validator("proxies")
    @classmethod
    def _check_networks(cls, value: str) -> str:
        for each in _split(value):
            ip_network(each, strict=False)
        return value

    @field_validator("groups")
    @classmethod
    def _check_scopes(cls, value: str) -> str:
        for each in _split(value):
            Scope.parse(each.rpartition("=")[2].partition("@")[0])
        return value

    @property
    def cache_folder(self) -> tuple[Path, int] | None:
        """The folder for copies of checkpoints, and how many bytes they may take."""
        folder, _, size = self.cache.rpartition(",")
        return (Path(folder), TypeAdapter(ByteSize).validate_python(size)) if folder else None

    @property
    def proxy_networks(self) -> list[IPv4Network | IPv6Network]:
        return [ip_network(each, strict=False) for each in _split(self.proxies)]

    @property
    def principals_by_group(self) -> dict[str, Principal]:
        """The rights of each group's members, as a principal without a name."""
        principals = {}
        for each in _split(self.groups):
            group, _, grant = each.rpartition("=")
            scope, has_project, project = grant.partition("@")
            principals[group] = Principal("", Scope.parse(scope), project if has_project else None)
        return principals

    @property
    def host_names(self) -> list[str]:
        return _split(self.hosts)

    @property
    def study_folders(self) -> list[str]:
        return _split(self.study_files)

    @property
    def limits(self) -> Limits:
        return Limits(bytes=self.max_bytes)

    @property
    def logs_folder(self) -> Path:
        """The logs of trials: it has a folder for each study."""
        if self.logs:
            return Path(self.logs)
        kind, _, path = self.database_url.partition(":///")
        return (Path(path).parent if kind == "sqlite" else Path()) / "logs"

    @property
    def grace_seconds(self) -> float:
        """How long a slot that must end waits for its unsaved states."""
        return 0.6 * self.stop_seconds

    @property
    def heartbeat_seconds(self) -> float:
        """How often a slot renews its lease and reports its progress."""
        return min(2.0, self.lease_seconds / 6)

    @property
    def tick_seconds(self) -> float:
        """The longest pause between two ticks of the scheduler."""
        return max(1.0, min(5.0, self.lease_seconds / 12))

    @property
    def strike_after_seconds(self) -> float:
        """How long a slot retries to read a checkpoint that is missing or damaged.

        A folder beside a local database shows its files at once; a bucket or a network disk may be late.
        """
        is_local = self.database_url.startswith("sqlite") and "://" not in self.checkpoints
        return 2.0 if is_local else max(5.0, self.lease_seconds / 2)

    @property
    def patience_seconds(self) -> float:
        """How long to wait for an answer of the database or the broker: an outage must be noticed within a lease."""
        return max(1.0, min(20.0, self.lease_seconds / 3))

    @property
    def trainer_files(self) -> list[str]:
        return _split(self.trainers)

    @property
    def tuner_files(self) -> list[str]:
        return _split(self.tuners)


def _split(value: str) -> list[str]:
    return [each.strip() for each in value.split(",") if each.strip()]


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once. Raises `SettingsError`."""
    try:
        return Settings()
    except ValidationError as wrong:
        raise SettingsError("\n".join(_message(each) for each in wrong.errors())) from None


def _message(error: ErrorDetails) -> str:
    problem = error["msg"].removeprefix("Value error, ")
    return f"{PREFIX}{'_'.join(map(str, error['loc'])).upper()}={error['input']}: {problem}"
