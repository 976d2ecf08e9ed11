"""All settings, from the environment (`STAGETREE_...`) and from nowhere else. What each means is said here, once."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where things are, and how patient we are. The defaults serve one machine with a Redis beside it."""

    model_config = SettingsConfigDict(env_prefix="STAGETREE_", frozen=True)

    database_url: str = Field(
        default="sqlite:///stagetree.db", description="the event log: sqlite:///FILE or postgresql://..."
    )
    broker_url: str = Field(default="redis://127.0.0.1:6379/0", description="the Celery broker")
    checkpoints: str = Field(default="checkpoints", description="a folder, or s3://BUCKET/PREFIX")
    trainers: str = Field(default="", description="Python files with trainers, separated by commas")
    tuners: str = Field(default="", description="Python files with tuners of your own, separated by commas")
    policy: Literal["fair_share", "critical_path", "breadth_first", "most_children_first"] = Field(
        default="fair_share", description="which outstanding stages a free slot takes"
    )
    threads: int = Field(
        default=1, ge=1, description="CPU threads of a slot without a GPU; another number may round otherwise"
    )
    lease_seconds: float = Field(
        default=60.0, gt=0, description="a worker that is silent for so long has lost its chain"
    )
    tick_seconds: float = Field(default=5.0, gt=0, description="the scheduler looks at the log at least this often")
    spare_overhead: float = Field(
        default=0.01, ge=0, le=1, description="the share of training time that checkpoints inside a stage may take"
    )
    spare_bytes: int = Field(
        default=2**30,
        ge=0,
        description="the most bytes a plan spends on checkpoints inside stages, beside those at their ends",
    )
    memory_bytes: int = Field(
        default=256 * 2**20, ge=0, description="the most bytes of recent checkpoints that a slot keeps in memory"
    )

    @property
    def heartbeat_seconds(self) -> float:
        """How often a slot shows that it is alive, and how far it is."""
        return min(2.0, self.lease_seconds / 6)

    @property
    def trainer_files(self) -> list[str]:
        return _files(self.trainers)

    @property
    def tuner_files(self) -> list[str]:
        return _files(self.tuners)


def _files(names: str) -> list[str]:
    return [path.strip() for path in names.split(",") if path.strip()]


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
