"""One history of a simulated world, made from a seed alone, and what must hold of it."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from app.domain import events as e
from app.domain import keeping
from app.domain.evolve import fold
from app.domain.results import WITHOUT_PACK
from app.domain.search_plan import SearchPlan, Trial
from app.domain.terms import StudyState, TrialState, canonical_json
from tests.toys import grid, switch
from tests.world.fault_alphabet import FREE, HELD, PAUSE, RATES, chosen
from tests.world.system import LEASE, STEP, Json, Setting, World

FAULTS_UNTIL = 150.0
"""Virtual seconds, after which nothing goes wrong any more."""

LEASES = 12
"""So many leases after that, all must be over."""

LOOK = 5.0

WHIMS = ("wait", "wait", "wait", "wait", "pause", "cancel")

UNIQUE_STEPS = 56
"""Of the grid that is made longer: what its eight trials have in all."""

SHARE_OF_FAULTS = 0.03
"""In long histories: about one a minute."""

NEAR = 1e-4
"""As near are the metrics of models in single precision that were packed to those of the same that were not."""

MOST_STEPS, MOST_STEPS_OF_LONG = 24, 60
"""What one fault may cost: the steps that may be under way at once, since a state was kept. In long stages states are
kept inside, as often as costs a hundredth of the time."""


FAILING = ["fine", switch("fine", "raise", 7), switch("fine", "nan", 5)]
"""Of the trials of one study: some raise always at the same step, or have a metric that is no number."""

Metrics = Mapping[str, float | None]


@dataclass(eq=False)
class Violation(Exception):
    """What did not hold in the history of a seed, with what had happened."""

    seed: int
    sentence: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"seed {self.seed}: {self.sentence}", *self.story))


def studies(chance: Random) -> tuple[Json, ...]:
    """One or two, the second of which begins as the first."""
    sha = {"kind": "sha", "num_trials": 8, "min_steps": 3, "max_steps": 12, "reduction_factor": 2}
    every = [
        grid("world", seconds=0.0),
        grid("world", merge=False, name="apart"),
        grid("world", tuner=sha, name="halving"),
        grid("world", eval_every=4, name="fours"),
        grid("other", eval_every=4, name="another plan"),
        grid("failing", space={"lr": [0.1, switch(0.1, 0.2, 5)], "mood": FAILING}),
        packed(4),
        packed(3, name="narrow"),
        packed(4, name="at once", max_restarts=0),
        packed(4, tuner=sha, name="halving packs"),
        ranked({"least": 1, "most": 4}),
        ranked({"least": 1, "most": 2}, name="pairs or one"),
        ranked(2, name="pairs"),
    ]
    return tuple(chance.sample(every, chance.choice((1, 1, 2))))


def packed(width: int, **more: Any) -> Json:
    """Eight trials whose model is trained in packs."""
    named: Json = {"trainer": "packable", "metric": "val_loss", "mode": "min", "packing": width}
    spec = grid("packs", **{**named, **more})
    rates = spec["space"]["lr"]
    return {**spec, "space": {"lr": [*rates, switch(0.1, 0.05, 4), switch(0.1, 0.02, 6), 0.05, switch(0.05, 0.01, 4)]}}


def ranked(ranks: Any, name: str = "one to four", **more: Any) -> Json:
    """The grid, of a model whose batches are cut into shards."""
    return grid("ranks", trainer="sharded", trainer_args={"tag": "ranks"}, ranks=ranks, shards=4, name=name, **more)


def setting(chance: Random) -> Setting:
    its = studies(chance)
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
        studies=its,
        gaps=tuple(chance.random() * 30 for _ in its),
        whims=tuple(chance.choice(WHIMS) for _ in its),
        faults_until=FAULTS_UNTIL,
        most_steps=MOST_STEPS,
    )


def long_setting(hours: float) -> Setting:
    """One study that keeps three slots at work for so long, with some faults a minute."""
    slots = 3
    steps = 12 * int(hours * 3600 * slots / STEP / UNIQUE_STEPS)
    return Setting(
        slots=slots,
        schedulers=2,
        proofs=True,
        studies=(scaled(grid("long", tuner={"kind": "grid", "max_steps": 12}), steps // 12),),
        gaps=(0.0,),
        whims=("wait",),
        faults_until=hours * 3600,
        faults_share=SHARE_OF_FAULTS,
        most_steps=MOST_STEPS_OF_LONG,
    )


def scaled(spec: Json, factor: int) -> Json:
    """The same study with each of its steps as so many."""
    lengths = {"max_steps", "period", "eval_every"}

    def longer(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: longer(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [longer(each, name) for each in value]
        return value * factor if name in lengths or name == "milestones" else value

    return dict(longer(spec))


def faults_of(seed: int) -> list[str]:
    """Those that a seed chooses; none that is held against a trial where nothing of it is tried again."""
    chance = Random(seed)
    never = HELD if any(spec.get("max_restarts") == 0 for spec in setting(chance).studies) else set()
    return [fault for fault in chosen(chance) if fault not in never]


def play(seed: int, faults: Sequence[str] | None = None) -> World:
    """The history of a seed. faults: instead of those that it chooses. Raises `Violation`."""
    chance = Random(seed)
    return _played(seed, chance, setting(chance), faults_of(seed) if faults is None else faults)


def play_long(seed: int, hours: float) -> World:
    """A history of so many hours, with faults of all kinds. Raises `Violation`."""
    return _played(seed, Random(seed), long_setting(hours), list(RATES))


def _played(seed: int, chance: Random, its: Setting, wrong: Sequence[str]) -> World:
    with tempfile.TemporaryDirectory() as folder, errors() as said, names(chance):
        world = World(seed, its, wrong, Path(folder))
        try:
            _play(world)
            check(world, said)
        except Exception as broken:  # also what a part of the world raises and nobody expects
            raise Violation(
                seed, str(broken) or repr(broken), (f"faults: {', '.join(wrong)}", str(its), *world.faults.told)
            ) from broken
        finally:
            world.end()
    return world


def _play(world: World) -> None:
    """Until all is over, and has been for a while."""
    calm = 200 * STEP * len(world.setting.studies) + world.setting.faults_until
    until = world.setting.faults_until + LEASES * LEASE + calm
    while world.time.now < until and not world.is_over():
        world.time.run(world.time.now + LOOK)
        _check_lent(world)
    assert world.is_over(), f"not over {LEASES} leases after the last fault: {_standing(world)}"
    world.faults.until = 0.0
    for server in (world.database, world.objects, world.broker):
        server.come_back()
    until = world.time.now + PAUSE + 2 * LEASE
    while world.time.now < until and not world.is_at_rest():
        world.time.run(world.time.now + LOOK)
    world.time.run(world.time.now + 2 * LEASE)


def _standing(world: World) -> str:
    with world.database.records.read() as rows:
        live = [(row.chain[:6], row.slot, row.state.value, row.index, row.step) for row in rows.chains.live()]
        slots = [(slot.name, slot.chain, slot.lent_to, slot.quarantined_until, slot.note) for slot in rows.slots.all()]
    return f"chains {live}, slots {slots}, studies {[world.study(n).state.value for n in world.users.submitted]}"


def check(world: World, said: list[str]) -> None:
    """Raises AssertionError with what does not hold."""
    assert not said, f"errors were logged: {said}"
    for number, spec in enumerate(world.setting.studies):
        _check_results(world, number, spec)
    _check_objects(world)
    _check_rest(world)


def _check_results(world: World, number: int, spec: Json) -> None:
    plan, study = world.plan(number), world.study(number)
    its = {id for n, id in world.users.submitted.items() if world.users.streams[n] == world.users.streams[number]}
    assert set(plan.studies) == its, f"studies {set(plan.studies)} for {its}"
    is_left = world.setting.whims[number] == "cancel" and study.state == StudyState.CANCELLED
    assert is_left or study.state == StudyState.COMPLETED, f"study {number} is {study.state}"
    for trial, (right, got) in enumerate(
        zip(expected(canonical_json(spec)), results(world, number), strict=not is_left)
    ):
        fails = got.state == TrialState.FAILED
        assert not fails or right.state == TrialState.FAILED, f"trial {trial} of study {number} failed"
        same = is_left or (got.state, got.steps) == (right.state, right.steps)
        assert same, f"trial {trial} of study {number}: {got}, {right}"
        near = _is_without_pack(plan, study.trials[trial])
        wrong = [step for step, found in got.curve.items() if not _agree(found, right.curve[step], near=near)]
        assert not wrong, f"trial {trial} of study {number} has other values at steps {wrong}"
        assert is_left or fails or got.steps in got.curve, f"trial {trial} of study {number} has no value at its end"
    events = [each.event for each in world.database.records.log.read(world.users.streams[number])]
    assert fold(events) == plan, "the plan is not what its events fold to"
    repeated = study.executed - study.unique
    costly = world.deaths + sum(count for fault, count in world.faults.counts.items() if fault not in FREE)
    costly += _may_want_what_is_deleted(world.setting) + len(set(world.setting.whims) - {"wait"})
    assert repeated <= world.setting.most_steps * costly, (
        f"{repeated} steps were repeated, after {costly} faults that cost any"
    )
    _check_facts(events)


def _is_without_pack(plan: SearchPlan, trial: Trial) -> bool:
    """Whether it says that passes of its packs have failed, and so promises other last bits."""
    return any(reason == WITHOUT_PACK for node in plan.ends(trial) for _, reason in plan.nodes[node[0]].not_exact)


def _agree(found: Metrics, right: Metrics, *, near: bool) -> bool:
    return found == right or (near and found == pytest.approx(right, rel=NEAR))


def _may_want_what_is_deleted(its: Setting) -> int:
    """Whether somebody may come to want a checkpoint for which nobody waited when the budget was at its end."""
    return int(its.budget is not None and (len(its.studies) > 1 or its.studies[0]["tuner"]["kind"] != "grid"))


def _check_facts(events: list[e.Event]) -> None:
    """What can be so once is said once."""
    said = [
        *((each.chain, each.index) for each in events if isinstance(each, e.StageCompleted)),
        *((each.chain,) for each in events if isinstance(each, e.ChainEnded)),
        *((each.key,) for each in events if isinstance(each, e.CheckpointKept)),
    ]
    twice = [key for key, count in Counter(said).items() if count > 1]
    assert not twice, f"said more than once: {twice}"


def _check_objects(world: World) -> None:
    for number in range(len(world.setting.studies)):
        for kept in keeping.checkpoints(world.plan(number)):
            key = kept.checkpoint.key
            assert key in world.objects.objects, f"checkpoint {key} is named and not there"
            whole = hashlib.sha256(world.objects.objects[key]).hexdigest() == kept.checkpoint.sha256
            assert whole or key in world.objects.damaged, f"checkpoint {key} is not what was recorded"


def _check_rest(world: World) -> None:
    """Nothing goes on for ever, and nobody is left out."""
    with world.database.records.read() as rows:
        live, slots = list(rows.chains.live()), list(rows.slots.all())
    assert not live, f"chains live on: {_standing(world)}"
    assert len(slots) == world.setting.slots, f"slots {[slot.name for slot in slots]}"
    assert all(slot.is_free for slot in slots), f"slots are not free: {_standing(world)}"


def _check_lent(world: World) -> None:
    """At any moment: a slot is lent to a chain that is under way and knows it, and to no other."""
    with world.database.records.read() as rows:
        slots, live = list(rows.slots.all()), {row.chain: row for row in rows.chains.live()}
    for slot in slots:
        if slot.lent_to is not None:
            assert slot.lent_to in live, f"{slot.name} is lent to a chain that is over: {_standing(world)}"
            assert slot.name in live[slot.lent_to].members, f"nobody knows that {slot.name} is lent: {_standing(world)}"


@cache
def expected(spec: str) -> list[Result]:
    """The results of a study to which nothing happens, measured at each step."""
    its = Setting(slots=2, studies=(_measured_everywhere(json.loads(spec)),), gaps=(0.0,))
    with tempfile.TemporaryDirectory() as folder:
        world = World(0, its, [], Path(folder))
        while not world.is_over():
            world.time.run(world.time.now + LOOK)
        found = results(world, 0)
        world.end()
    return found


def know_results(seed: int) -> None:
    """Have what `expected` says of the studies of a seed at hand."""
    for spec in setting(Random(seed)).studies:
        expected(canonical_json(spec))


def _measured_everywhere(spec: Json) -> Json:
    """A study that is long is measured where it asks to be."""
    return spec if spec["eval_every"] > MOST_STEPS else {**spec, "eval_every": 1}


@dataclass(frozen=True)
class Result:
    """Of one trial. curve: of each step at which it was measured, the metrics."""

    state: TrialState
    steps: int
    curve: Mapping[int, Mapping[str, float | None]]


def results(world: World, number: int) -> list[Result]:
    """Those of a study."""
    plan = world.plan(number)
    return [Result(trial.state, trial.steps, dict(plan.curve(trial))) for trial in world.study(number).trials]


@contextmanager
def names(chance: Random) -> Iterator[None]:
    """What is named by chance, is by that of this world."""

    def uuid() -> UUID:
        return UUID(int=chance.getrandbits(128))

    with patch("app.workers.slot.checkpoint_store.uuid4", uuid), patch("app.workers.ownership.uuid4", uuid):
        yield


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


@contextmanager
def errors() -> Iterator[list[str]]:
    """What is logged as an error: of each, it is a mistake of ours."""
    handler, root = _Errors(), logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler.said
    finally:
        root.removeHandler(handler)
