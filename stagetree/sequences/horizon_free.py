"""Families whose curve does not depend on the trial's length: by a power of the step, with an optional decay.

Trials of all lengths share the curve, and branch off it where their decays begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stagetree.sequences.base import Sequence, check_count, check_number
from stagetree.sequences.composed import DECAYS, check_shape
from stagetree.sequences.errors import SequenceError
from stagetree.sequences.forms import Held, Piece, PowerLaw, Ramp
from stagetree.sequences.scalars import common_numbers


@dataclass(frozen=True, slots=True, eq=False)
class InverseSqrt(Sequence):
    """Warm-up, then down by the square root of the step: `min + (peak - min) * sqrt(warmup / (t + 1))`.

    The schedule of Vaswani et al. (2017); with a decay that of Zhai et al. (2022, Scaling Vision Transformers). The
    warm-up reaches `peak` in its last step. From step `decay_start` on the value falls to `final` within `decay` steps,
    in the shapes of `Wsd`; with `decay` 0, it never does. If the trial's length is given, `decay_start` may be left
    out: the decay then ends with the trial.
    """

    family: ClassVar[str] = "inverse_sqrt"
    peak: float
    warmup: int
    decay: int = 0
    decay_start: int | None = None
    min: float = 0
    final: float = 0
    shape: str = "linear"

    def __post_init__(self) -> None:
        for name in ("peak", "min", "final"):
            check_number(name, getattr(self, name))
        check_count("warmup", self.warmup)
        check_count("decay", self.decay, least=0)
        self._check_decay_start()
        check_shape(self.shape, DECAYS)

    def _check_decay_start(self) -> None:
        start = self.decay_start
        if self.decay and start is None:
            raise SequenceError("decay_start", f"is missing: the step at which the {self.decay} steps of decay begin")
        if start is None:
            return
        if not self.decay:
            raise SequenceError("decay", f"is missing: the steps of the decay that begins at {start!r}")
        check_count("decay_start", start, least=0)
        if start < self.warmup:
            raise SequenceError("decay_start", f"must not be before the end of the warm-up at {self.warmup}")

    @classmethod
    def length_field(cls, written: Mapping[str, Any]) -> str | None:
        return "decay_start" if written.get("decay") else None

    @classmethod
    def fill_length_field(cls, written: Mapping[str, Any], steps: int) -> dict[str, Any]:
        decay = written.get("decay")
        return {**written, "decay_start": steps - decay} if isinstance(decay, int) else dict(written)

    @property
    def _exponent(self) -> float:
        return -0.5

    def decay_span(self) -> tuple[int, int] | None:
        return None if self.decay_start is None else (self.decay_start, self.decay_start + self.decay)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        peak, low, final = common_numbers(self.peak, self.min, self.final)
        curve = PowerLaw(origin + self.warmup - 1, peak, low, self._exponent, self.warmup)
        yield Piece(origin, Ramp(origin, 0, peak, self.warmup))
        yield Piece(origin + self.warmup, curve)
        if self.decay_start is not None:
            start = origin + self.decay_start
            yield Piece(start, DECAYS[self.shape](start, curve.at(start), final, self.decay))
            yield Piece(start + self.decay, Held(final))


@dataclass(frozen=True, slots=True, eq=False)
class Power(InverseSqrt):
    """Warm-up, then down by a power of the step: `min + (peak - min) * ((t + 1) / warmup) ** exponent`.

    The `PowerLR` of OLMo-core (https://github.com/allenai/OLMo-core/pull/674), whose `b` is `exponent`, after Shen et
    al. (2024, Power Scheduler). All else is as in `InverseSqrt`, which has an exponent of -0.5.
    """

    family: ClassVar[str] = "power"
    exponent: float = -0.51

    def __post_init__(self) -> None:
        InverseSqrt.__post_init__(self)
        check_number("exponent", self.exponent)
        if self.exponent >= 0:
            raise SequenceError("exponent", f"must be below 0, got {self.exponent!r}")

    @property
    def _exponent(self) -> float:
        return self.exponent
