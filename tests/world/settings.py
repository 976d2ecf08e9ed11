"""The studies and the shape of a simulated world: all choices of a seed but the faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from stacks import Json

from tests.toys import grid, switch

FAULTS_UNTIL = 150.0
"""Virtual seconds, after which nothing goes wrong any more."""

STEP = 1.0
"""Mean seconds of a step."""

WHIMS = ("wait", "wait", "wait", "wait", "pause", "cancel")

UNIQUE_STEPS = 56
"""Of the grid that is made longer: what its eight trials have in all."""

SHARE_OF_FAULTS = 0.03
"""In long histories: about one a minute."""

MOST_STEPS, MOST_STEPS_OF_LONG = 24, 60
"""What one fault may cost: the steps that may be under way at once, since a state was kept. In long stages states are
kept inside, as often as costs a hundredth of the time."""

FAILING = ["fine", switch("fine", "raise", 7), switch("fine", "nan", 5)]
"""Of the trials of one study: some raise always at the same step, or have a metric that is no number."""


@dataclass(frozen=True)
class Average:
    """Of these trials. steps: for how many it is trained on; None for none."""

    trials: tuple[int, ...]
    steps: int | None = None


@dataclass(frozen=True)
class Setting:
    """What a history is made in. host: how many slots are on one machine. budget: bytes for checkpoints. memory: bytes
    of recent states in a slot. copies: whether machines have disks for copies of them.

    faults_until: seconds after which nothing goes wrong any more. faults_share: of their rates, how often they happen.
    most_steps: what one fault may cost.
    gaps: seconds before each study is submitted. whims: what its user does with each: `wait`, `pause` or `cancel`.
    averages: which of its trials are averaged. archives: whether old plans are archived and brought back, which a
    real database does.
    """

    slots: int = 1
    host: int = 2
    schedulers: int = 1
    apis: int = 1
    budget: int | None = None
    memory: int = 0
    copies: bool = False
    proofs: bool = False
    policy: str = "critical_path"
    studies: tuple[Json, ...] = ()
    gaps: tuple[float, ...] = ()
    whims: tuple[str, ...] = ()
    averages: tuple[tuple[Average, ...], ...] = ()
    archives: bool = False
    faults_until: float = 0.0
    faults_share: float = 1.0
    most_steps: int = 0


def studies(chance: Random) -> tuple[Json, ...]:
    """One or two, the second of which begins as the first."""
    sha = {"kind": "sha", "num_trials": 8, "min_steps": 3, "max_steps": 12, "reduction_factor": 2}
    every = [
        grid("world", seconds=0.0),
        grid("world", merge=False, name="apart"),
        grid("world", tuner=sha, name="halving"),
        grid("world", eval_every=4, value="best", name="fours"),
        grid("other", eval_every=4, name="another plan"),
        grid("failing", space={"lr": [0.1, switch(0.1, 0.2, 5)], "mood": FAILING}),
        packed_study(4),
        packed_study(3, eval_every=3, value="best", name="narrow"),
        packed_study(4, name="at once", max_restarts=0),
        packed_study(4, tuner=sha, name="halving packs"),
        ranked_study({"least": 1, "most": 4}),
        ranked_study({"least": 1, "most": 2}, name="pairs or one"),
        ranked_study(2, name="pairs"),
    ]
    return tuple(chance.sample(every, chance.choice((1, 1, 2))))


def packed_study(width: int, **more: Any) -> Json:
    """Eight trials whose model is trained in packs."""
    named: Json = {"trainer": "packable", "metric": "val_loss", "mode": "min", "packing": width}
    spec = grid("packs", **{**named, **more})
    rates = spec["space"]["lr"]
    return {**spec, "space": {"lr": [*rates, switch(0.1, 0.05, 4), switch(0.1, 0.02, 6), 0.05, switch(0.05, 0.01, 4)]}}


def ranked_study(ranks: Any, name: str = "one to four", **more: Any) -> Json:
    """The grid, of a model whose batches are cut into shards."""
    return grid("ranks", trainer="sharded", trainer_args={"tag": "ranks"}, ranks=ranks, shards=4, name=name, **more)


def setting(chance: Random) -> Setting:
    its = studies(chance)
    drawn = replace(_sample_setting(chance, its), studies=its)
    wishes = Random(repr(drawn))  # earlier choices of a seed stay the same
    averages = tuple(
        _averages(wishes) if _has_averages(spec, whim) and wishes.random() < 0.5 else ()
        for spec, whim in zip(its, drawn.whims, strict=True)
    )
    return replace(drawn, averages=averages, archives=wishes.random() < (0.4 if any(averages) else 0.08))


def _has_averages(spec: Json, whim: str) -> bool:
    """Whether its trials are sure to have an end, where a mean can be taken. Best steps go by what others measure."""
    plain = spec["trainer"] == "toy" and spec["tuner"]["kind"] == "grid" and "mood" not in spec["space"]
    return plain and spec["merge"] and whim == "wait" and "value" not in spec


AVERAGES = (Average((0, 3)), Average((1, 2, 5)), Average((6, 7), steps=15), Average((0, 3), steps=14))
"""Averages of some leaves. A leaf that is named twice is one node."""


def _averages(chance: Random) -> tuple[Average, ...]:
    """Some of them, one after the other."""
    return tuple(chance.sample(AVERAGES, chance.choice((1, 2, 3))))


def _sample_setting(chance: Random, its: tuple[Json, ...]) -> Setting:
    are_ranked = any("ranks" in spec for spec in its)
    return Setting(
        slots=chance.choice((2, 3, 4) if are_ranked else (1, 2, 3)),
        host=chance.choice((2, 4)),
        schedulers=chance.choice((1, 1, 2)),
        apis=chance.choice((1, 2)),
        budget=chance.choice((None, None, 40_000)),
        memory=(memory := chance.choice((0, 2**20))),
        copies=not memory,
        policy=chance.choice(("critical_path", "fair_share")),
        proofs=chance.choice((False, False, False, True)),
        gaps=tuple(chance.random() * 30 for _ in its),
        whims=tuple(chance.choice(WHIMS) for _ in its),
        faults_until=FAULTS_UNTIL,
        most_steps=MOST_STEPS,
    )


def long_setting(hours: float) -> Setting:
    """One study that keeps three slots at work for this long, with some faults a minute."""
    slots = 3
    steps = 12 * int(hours * 3600 * slots / STEP / UNIQUE_STEPS)
    return Setting(
        slots=slots,
        schedulers=2,
        proofs=True,
        studies=(scale_steps(grid("long", tuner={"kind": "grid", "max_steps": 12}), steps // 12),),
        gaps=(0.0,),
        whims=("wait",),
        faults_until=hours * 3600,
        faults_share=SHARE_OF_FAULTS,
        most_steps=MOST_STEPS_OF_LONG,
    )


def scale_steps(spec: Json, factor: int) -> Json:
    """The same study with each of its steps as several."""
    lengths = {"max_steps", "period", "eval_every"}

    def longer(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: longer(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [longer(each, name) for each in value]
        return value * factor if name in lengths or name == "milestones" else value

    return dict(longer(spec))
