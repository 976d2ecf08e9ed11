"""The environment of a slot, recorded as a fact: packages, driver, and the commit of the trainer's repository.

Runs on: the saver's thread.
"""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from app.domain import events as e
from app.registry import TrainerSource
from app.workers.slot.claim import Claim
from app.workers.slot.outbox import FactOutbox
from app.workers.slot.saver import Saver

logger = logging.getLogger(__name__)

Json = dict[str, Any]

DIFF_CHARACTERS = 20_000
"""The recorded part of a diff; the rest is only hashed."""

MOST_PACKAGES = 2_000
GIT_SECONDS = 10.0
SMI = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Surveyor:
    """Records a trainer's environment in the background. device: the slot's, as shown to users."""

    saver: Saver
    outbox: FactOutbox
    device: str
    sources: Callable[[], Mapping[str, TrainerSource]]

    def survey(self, claim: Claim, trainer: str) -> None:
        """Run before the chain's first checkpoint, which waits for it: facts are accepted only while the chain
        lives.
        """

        def say() -> None:
            if (source := self.sources().get(trainer)) is not None:
                self.outbox.put(claim, [environment(self.device, source.path)])

        self.saver.submit(claim, say)


def environment(device: str, trainer_file: str) -> e.EnvironmentSeen:
    """The environment of a slot. device: as shown to users. Missing parts are no errors."""
    about: Json = {"python": platform.python_version(), "platform": platform.platform(), "machine": platform.machine()}
    packages = _packages()
    about |= {"torch": packages.get("torch"), "driver": _driver(), "packages": packages}
    return e.EnvironmentSeen(device=device, environment=about | {"trainer": _repository(Path(trainer_file).resolve())})


@cache
def _packages() -> dict[str, str]:
    """Versions by name of all importable packages, read from folder names, since reading all metadata is slow."""
    versions: dict[str, str] = {}
    for folder in filter(os.path.isdir, sys.path):
        for entry in sorted(os.listdir(folder)):
            if entry.endswith((".dist-info", ".egg-info")) and "-" in entry:
                name, version = entry.rpartition(".")[0].split("-")[:2]
                versions.setdefault(name.lower(), version)
    return dict(sorted(versions.items())[:MOST_PACKAGES])


@cache
def _driver() -> str | None:
    output = _run_command(SMI)
    return output.splitlines()[0].strip() if output else None


def _repository(file: Path) -> Json:
    """The commit of the trainer's repository and the working tree's diff; only the file without a repository."""
    repository: Json = {"file": str(file)}
    git = ("git", "-c", "core.fsmonitor=false", "-C", str(file.parent))
    if not (commit := _run_command((*git, "rev-parse", "HEAD"))):
        return repository
    diff = _run_command((*git, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".")) or ""
    repository |= {"commit": commit.strip(), "is_changed": bool(diff)}
    if diff:
        repository |= {"diff": diff[:DIFF_CHARACTERS], "diff_sha256": sha256(diff.encode()).hexdigest()}
    new = (_run_command((*git, "ls-files", "--others", "--exclude-standard", "--", ".")) or "").splitlines()
    return repository | ({"untracked": new[:100]} if new else {})


def _run_command(command: tuple[str, ...]) -> str | None:
    """The output of a command; None if it is missing, fails or takes too long."""
    calm = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, env=calm, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as problem:
        logger.debug("%s: %s", command[0], problem)
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
