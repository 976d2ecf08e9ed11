"""Families made of phases or of other sequences: warm-up, warm-up-stable-decay, one cycle, piecewise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

from stagetree.sequences.base import Sequence, check_count, check_list, check_number, parse, pieces_from, set_field
from stagetree.sequences.forms import Form, HalfCosine, Held, OneMinusSqrt, Piece, Ramp, Slide
from stagetree.sequences.values import SequenceError, common_numbers


def moved_span(sequence: Sequence, origin: int) -> tuple[int, int] | None:
    """The decay of a sequence whose t is 0 at step `origin`."""
    span = sequence.decay_span()
    return None if span is None else (origin + span[0], origin + span[1])


@dataclass(frozen=True, slots=True, eq=False)
class Warmup(Sequence):
    """For t < steps: `start + (then(0) - start) * (t + 1) / steps`; after that `then`, with its own t from 0."""

    family: ClassVar[str] = "warmup"
    steps: int
    then: Sequence
    start: float = 0

    def __post_init__(self) -> None:
        set_field(self, "then", parse(self.then, "then"))
        check_count("steps", self.steps, least=0)
        check_number("start", self.start)
        check_number("then", self.then.at(0))

    def _pieces(self, origin: int) -> Iterator[Piece]:
        if self.steps:
            yield Piece(origin, Ramp(origin, self.start, self.then.at(0), self.steps))  # type: ignore[arg-type]
        yield from self.then._pieces(origin + self.steps)

    def decay_span(self) -> tuple[int, int] | None:
        return moved_span(self.then, self.steps)

    def _pieces_since(self, origin: int, since: int) -> Iterator[Piece]:
        if since >= origin + self.steps:
            return self.then._pieces_since(origin + self.steps, since)
        return pieces_from(since, self._pieces(origin))


DECAYS: dict[str, Callable[[float, float, float, int], Form]] = {
    "linear": Slide,
    "cosine": HalfCosine,
    "sqrt": OneMinusSqrt,
}


def check_shape(shape: Any, shapes: Iterable[str]) -> None:
    if not isinstance(shape, str) or shape not in shapes:
        raise SequenceError("shape", f"must be one of {', '.join(shapes)}, got {shape!r}")


_WAYS = {"cosine": DECAYS["cosine"], "linear": DECAYS["linear"]}


@dataclass(frozen=True, slots=True, eq=False)
class Wsd(Sequence):
    """Warm-up, stable, decay (Hu et al. 2024, MiniCPM): up to `peak`, held until `stable_until`, down to `final`.

    The decay takes `decay` steps and is "linear", "cosine" (half a period) or "sqrt" (1 - sqrt, Hägele et al. 2024).
    If the trial's length is given, `stable_until` may be left out: the decay then ends with the trial.
    """

    family: ClassVar[str] = "wsd"
    peak: float
    warmup: int
    stable_until: int
    decay: int
    final: float = 0
    shape: str = "linear"

    def __post_init__(self) -> None:
        check_number("peak", self.peak)
        check_count("warmup", self.warmup, least=0)
        check_count("stable_until", self.stable_until, least=0)
        check_count("decay", self.decay)
        check_number("final", self.final)
        if self.stable_until < self.warmup:
            raise SequenceError("stable_until", f"must not be before the end of the warm-up at {self.warmup}")
        check_shape(self.shape, DECAYS)

    @classmethod
    def length_field(cls, written: Mapping[str, Any]) -> str:
        return "stable_until"

    @classmethod
    def fill_length_field(cls, written: Mapping[str, Any], steps: int) -> dict[str, Any]:
        warmup, decay = written.get("warmup", 0), written.get("decay")
        if not isinstance(decay, int):
            return dict(written)
        if isinstance(warmup, int) and warmup + decay > steps and warmup >= 0:
            long = f"warmup {warmup} and decay {decay} are {warmup + decay} steps, and the trial has {steps}"
            raise SequenceError("decay", f"must end with the trial: {long}")
        return {**written, "stable_until": steps - decay}

    def decay_span(self) -> tuple[int, int]:
        return self.stable_until, self.stable_until + self.decay

    def _pieces(self, origin: int) -> Iterator[Piece]:
        decays, (peak, final) = origin + self.stable_until, common_numbers(self.peak, self.final)
        yield Piece(origin, Ramp(origin, 0, peak, self.warmup) if self.warmup else Held(peak))
        yield Piece(origin + self.warmup, Held(peak))
        yield Piece(decays, DECAYS[self.shape](decays, peak, final, self.decay))
        yield Piece(decays + self.decay, Held(final))


@dataclass(frozen=True, slots=True, eq=False)
class OneCycle(Sequence):
    """One cycle (Smith and Topin 2018): from `init` up to `max` in `up` steps, then down to `final` in `down`.

    Both phases are "cosine" (half a period) or "linear". PyTorch's `OneCycleLR(max_lr, total_steps, pct_start)` is
    `init` max_lr / 25, `final` max_lr / 250000, `up` pct_start * total_steps - 1, `down` total_steps - 1 - `up`. If the
    trial's length is given, `down` may be left out: `final` is then the value of the trial's last step, as in PyTorch.
    """

    family: ClassVar[str] = "one_cycle"
    max: float
    up: int
    down: int
    init: float = 0
    final: float = 0
    shape: str = "cosine"

    def __post_init__(self) -> None:
        for name in ("max", "init", "final"):
            check_number(name, getattr(self, name))
        check_count("up", self.up)
        check_count("down", self.down)
        check_shape(self.shape, _WAYS)

    @classmethod
    def length_field(cls, written: Mapping[str, Any]) -> str:
        return "down"

    @classmethod
    def fill_length_field(cls, written: Mapping[str, Any], steps: int) -> dict[str, Any]:
        up = written.get("up")
        return {**written, "down": steps - 1 - up} if isinstance(up, int) else dict(written)

    def decay_span(self) -> tuple[int, int]:
        return self.up, self.up + self.down

    def _pieces(self, origin: int) -> Iterator[Piece]:
        way, top = _WAYS[self.shape], origin + self.up
        init, highest, final = common_numbers(self.init, self.max, self.final)
        yield Piece(origin, way(origin, init, highest, self.up))
        yield Piece(top, way(top, highest, final, self.down))
        yield Piece(top + self.down, Held(final))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One part of a `Piecewise`: `sequence` for `steps` steps, or forever, from its own t = `skip` on."""

    sequence: Sequence
    steps: int | None = None
    skip: int = 0

    def to_json(self) -> dict[str, Any]:
        steps = {} if self.steps is None else {"steps": self.steps}
        return {**steps, **({"skip": self.skip} if self.skip else {}), "sequence": self.sequence.to_json()}

    def pieces_since(self, origin: int, since: int) -> Iterator[Piece]:
        """The pieces from step `since` on, where the part begins at step `origin`."""
        before = origin - self.skip
        return self.sequence._pieces_since(before, since) if since > before else self.sequence._pieces(before)


