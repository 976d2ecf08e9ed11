"""What must hold of a history of a simulated world."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from random import Random

import pytest

from app.domain import checkpoint_needs
from app.domain import events as e
from app.domain.events import WITHOUT_PACK
from app.domain.evolve import fold
from app.domain.results import result
from app.domain.search_plan import SearchPlan, Trial
from app.domain.terms import NodeId, StudyState, TrialState, canonical_json
from tests.world.fault_alphabet import FREE
from tests.world.settings import AVERAGES, MOST_STEPS, Average, Json, Setting, setting
from tests.world.surroundings import folder_of_world
from tests.world.system import World

LOOK = 5.0

LOSS = "the database has lost its last commits"

NEAR = 1e-4
"""The largest relative difference between metrics of packed and unpacked models in single precision."""

Metrics = Mapping[str, float | None]
Place = tuple[NodeId, int]


def check(world: World, said: list[str]) -> None:
    """Raises AssertionError with the broken rule."""
    losses = [each for each in said if LOSS in each] if world.lost_times else []
    assert len(said) == len(losses), f"errors were logged: {said}"
    world.noticed_losses = len(losses)
    for number, spec in enumerate(world.setting.studies):
        _check_results(world, number, spec)
    _check_objects(world)
    _check_rest(world)


def _check_results(world: World, number: int, spec: Json) -> None:
    plan, study = world.plan(number), world.study(number)
    averages = world.setting.averages[number] if world.setting.averages else ()
    its = {id for n, id in world.users.submitted.items() if world.users.streams[n] == world.users.streams[number]}
    assert set(plan.studies) == its, f"studies {set(plan.studies)} for {its}"
    is_left = world.setting.whims[number] == "cancel" and study.state == StudyState.CANCELLED
    assert is_left or study.state == StudyState.COMPLETED, f"study {number} is {study.state}"
    for trial, (right, got) in enumerate(
        zip(expected_results(canonical_json(spec), averages), results(world, number), strict=not is_left)
    ):
        fails = got.state == TrialState.FAILED
        assert not fails or right.state == TrialState.FAILED, f"trial {trial} of study {number} failed"
        same = is_left or (got.state, got.steps) == (right.state, right.steps)
        assert same, f"trial {trial} of study {number}: {got}, {right}"
        near = _is_without_pack(plan, study.trials[trial])
        wrong = [step for step, found in got.curve.items() if not _agree(found, right.curve[step], near=near)]
        assert not wrong, f"trial {trial} of study {number} has other values at steps {wrong}"
        missing = (
            [] if is_left or fails else [step for step in _due_steps(world, number, right) if step not in got.curve]
        )
        assert not missing, f"trial {trial} of study {number} has no values at steps {missing}"
        assert is_left or fails or got.steps in got.curve, f"trial {trial} of study {number} has no value at its end"
    events = [each.event for each in world.database.records.log.read(world.users.streams[number])]
    assert fold(events) == plan, "the plan is not what its events fold to"
    repeated = study.executed - study.unique
    costly = world.deaths + sum(count for fault, count in world.faults.counts.items() if fault not in FREE)
    costly += len(world.lost_times) * world.setting.slots
    costly += _may_want_what_is_deleted(world.setting) + len(set(world.setting.whims) - {"wait"})
    costly += sum(len(each.trials) for each in chain(*world.setting.averages))  # whose states may have gone before
    assert repeated <= world.setting.most_steps * costly, (
        f"{repeated} steps were repeated, after {costly} faults that cost any"
    )
    _check_facts(events)
    _check_parents(events)


def _due_steps(world: World, number: int, right: Result) -> list[int]:
    """The steps of a trial at which its study is measured. None where another study may have trained them before."""
    every, streams = world.setting.studies[number]["eval_every"], list(world.users.streams.values())
    is_alone = streams.count(world.users.streams[number]) == 1
    return [step for step in right.curve if step % every == 0] if is_alone else []


def _is_without_pack(plan: SearchPlan, trial: Trial) -> bool:
    """Whether it says that passes of its packs have failed, and so promises other last bits."""
    return any(reason == WITHOUT_PACK for node in plan.path_ends(trial) for _, reason in plan.nodes[node[0]].not_exact)


def _agree(found: Metrics, right: Metrics, *, near: bool) -> bool:
    return found == right or (near and found == pytest.approx(right, rel=NEAR))


def _may_want_what_is_deleted(its: Setting) -> int:
    """Whether a trial may later need a checkpoint for which none waited when the budget was at its end."""
    return int(its.budget is not None and (len(its.studies) > 1 or its.studies[0]["tuner"]["kind"] != "grid"))


def _check_facts(events: list[e.Event]) -> None:
    """Facts that can be true once are recorded once."""
    said = [
        *((each.chain, each.index) for each in events if isinstance(each, e.StageCompleted)),
        *((each.chain,) for each in events if isinstance(each, e.ChainEnded)),
        *((each.key,) for each in events if isinstance(each, e.CheckpointKept)),
    ]
    twice = [key for key, count in Counter(said).items() if count > 1]
    assert not twice, f"said more than once: {twice}"


def _check_parents(events: list[e.Event]) -> None:
    """The states of which an average is the mean stay while a trial asks for it, until it is kept."""
    shares, waiting, kept = dict[NodeId, set[Place]](), dict[NodeId, set[Place]](), set[Place]()
    for each in events:
        match each:
            case e.AverageNamed():
                shares[each.node] = {(share.node, share.step) for share in each.shares}
            case e.TrialAdded():
                asked = shares.keys() & each.path.keys() - {node for node, _ in kept}
                waiting |= {name: shares[name] for name in asked}
            case e.CheckpointKept():
                waiting.pop(each.node, None)
                kept.add((each.node, each.step))
            case e.CheckpointReleased():
                kept.discard((each.node, each.step))
                needed = [name for name, places in waiting.items() if (each.node, each.step) in places]
                assert not needed, f"{each} is what averages {needed} are to be made of"


def _check_objects(world: World) -> None:
    for number in range(len(world.setting.studies)):
        for kept in checkpoint_needs.checkpoints(world.plan(number)):
            key = kept.checkpoint.key
            if _is_forgotten(world, key):
                continue
            assert key in world.objects.objects, f"checkpoint {key} is named and not there"
            whole = hashlib.sha256(world.objects.objects[key]).hexdigest() == kept.checkpoint.sha256
            assert whole or key in world.objects.damaged, f"checkpoint {key} differs from its recorded hash"


def _is_forgotten(world: World, key: str) -> bool:
    """Whether the log has lost the event that released the checkpoint. The next reader notices the missing file."""
    at = world.objects.deleted.get(key)
    return at is not None and any(begin <= at <= end for begin, end in world.lost_times)


def _check_rest(world: World) -> None:
    """Every chain ends, and every slot is free."""
    with world.database.records.read() as rows:
        live, slots = list(rows.chains.live()), list(rows.slots.all())
    assert not live, f"chains live on: {standing(world)}"
    assert len(slots) == world.setting.slots, f"slots {[slot.name for slot in slots]}"
    assert all(slot.is_free for slot in slots), f"slots are not free: {standing(world)}"


def check_lent(world: World) -> None:
    """At any moment: a slot is lent to a chain that is under way and knows it, and to no other."""
    with world.database.records.read() as rows:
        slots, live = list(rows.slots.all()), {row.chain: row for row in rows.chains.live()}
    for slot in slots:
        if slot.lent_to is not None:
            assert slot.lent_to in live, f"{slot.name} is lent to a chain that is over: {standing(world)}"
            assert slot.name in live[slot.lent_to].members, f"no chain has lent {slot.name}: {standing(world)}"


@cache
def expected_results(spec: str, averages: tuple[Average, ...] = ()) -> list[Result]:
    """The results of a study to which nothing happens, measured at each step; then the averages of its trials."""
    if averages:
        return expected_results(spec) + [_average_results(spec)[each] for each in averages]
    return _calm(_measured_everywhere(json.loads(spec)))


@cache
def _average_results(spec: str) -> dict[Average, Result]:
    """The result of each possible average: none depends on the others, nor on their order."""
    return dict(zip(AVERAGES, _calm(json.loads(spec), AVERAGES)[-len(AVERAGES) :], strict=True))


def _calm(spec: Json, averages: tuple[Average, ...] = ()) -> list[Result]:
    its = Setting(slots=2, studies=(spec,), gaps=(0.0,), averages=(averages,))
    with folder_of_world() as folder:
        world = World(0, its, [], folder)
        while not world.is_over():
            world.time.run(world.time.now + LOOK)
        found = results(world, 0)
        _check_best_states(world)
        world.end()
    return found


def _check_best_states(world: World) -> None:
    """Where nothing goes wrong, the state after a trial's best step is kept for a study whose values are the best."""
    plan, study = world.plan(0), world.study(0)
    for trial in study.trials if study.spec.value == "best" else ():
        best = result(plan, study, trial)
        kept = checkpoint_needs.states_of(plan, trial)
        assert best is None or best.step in kept, f"trial {trial.number} lacks step {best.step}"


def know_results(seed: int) -> None:
    """Have the `expected_results` of the studies of a seed at hand."""
    its = setting(Random(seed))
    for spec, averages in zip(its.studies, its.averages, strict=True):
        expected_results(canonical_json(spec), averages)


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
    """The results of a study."""
    plan = world.plan(number)
    return [Result(trial.state, trial.steps, dict(plan.curve(trial))) for trial in world.study(number).trials]


def standing(world: World) -> str:
    with world.database.records.read() as rows:
        live = [(row.chain[:6], row.slot, str(row.state), row.index, row.step) for row in rows.chains.live()]
        slots = [(slot.name, slot.chain, slot.lent_to, slot.quarantined_until, slot.note) for slot in rows.slots.all()]
    return f"chains {live}, slots {slots}, studies {[str(world.study(n).state) for n in world.users.submitted]}"
