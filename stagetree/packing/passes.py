"""One batch, and what all lanes of a stack learn from it in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stagetree.packing.attempts import Attempts
from stagetree.packing.lane import Generators, Lane
from stagetree.packing.loss import Learnt, Loss
from stagetree.packing.places import places
from stagetree.packing.profile import Cost, Profile, timed, widths_below
from stagetree.packing.refusals import NotPackable, is_out_of_memory, meaning
from stagetree.packing.stack import Stack
from stagetree.packing.steps import Steps
from stagetree.training import generators

Failures = dict[Lane, Exception]
Refusals = dict[Lane, NotPackable]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-2}
"""By how much of its length a gradient may differ from that which a model has alone, by what it is computed in."""

MOST_TOLERANCE = 0.1


class Passes:
    """The stack of a pack. like: a lane of the shape that all are to have.

    Every pass has the same number of rows, whoever is there: with another one a device picks other kernels, and a lane
    would differ in its last bits by how many others there are.
    """

    def __init__(self, like: Lane, width: int) -> None:
        model, groups = like.model, like.trainer.optimizer.param_groups
        self._stack = Stack(model, [group["params"] for group in groups], width)
        self._steps = Steps(self._stack)
        self._attempts = Attempts(self._stack)
        self._checked: dict[Lane, Any] = {}

    def hold(self, lane: Lane) -> bool:
        """Whether a lane has the shape of those here."""
        return self._stack.holds(lane.model)

    def adopt(self, lane: Lane) -> None:
        self._stack.adopt(lane.number, lane.model)

    def release(self, lane: Lane) -> None:
        self._checked.pop(lane, None)
        self._steps.leave(lane.number)
        self._stack.release(lane.model)

    # ------------------------------------------------------------------------------------------------ learning

    def learn(self, bucket: Sequence[Lane]) -> Failures:
        """Have the gradients of lanes that are alike on their next batch, and go by it; those that failed at it.

        Raises what reading the batch does, which concerns all of them.
        """
        lead, failures = bucket[0], Failures()
        span = lead.next_batch()
        for number, (batch, share) in enumerate(lead.read(span)):
            left = [lane for lane in bucket if lane not in failures]
            for lanes, outcome in self._attempts.outcomes(left, batch, share) if left else ():
                if isinstance(outcome, Exception):
                    failures |= dict.fromkeys(lanes, outcome)
                    continue
                self._stack.put(_numbers(lanes), outcome.gradients, outcome.buffers, add=number > 0)
                _tell(lanes, outcome)
        lead.pass_by(span)
        for lane in bucket[1:]:
            lane.follow(lead)
        return failures

    def update(self, bucket: Sequence[Lane]) -> Failures:
        """Change the parameters by the gradients that are there; those whose own code failed meanwhile."""
        joint = [lane for lane in bucket if not lane.updates_itself and self._is_joint(lane)]
        if joint:
            self._stack.clip_gradients(joint[0].trainer.clip_grad_norm, _numbers(joint))
        errors = self._steps.step(_numbers(joint))
        failures = {lane: errors[lane.number] for lane in joint if lane.number in errors}
        for lane in bucket:
            if lane in failures:
                continue
            try:
                lane.finish(is_stepped=lane in joint)
            except Exception as error:
                failures[lane] = error
        return failures

    def _is_joint(self, lane: Lane) -> bool:
        return self._steps.join(lane.number, lane.model, lane.trainer.optimizer)

    # ------------------------------------------------------------------------------------------------ looking first

    def profile(self, lane: Lane) -> Profile:
        """What the next batch of a lane costs its model alone, and full packs of this width and of narrower ones."""
        with generators.kept(lane.device):
            generators.restore(lane.generators, lane.device)
            batch, _ = next(lane.read(lane.next_batch()))
            alone = timed(lambda: Loss(lane.trainer).alone(batch), lane.device)
            groups = self._attempts.groups([lane] * self._stack.width, batch)
            full = timed(lambda: [self._attempts.packed(lanes, batch) for lanes in groups], lane.device)
            room, narrower = places(self._stack, lane, batch), widths_below(self._stack.width)
            packed = {width: self._cost(lane, batch, width + room.rows - room.lanes) for width in narrower}
            is_exact = room.exact and lane.trainer.clip_grad_norm is None
        return Profile(alone, {**packed, self._stack.width: full}, lane.batch_hp, is_exact)

    def measure(self, lane: Lane, widest: int) -> Profile:
        """What the next batch of a lane costs its model alone, and packs of up to so many lanes, fewest first.

        There need be no room for these here. It ends where a lane costs no less than in the pack before, or where
        memory does. Raises `NotPackable`.
        """
        with generators.kept(lane.device):
            generators.restore(lane.generators, lane.device)
            batch, _ = next(lane.read(lane.next_batch()))
            alone, room = timed(lambda: Loss(lane.trainer).alone(batch), lane.device), places(self._stack, lane, batch)
            packed: dict[int, Cost] = {}
            least = math.inf
            for width in (*widths_below(widest), widest):
                try:
                    packed[width] = self._cost(lane, batch, width + room.rows - room.lanes)
                except Exception as error:
                    if packed and is_out_of_memory(error):
                        break
                    raise meaning(error) from error
                if packed[width].seconds / width >= least:
                    break
                least = packed[width].seconds / width
        return Profile(alone, packed, lane.batch_hp)

    def _cost(self, lane: Lane, batch: Any, rows: int) -> Cost:
        """Of a pass with so many rows, as a narrower pack has."""
        return timed(lambda: Loss(lane.trainer).learnt(self._stack.rows([lane.number] * rows), batch), lane.device)

    def check(self, bucket: Sequence[Lane]) -> Refusals:
        """Those of lanes that are alike which cannot learn in passes; looked for once.

        It depends on each lane by itself, and not on its weights. A lane that does not learn what the first one would
        in its place is apart from here on. Nothing else is changed.
        """
        if all(self._checked.get(lane) == lane.traits for lane in bucket):
            return {}
        try:
            unlike = self._unlike(bucket)
        except NotPackable as reason:
            return {bucket[0]: reason, **(self.check(bucket[1:]) if len(bucket) > 1 else {})}
        self._checked.update({lane: lane.traits for lane in bucket if lane not in unlike})
        refusals: Refusals = {}
        for lane in unlike:
            if len(bucket) == 1:
                return {lane: NotPackable("packed, its loss is another: it depends on something that is no tensor")}
            lane.is_apart = True
            refusals |= self.check([lane])
        return refusals

    def _unlike(self, bucket: Sequence[Lane]) -> list[Lane]:
        """Those that have other gradients alone than the first lane has in a pass, with the same weights.

        Raises `NotPackable`, about the first one.
        """
        lead = bucket[0]
        batch, share, packed, at = self._packed_first(lead)
        unlike: list[Lane] = []
        for lane in bucket:
            generators.restore(at, lead.device)
            try:
                is_near = self._is_near(lane, packed, self._alone_first(lane, batch, share))
            except NotPackable:
                if lane is lead:
                    raise
                is_near = False
            if not is_near:
                unlike.append(lane)
        return unlike

    def _packed_first(self, lead: Lane) -> tuple[Any, float, Learnt, Generators]:
        """The next batch of a lane, its share, what a pass makes of it with drawn weights, the generators before."""
        generators.restore(lead.generators, lead.device)
        try:
            with lead.watched():
                batch, share = next(lead.read(lead.next_batch()))
                at = generators.state(lead.device)
                with self._stack.drawn(lead.number, seed=0):
                    return batch, share, self._attempts.packed([lead], batch, share), at
        except NotPackable:
            raise
        except Exception as error:
            raise meaning(error) from error

    def _alone_first(self, lane: Lane, batch: Any, share: float) -> Learnt:
        try:
            with self._stack.drawn(lane.number, seed=0):
                return Loss(lane.trainer).alone(batch, share)
        except Exception as error:
            raise meaning(error) from error

    def _is_near(self, lane: Lane, packed: Learnt, alone: Learnt) -> bool:
        """Whether gradients are the same but for rounding. Raises `NotPackable` if some are not there."""
        missing = packed.gradients.keys() - alone.gradients.keys()
        if missing:
            raise NotPackable(f"its parameter {min(missing)} has no gradient")
        distance = _length([each[0] - alone.gradients[name] for name, each in packed.gradients.items()])
        tolerance = MOST_TOLERANCE if lane.is_coarse else TOLERANCE.get(self._stack.dtype, MOST_TOLERANCE)
        return not distance > tolerance * _length(list(alone.gradients.values())) + 1e-12


def _tell(lanes: Sequence[Lane], learnt: Learnt) -> None:
    """What was logged, to each whose it is."""
    for name, sums in learnt.sums.items():
        for lane, total in zip(lanes, sums, strict=False):
            lane.log(name, total, learnt.counts[name])


def _numbers(lanes: Sequence[Lane]) -> list[int]:
    return [lane.number for lane in lanes]


def _length(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(each.double()) for each in tensors]).norm())