@dataclass(frozen=True, slots=True, eq=False)
class Piecewise(Sequence):
    """Parts one after the other, each with its own t that begins at 0 or at `skip`. All but the last have a length.

    `skip` lets a part continue in the middle of its sequence, for example to change a schedule without losing its pace.
    """

    family: ClassVar[str] = "piecewise"
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        parts = check_list("parts", self.parts)
        if not parts:
            raise SequenceError("parts", "must hold at least one part")
        last = len(parts) - 1
        set_field(self, "parts", tuple(_part(part, f"parts[{n}]", is_last=n == last) for n, part in enumerate(parts)))

    def decay_span(self) -> tuple[int, int] | None:
        """The decay of the last part, if it begins there."""
        *before, last = self.parts
        begin = sum(part.steps or 0 for part in before)
        span = moved_span(last.sequence, begin - last.skip)
        return span if span is not None and span[0] >= begin else None

    def _pieces(self, origin: int) -> Iterator[Piece]:
        return self._pieces_since(origin, origin)

    def _pieces_since(self, origin: int, since: int) -> Iterator[Piece]:
        for part in self.parts:
            end = math.inf if part.steps is None else origin + part.steps
            if end > since:
                pieces = part.pieces_since(origin, max(origin, since))
                yield from takewhile(lambda piece, end=end: piece.start < end, pieces)  # type: ignore[misc]
            origin += part.steps or 0


def _part(value: Any, path: str, *, is_last: bool) -> Part:
    if isinstance(value, Part):
        part = value
    else:
        if not isinstance(value, Mapping) or "sequence" not in value or value.keys() - {"steps", "sequence", "skip"}:
            raise SequenceError(path, f'must be {{"steps": n, "sequence": s}}, the last without steps, got {value!r}')
        part = Part(parse(value["sequence"], f"{path}.sequence"), value.get("steps"), value.get("skip", 0))
    check_count(f"{path}.skip", part.skip, least=0)
    try:
        next(part.pieces_since(0, 0))
    except SequenceError as error:
        raise SequenceError(error.nested_field(path), error.problem) from None
    if is_last and part.steps is not None:
        raise SequenceError(f"{path}.steps", "must be left out of the last part: it lasts for ever")
    if not is_last:
        check_count(f"{path}.steps", part.steps)
    return part


def first_parts(written: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    """The first `step` steps of a sequence, as JSON parts of a `piecewise` to which more can be appended."""
    if written["family"] != "piecewise":
        return [{"steps": step, "sequence": written}]
    parts: list[dict[str, Any]] = []
    for part in written["parts"]:
        steps = min(step, part.get("steps", step))
        if steps:
            parts.append({**part, "steps": steps})
        step -= steps
    return parts
