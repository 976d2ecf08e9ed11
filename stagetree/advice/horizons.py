"""Advice where lengths are searched with schedules that are stretched to them, so that trials share nothing.

A schedule that falls over the whole length differs from step 0 on between lengths. `wsd` with a short decay shares all
but the decays, and ends as well (Hägele et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise

from stagetree.advice.tuning import RATES, warmup_end
from stagetree.sequences import Sequence, SequenceError, Wsd, unique_values
from stagetree.spec import SpecError, StudySpec
from stagetree.spec.tuners import FixedTuner
from stagetree.spec.tuners.fixed import TrialsTuner

MAX_TRIALS = 1000
"""Studies of more trials get no advice on their horizons."""

TAIL = 0.2
"""The decay that we propose, as a share of the length: Hägele et al. (2024) find 0.2 as good as a cosine."""

WORTHWHILE = 0.1
"""The least share of the steps that a proposal must save."""

NEAR_ZERO = 0.01
"""A schedule that ends at this share of its peak or below falls to 0: in its last step it is not there yet."""

_LISTED = 4
"""The most peaks that are written out in a proposal."""

Trial = tuple[dict[str, Sequence], int]
"""A configuration and the length of its trial."""


def horizon_advice(spec: StudySpec, count_steps: Callable[[StudySpec], int | None]) -> Iterator[str]:
    """Advise `wsd` for a learning rate that falls over the whole length, if trials have several lengths.

    The steps of the study are counted, and so are the steps of the same trials with `wsd`.
    """
    may_differ = spec.merge and getattr(spec.tuner, "max_steps", None) is None
    trials = list(islice(_trials(spec), MAX_TRIALS + 1)) if may_differ else []
    lengths = sorted({steps for _, steps in trials})
    if len(lengths) < 2 or len(trials) > MAX_TRIALS:
        return
    for name in RATES:
        stretched = [each for hp, steps in trials if name in hp and (each := falls_throughout(hp[name], steps))]
        if len(stretched) < len(trials):
            continue
        flat: list[Trial] = [({**hp, name: each}, steps) for (hp, steps), each in zip(trials, stretched, strict=True)]
        now, then = count_steps(spec), _count(spec, flat, count_steps)
        if now and then and then <= (1 - WORTHWHILE) * now:
            yield (
                f"{name} falls over the whole length of its trial, so trials of {len(lengths)} lengths share next to "
                f"nothing: as wsd with a tail of a fifth they take {then} steps instead of {now}, {1 - then / now:.0%} "
                f"less: write {name}: {_proposal(stretched)}"
            )


def _trials(spec: StudySpec) -> Iterator[Trial]:
    if isinstance(spec.tuner, TrialsTuner):
        yield from ((trial.configuration(), trial.steps) for trial in spec.tuner.trials)
    elif isinstance(spec.tuner, FixedTuner):
        yield from spec.tuner.configurations_with_steps(spec)


def falls_throughout(sequence: Sequence, steps: int) -> Wsd | None:
    """The `wsd` to propose for a schedule that falls from the end of its warm-up to the end of its trial, else None."""
    begin, tail = warmup_end(sequence), round(TAIL * steps)
    span = steps - 1 - begin
    if span < 4 or tail < 1 or begin > steps - tail:
        return None
    some = [sequence.at(begin + span * part // 4) for part in range(5)]
    values = [float(value) for value in some if isinstance(value, int | float)]
    if len(values) < len(some) or not _is_falling(values):
        return None
    peak, *_, final = values
    return Wsd(peak, begin, steps - tail, tail, final)


def _is_falling(values: list[float]) -> bool:
    """Whether each quarter of the way ends lower than it begins, and the whole at half or less."""
    return all(after < before for before, after in pairwise(values)) and 0 <= 2 * values[-1] <= values[0]


def _count(spec: StudySpec, trials: list[Trial], count_steps: Callable[[StudySpec], int | None]) -> int | None:
    """The unique steps of the study if it listed these trials."""
    written = {name: value for name, value in spec.to_json().items() if name not in ("space", "where", "tuner")}
    listed = [{"hp": {name: each.to_json() for name, each in hp.items()}, "steps": steps} for hp, steps in trials]
    try:
        return count_steps(StudySpec.from_dict({**written, "tuner": {"kind": "trials", "trials": listed}}))
    except (SequenceError, SpecError):
        return None


def _proposal(proposed: list[Wsd]) -> str:
    """How the space would write these schedules: to 0, unless all fall to the same other value."""
    peak, warmup = (_written([getattr(each, field) for each in proposed]) for field in ("peak", "warmup"))
    finals = {_written([each.final]) for each in proposed if each.final > NEAR_ZERO * each.peak}
    end = f", final: {finals.pop()}" if len(finals) == 1 else ""
    return f"{{family: wsd, peak: {peak}, warmup: {warmup}, decay: {{ratio: {TAIL}}}{end}}}"


def _written(values: list[float]) -> str:
    unique = [f"{value:.6g}" for value in unique_values(values)]
    if len(unique) == 1:
        return unique[0]
    return f"{{choice: [{', '.join(unique[:_LISTED])}{', ...' if len(unique) > _LISTED else ''}]}}"
