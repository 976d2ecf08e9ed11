"""What trains, in this process instead of one of its own: the real model, and a script of what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.workers.state import State
from app.workers.trainer_client import TrainerClient
from app.workers.trainer_connection import TrainerKilled
from stagetree.runtime import inexact_reasons
from stagetree.runtime.checkpoints.state_format import read
from stagetree.runtime.commands import Compared, Evaluation, Seen, Trained
from stagetree.runtime.exactness.differences import HELD_VALUES, compare, leaf_digests
from stagetree.runtime.exactness.held_values import differing_names, digest_held_values
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import code_modules, load_trainer
from stagetree.runtime.model import HpTimeline, Model
from stagetree.trainer.ranks import group


class InProcess(TrainerClient):
    """A trainer that runs in the test's process. `script` is the test's hook.

    `script` is called with each action and its step; an error that it raises is an error of the trainer. The test sets
    `machine` and `not_exact`.
    """

    def __init__(self, script: Callable[[InProcess, str, int], None]) -> None:
        self._script, self.model, self.file = script, None, ""
        self.is_broken = self.is_closed = False
        self.logs: list[Path] = []
        self.resident = self.shards = 0
        self.machine: dict[str, Any] = {"torch": "2.12.0"}
        self.not_exact: tuple[str, ...] = ()
        self.left: list[str] = []

    @property
    def leader(self) -> Any:
        return self

    @property
    def uses(self) -> dict[str, list[Any]]:
        return {"read": [], "written": []}

    def take_uses(self) -> dict[str, list[Any]]:
        return {"read": [], "written": []}

    def ask(self, do: str, given: Mapping[str, Any], deadline: Any, look: Callable[[], None] = lambda: None) -> Any:
        return getattr(self, do)(**given)

    def tell(self, do: str, given: Mapping[str, Any]) -> None:
        self.do(do)

    def log(self, path: Path, rows: Path | None = None, lane: int | None = None) -> None:
        self.do("log")
        self.logs.append(path)

    def build(
        self, file: str, name: str, args: Mapping[str, Any], seed: int, determinism: str, shards: int, parallel: str
    ) -> None:
        assert parallel == "tree", "ranks are one model here, with the bits of all"
        assert self.file in ("", file), "a process serves one file"
        self.file, self.shards = file, shards
        self.model = None
        self.do("build")
        with user_code():
            kind = load_trainer(file, name)
        self.model, self.timeline = Model.build(kind, args, seed, "cpu"), HpTimeline({})

    def become_template(self, fds: Sequence[int]) -> tuple[str, list[str]]:
        self.do("become_template")
        return "is no process of its own", []

    def begin(self, fds: Sequence[int], hp: Mapping[str, Any], whole: bool) -> None:
        self.do("begin")
        assert self.model is not None
        self.model.begin(fds[0], HpTimeline(hp), is_whole=whole)

    def load(
        self, fds: Sequence[int], hp: Mapping[str, Any], step: int, weight: float | None = None, left: int = 0
    ) -> Sequence[str]:
        self.do("load")
        assert self.model is not None
        saved = read(*fds)
        reasons = inexact_reasons.changes(saved["machine"], self.machine)
        if weight is not None:
            saved = self.model.averaging.add(saved, weight, left)
        if not left:
            self.timeline = HpTimeline(hp)
            self.model.load(saved, self.timeline, step)
        return reasons

    def train(
        self,
        hp: Mapping[str, Any],
        until: int,
        ahead: Any = None,
        *,
        deadline: Any,
        on_progress: Any = lambda step: None,
    ) -> Trained:
        assert self.model is not None
        timeline = HpTimeline(hp)
        while self.model.step < until:
            self.do("train")
            self._advance(timeline)
            if (wanted := on_progress(self.model.step)) is not None:
                until = wanted
        return Trained(self.model.step)

    def evaluate(self, watch: bool = False, *, deadline: Any = None, look: bool | None = None) -> Evaluation:
        self.do("evaluate")
        assert self.model is not None
        before = leaf_digests(self.model) if watch else {}
        try:
            metrics = self.model.evaluate()
        except TrainerFailed as failed:
            raise self._add_step(failed) from None
        return Evaluation(metrics, differing_names(before, leaf_digests(self.model)) if watch else ())

    def save(self, *, deadline: Any, look: bool = False, lane: int | None = None) -> State:
        self.do("save")
        if look:
            self.do("look")
        assert self.model is not None
        more = {HELD_VALUES: digest_held_values(self.model.trainer, code_modules(self.file))} if look else {}
        return State(*self.model.save(self.machine, **more))

    def compare(self, fds: Sequence[int], mine: int, ignored: Sequence[str] = ()) -> Compared:
        self.do("compare")
        return compare(fds[:mine], fds[mine:], ignored)

    def seen(self) -> Seen:
        assert self.model is not None
        return Seen(self.model.unread())

    def resident_bytes(self) -> int:
        return self.resident

    def kill(self) -> None:
        self.is_broken = True

    def close(self, patience: float = 0.0) -> None:
        self.is_closed = True

    def _advance(self, timeline: HpTimeline) -> None:
        assert self.model is not None
        try:
            self.model.advance(timeline)
        except TrainerFailed as failed:
            raise self._add_step(failed) from None

    def _add_step(self, failed: TrainerFailed) -> TrainerFailed:
        return TrainerFailed(failed.kind, failed.error, self.step, failed.signature)

    @property
    def step(self) -> int:
        return self.model.step if self.model else 0

    def do(self, what: str) -> None:
        assert not self.is_closed
        if self.is_broken:
            raise TrainerKilled("killed")
        self._script(self, what, self.step)
        group.here().shards = self.shards  # of this process, of which there are several in one
