"""The one model that a slot keeps in memory: the next stage goes on with it, and no checkpoint is read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from app.workers.checkpoints import Checkpoints
from app.workers.run import Run, Work
from app.workers.saver import RETRY_SECONDS
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.model import Model
from stagetree.runtime.state_format import unpack
from stagetree.trainer import Trainer

logger = logging.getLogger(__name__)

Place = tuple[str, str, int]
"""Plan, node and step."""


class ModelInMemory:
    """None at first. trainer: the class of a name; versions: of their files, by name."""

    def __init__(
        self,
        slot: str,
        device: str,
        checkpoints: Checkpoints,
        trainer: Callable[[str], type[Trainer] | None],
        versions: Callable[[], dict[str, str]],
    ) -> None:
        self._slot, self._device, self._checkpoints = slot, device, checkpoints
        self._trainer, self._versions = trainer, versions
        self._model: Model | None = None
        self._place: Place | None = None  # None while it is on its way, and when it cannot be relied on
        self._takes: set[str] = set()  # the hyper-parameters it was set up with: one cannot be taken back

    def at_beginning(self, run: Run) -> Model:
        """The model where the stage begins, on its way from here on. Raises `TrainerFailed`, `CheckpointLost`."""
        work, resume = run.work, run.work.resume
        place, self._place = self._place, None
        fits = self._model is not None and place is not None and place[0] == work.plan and self._takes == {*work.hp}
        if fits and place == _beginning(run):
            return self._model
        if resume is None:
            return self._build(work)
        data = self._read(resume)
        model = self._model if fits else self._build(work)
        model.load(unpack(data), run.timeline, resume["step"])
        return model

    def stay(self, run: Run, step: int) -> Model:
        """The model has been trained to `step` of the stage, and stays there."""
        assert self._model is not None
        self._place = (run.work.plan, run.stage.node, step)
        return self._model

    def distrust(self) -> None:
        """Whatever is in memory is not what the log says."""
        self._place = None

    def drop(self) -> None:
        """Free its memory."""
        self._model, self._place = None, None

    def _read(self, resume: dict[str, Any]) -> bytes:
        """The bytes of a checkpoint; a storage that is away is waited for a little. Raises `CheckpointLost`."""
        for pause in RETRY_SECONDS:
            try:
                return self._checkpoints.read(resume["key"], resume["sha256"])
            except OSError as error:
                logger.warning("checkpoint %s cannot be read yet: %s", resume["key"], error)
                time.sleep(pause)
        try:
            return self._checkpoints.read(resume["key"], resume["sha256"])
        except OSError as error:
            raise TrainerFailed("storage", f"checkpoint {resume['key']} cannot be read: {error}") from error

    def _build(self, work: Work) -> Model:
        """A new model before its first step. Raises `TrainerFailed`."""
        self.drop()  # before there is another, which may need the room
        with user_code():
            kind = self._trainer(work.trainer)
            version = self._versions().get(work.trainer)
        if kind is None or version != work.trainer_version:
            what = f"no trainer {work.trainer!r}" if kind is None else f"another version of trainer {work.trainer!r}"
            raise TrainerFailed(
                "exception", f"the worker of slot {self._slot} has {what}: give all workers the same files"
            )
        self._takes = {*work.hp}
        self._model = Model.build(kind, work.trainer_args, work.seed, self._device)
        return self._model


def _beginning(run: Run) -> Place | None:
    """Where the stage begins; None at step 0."""
    resume = run.work.resume
    if run.index > 0:
        return (run.work.plan, run.work.stages[run.index - 1].node, run.stage.start)
    return (run.work.plan, resume["node"], resume["step"]) if resume else None
