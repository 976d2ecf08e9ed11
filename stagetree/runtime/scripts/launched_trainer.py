"""A script that owns its loop and is launched as several processes, by `torchrun`, `accelerate launch` and the like.

    run = stagetree.attach("gpt", launch="torchrun --nproc-per-node 2", ...)

The ranks and their process group are the script's own. `rank_processes` controls them.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch

from stagetree.runtime import inexact_reasons
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.scripts.interface import Script
from stagetree.runtime.scripts.rank_processes import RANK, RankProcesses
from stagetree.trainer import Trainer
from stagetree.trainer.base import MetricSums


class LaunchedTrainer(Trainer, Script):
    """Trains by a script's processes. The state is that of all ranks; parts equal to the first rank's are stored
    once."""

    file: ClassVar[Path]
    """The script."""

    version: ClassVar[str]
    """The script's version; each rank must have read the same."""

    launch: ClassVar[str]
    """The launch command. Names in braces stand for `trainer_args`, and `{devices}` for the number of slots."""

    defaults: ClassVar[Mapping[str, Any]]
    """The literal arguments of `attach`."""

    caches = ("_ranks", "_new")

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        super().__init__(seed=seed, device=device, **trainer_args)
        self._step, self._new = 0, dict[str, Any]()
        job: dict[str, Any] = {"file": str(self.file), "name": self.name, "version": self.version}
        job |= {"seed": seed, "device": device, "args": trainer_args, "determinism": _determinism()}
        self._leads = self.ranks.rank == 0  # the leader of a gang starts them, on the devices of all slots
        if self._leads:
            self._ranks = RankProcesses(self._words(), {**job, "threads": torch.get_num_threads()})
            vars(self)["_logged"] = _Logged(self._ranks)

    def _words(self) -> list[str]:
        """The command. Raises ValueError for a name that is no argument, and for a study with shards."""
        if self.ranks.shards:
            raise ValueError("a script's processes sum in an order of their own: `parallel: ddp` instead of `shards`")
        if self.device != "cpu" and torch.cuda.device_count() < self.ranks.world:
            raise ValueError(f"a script needs {self.ranks.world} devices of one machine, which all of its workers see")
        names = {**self.defaults, **self.trainer_args, "devices": self.ranks.world}
        try:
            words = [word.format_map(names) for word in shlex.split(self.launch)]
        except KeyError as error:
            raise ValueError(f"launch: {self.launch!r} names {error}, which is no literal argument of attach") from None
        return [*words, "-m", RANK]

    def setup(self, hp: dict[str, Any]) -> None:
        self._new |= hp

    @property
    def steps(self) -> int:
        """The number of steps trained, also after a failed one."""
        return self._step

    def train_on(self, changes: Iterator[Mapping[str, Any]], is_wanted: Callable[[int], bool]) -> None:
        """Take as many of the coming steps as fit into about a second.

        changes: the values that are new at each coming step. is_wanted: called several times a second with the number
        of finished steps; returns whether to continue. If not, the step under way is the last.
        """
        self._step += self.ranks.agree(self._take(changes, is_wanted))

    def train(self) -> None:
        self._step += self._take(iter([{}]), lambda steps: True)

    def _take(self, changes: Iterator[Mapping[str, Any]], is_wanted: Callable[[int], bool]) -> int:
        """The number of steps that the script took; the leader of a gang decides."""
        self._new |= next(changes)
        try:
            taken = self._ranks.train(chain([self._new], changes), is_wanted) if self._leads else 1
        except TrainerFailed as failed:
            self._step += failed.step
            raise
        self._new = {} if taken else self._new
        return taken

    def evaluate(self) -> dict[str, float]:
        if not self._leads:
            return {}
        first, *_ = self._ranks.ask("evaluate")
        inexact_reasons.note(first["not_exact"])
        return {name: math.nan if value is None else value for name, value in first["metrics"].items()}

    def state_dict(self) -> dict[str, Any]:
        if not self._leads:
            return {}
        first, *others = self._ranks.states()
        return {"step": self._step, "first": first, "others": [state_format.less(each, first) for each in others]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self._leads:
            return
        first, others = state["first"], state["others"]
        if len(others) + 1 != self._ranks.world:
            raise ValueError(f"the state is of {len(others) + 1} ranks, and {self.launch!r} has {self._ranks.world}")
        images = [state_format.write(each)[0] for each in (first, *(state_format.more(each, first) for each in others))]
        try:
            self._ranks.ask("load", images, values=self._new)
        finally:
            for image in images:
                os.close(image)
        self._step, self._new = state["step"], {}

    def unread(self) -> list[str]:
        """The hyper-parameters that none of the processes has read."""
        answers = self._ranks.ask("unread") if self._leads else [{"unread": []}]
        return sorted(set.intersection(*(set(each["unread"]) for each in answers)))

    def files_read_by_ranks(self) -> list[str]:
        answers = self._ranks.ask("files") if self._leads else []
        return list(dict.fromkeys(name for each in answers for name in each["files"]))

    def close(self) -> None:
        if self._leads:
            self._ranks.end()


class _Logged(MetricSums):
    """What the first rank has logged, fetched on demand."""

    def __init__(self, ranks: RankProcesses) -> None:
        super().__init__()
        self._ranks = ranks

    def means(self) -> dict[str, float | None]:
        first, *_ = self._ranks.ask("logged")
        return dict(first["logged"])

    def clear(self) -> None:
        """Nothing to do: the first rank clears its log when it loads or evaluates."""


def _determinism() -> str:
    """The mode that this process has set: see `stagetree.runtime.machine.set_determinism`."""
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "strict"
