"""One study can never stop another: after any error in the work of one, all others continue as without it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from scenes import AWAY, OPENED, RANDOM, Json, Scene

from app.domain.search_plan import SearchPlan, Study, TrialEvent
from app.domain.terms import StudyId
from app.scheduling.fair_share import POLICIES
from app.scheduling.frontier import Frontier
from app.search.tuners import TUNERS
from app.search.tuners.driver import TunerDriver, make_driver
from app.search.tuners.sha import Asha
from app.workers.scheduler import assignment, gangs, ports, reaper, sharing, tick, tuning, verification, work_choice
from app.workers.scheduler.fence import Fence
from app.workers.scheduler.ports import Ports

LAME, PLAN = "lame", "lame-plan"
SHA: Json = {"kind": "sha", "num_trials": 6, "min_steps": 1, "max_steps": 4, "reduction_factor": 2}
MODULES = (tick, tuning, assignment, work_choice, gangs, ports, verification, reaper, sharing)
PURE = ("app.scheduling", "app.domain", "app.search")

Place = tuple[Any, str]


def functions() -> Iterator[Place]:
    """Each function that the scheduler calls for plans and studies, where it looks it up."""
    for module in MODULES:
        for name, found in vars(module).items():
            if inspect.isfunction(found) and found.__module__.startswith((*PURE, module.__name__)):
                yield module, name
    for kind in (Frontier, TunerDriver):
        yield from ((kind, name) for name, found in vars(kind).items() if inspect.isfunction(found))
    yield Ports, "transact"


CALLS = [place for place in functions() if place[1] not in ("__init__", "make_driver", "say_once")]


def concerns_lame(given: object) -> bool:
    """Whether an argument of a call is the lame study, its plan, or something that names it."""
    if isinstance(given, SearchPlan):
        return LAME in given.studies
    if isinstance(given, Frontier):
        return given.id == PLAN
    if isinstance(given, TunerDriver):
        return given.spec["name"] == LAME
    if isinstance(given, list | tuple):
        return any(map(concerns_lame, given))
    return given in (LAME, PLAN) if isinstance(given, str) else isinstance(given, Study) and given.id == LAME


class Fault:
    """A function that raises whenever it is called for the lame study, while this is on."""

    def __init__(self, error: Exception) -> None:
        self.error, self.is_on, self.times = error, True, 0

    def put(self, where: Place, patch: pytest.MonkeyPatch) -> None:
        called: Callable[..., Any] = getattr(*where)

        def raising(*given: Any, **named: Any) -> Any:
            if self.is_on and any(map(concerns_lame, (*given, *named.values()))):
                self.times += 1
                raise self.error
            return called(*given, **named)

        patch.setattr(*where, raising)


def make_scene(policy: str = "fair_share", **more: Any) -> Scene:
    """A lame study and a sound one, of two plans whose trainers are on slots of their own."""
    scene = Scene(slots=0, policy=POLICIES[policy], turn_seconds=60.0, **more)
    for slot, trainer in (("gpu0", "lame"), ("gpu1", "toy")):
        scene.register(slot, trainers={trainer: "1"})
    scene.submit(SHA | {"sampling_seed": 1}, LAME, PLAN, replace(OPENED, trainer="lame"))
    scene.submit(SHA | {"sampling_seed": 2}, "sound", "sound-plan")
    return scene


def history(scene: Scene) -> dict[int, list[TrialEvent]]:
    """Of the sound study, by trial."""
    study = scene.study("sound", "sound-plan")
    return {trial.number: [each for each in study.history if each.trial == trial.number] for trial in study.trials}


@pytest.fixture(scope="module")
def calm() -> dict[int, list[TrialEvent]]:
    """What happened to the sound study beside a study without an error."""
    scene = make_scene()
    scene.run()
    assert scene.study(LAME, PLAN).state == scene.study("sound", "sound-plan").state == "completed"
    return history(scene)


def run_with_fault(fault: Fault, is_late: bool) -> Scene:
    """A scene in which the fault is on from the start, or from when a chain of each study is under way."""
    scene = make_scene()
    fault.is_on = not is_late
    scene.scheduler.tick()
    fault.is_on = True
    if is_late:
        scene.messages = [each for each in scene.messages if each[2] != "gpu0"]  # its worker hears nothing
        scene.train()
        scene.expire("gpu1", "gpu0")
    scene.run()
    return scene


@pytest.fixture(scope="module")
def lame_study_calls() -> dict[bool, set[Place]]:
    """The calls for the lame study during which the fault would be on. In other places a fault changes nothing."""
    return {is_late: calls_for_lame(is_late) for is_late in (False, True)}


def calls_for_lame(is_late: bool) -> set[Place]:
    watch, seen = Fault(KeyError("never raised")), set[Place]()
    with pytest.MonkeyPatch.context() as patch:
        for where in CALLS:
            called: Callable[..., Any] = getattr(*where)

            def noting(*given: Any, _called: Any = called, _where: Place = where, **named: Any) -> Any:
                if watch.is_on and any(map(concerns_lame, (*given, *named.values()))):
                    seen.add(_where)
                return _called(*given, **named)

            patch.setattr(*where, noting)
        run_with_fault(watch, is_late)
    return seen


@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "under way"])
@pytest.mark.parametrize("where", CALLS, ids=lambda where: f"{where[0].__name__.rpartition('.')[2]}.{where[1]}")
def test_any_error_in_the_work_of_one_study_changes_no_history_of_another(
    where: Place, is_late: bool, calm: object, lame_study_calls: dict[bool, set[Place]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if where not in lame_study_calls[is_late]:
        return
    fault = Fault(KeyError("an error of ours"))
    fault.put(where, monkeypatch)
    scene = run_with_fault(fault, is_late)
    assert fault.times
    assert scene.study("sound", "sound-plan").state == "completed"
    assert history(scene) == calm
    if scene.study(LAME, PLAN).state != "completed":
        is_failed = scene.study(LAME, PLAN).error is not None
        assert is_failed or {LAME, PLAN} & {*scene.scheduler.problems()}
    fault.is_on = False
    scene.run()
    assert scene.study(LAME, PLAN).state in ("completed", "failed")
    assert not scene.scheduler.problems()


def test_the_calls_are_those_of_a_tick(lame_study_calls: dict[bool, set[Place]]) -> None:
    """Or the test before would hold for nothing."""
    asked = {(tuning, "decide"), (assignment, "place"), (sharing, "share_requests"), (Ports, "transact")}
    for seen in lame_study_calls.values():
        assert asked <= seen and len(seen) > 40


def failing(error: Exception) -> Callable[..., Any]:
    def raising(*given: object, **named: object) -> Any:
        raise error

    return raising


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), RecursionError("too deep")], ids=repr)
def test_an_error_with_one_study_does_not_concern_another_of_its_plan(error: Exception) -> None:
    class Lame(TunerDriver):
        observe = failing(error)

    def make(study: StudyId, spec: Json) -> TunerDriver:
        return Lame(spec) if study == LAME else make_driver(study, spec)

    scene = Scene(make_driver=make)
    scene.submit(RANDOM, LAME)
    scene.submit(RANDOM, "sound")
    scene.run()
    assert (scene.study("sound").state, scene.study(LAME).state) == ("completed", "running")
    text = f"study {LAME} cannot be scheduled: {type(error).__name__}: {error}"
    assert scene.scheduler.held_up_reasons() == {LAME: text}


def test_an_error_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    scene = make_scene(make_costs=failing(OverflowError("a number too large")))
    for _ in range(3):
        scene.scheduler.tick()
    found = [record for record in caplog.records if "OverflowError" in record.getMessage()]
    assert [bool(record.exc_info) for record in found] == [True, True]  # one of each plan
    assert (
        scene.scheduler.held_up_reasons()[PLAN] == f"plan {PLAN} cannot be scheduled: OverflowError: a number too large"
    )


def test_an_outage_is_not_an_error_of_a_study() -> None:
    scene = make_scene(make_costs=failing(AWAY))
    assert not scene.scheduler.tick()
    assert not scene.scheduler.problems()


def test_a_strict_fence_raises_errors_again() -> None:
    scene = make_scene(make_costs=failing(ZeroDivisionError()), fence=Fence(is_strict=True))
    with pytest.raises(ZeroDivisionError):
        scene.scheduler.tick()


def test_a_tuner_that_cannot_be_made_fails_its_study(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Asha):
        __init__ = failing(FileNotFoundError("no curves.json"))  # type: ignore[assignment]

    monkeypatch.setitem(TUNERS, "asha", Broken)
    scene = Scene()
    scene.submit({"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 4, "reduction_factor": 2}, "broken")
    scene.submit(RANDOM, "sound")
    scene.run()
    assert scene.study("broken").state == "failed"
    assert scene.study("broken").error == "the tuner failed: FileNotFoundError: no curves.json"
    assert scene.study("sound").state == "completed"


def test_a_grid_in_which_one_length_has_no_end_fails_its_study_alone() -> None:
    lr = {"family": "wsd", "peak": 0.05, "warmup": 0, "stable_until": 6, "decay": 4, "final": {"choice": [0, 0.05]}}
    scene = Scene()
    scene.submit({"kind": "grid"}, "end", space={"lr": lr, "max_steps": {"end": "lr"}})
    scene.submit(RANDOM, "sound")
    scene.run()
    assert scene.study("end").state == "failed"
    assert "max_steps.end" in (scene.study("end").error or "")
    assert scene.study("sound").state == "completed"


def test_a_chain_that_the_broker_never_takes_is_asked_for_last() -> None:
    sent = list[str]()

    def publish(chain: str, stages: int, slot: str) -> None:
        if slot == "gpu0":
            raise OSError("no such queue")
        sent.append(slot)

    scene = Scene(slots=3, publish=publish)
    scene.submit(RANDOM)
    for _ in range(4):
        scene.scheduler.tick()
    assert sorted(sent) == ["gpu1", "gpu2"]
