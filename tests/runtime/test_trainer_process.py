"""A trainer in a process of its own, from the side of the slot: real processes, and no result changed by it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from moods import MOODY, TOY, Start, moody, toy, train
from moody import SAVE_SECONDS

from app.workers.state import State
from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from stagetree.runtime.failures import TrainerFailed

HP = {
    "lr": {"family": "multistep", "init": 0.1, "milestones": [4, 9], "gamma": 0.5},
    "momentum": {"family": "values", "values": [0.5, 0.9], "milestones": [6]},
}


def state_of(process: TrainerProcess, deadline: Deadline) -> bytes:
    """The whole state, to the last bit."""
    state = process.save(deadline=deadline)
    with memoryview(bytes(state.view())) as image:
        state.close()
        return bytes(image)


@pytest.fixture
def whole(start: Start, deadline: Deadline) -> bytes:
    """Twelve steps without a break."""
    process = toy(start())
    process.train(HP, 12, deadline=deadline)
    return state_of(process, deadline)


def test_results_are_equal_in_pieces_and_other_processes(start: Start, deadline: Deadline, whole: bytes) -> None:
    first, used = toy(start()), toy(start())
    used.train(HP | {"lr": 0.7}, 9, deadline=deadline)
    for step in range(1, 6):
        first.train(HP, step, deadline=deadline)
        first.call(deadline).evaluate()
        first.save(deadline=deadline).close()
    state = first.save(deadline=deadline)
    fresh = toy(start())
    for process in (fresh, used):
        process.call(deadline).load(fds=state.lend(), hp=HP, step=5)
        process.call(deadline).evaluate()
    for process in (first, fresh, used):
        assert process.train(HP, 12, deadline=deadline).step == 12
        assert state_of(process, deadline) == whole


@pytest.mark.parametrize("then", ["save", "train"])
def test_a_state_that_is_saved_with_an_evaluation_is_the_same_or_dropped(
    start: Start, deadline: Deadline, whole: bytes, then: str
) -> None:
    process = toy(start())
    process.train(HP, 5, deadline=deadline)
    before = process.call(deadline).evaluate()
    assert process.evaluate(deadline=deadline, look=True) == before
    if then == "save":
        process.save(deadline=deadline, look=True).close()
    process.train(HP, 12, deadline=deadline)
    assert process.evaluate(deadline=deadline, look=False).metrics != before.metrics
    assert state_of(process, deadline) == whole


def test_memory_returned_during_an_evaluation_is_reused(start: Start, deadline: Deadline) -> None:
    """It was given back to the save that was on its way already, and so to nothing."""
    process, buffers = moody(start()), set[int]()
    before = process.save(deadline=deadline)
    for step in range(1, 9):
        train(process, step)
        process.evaluate(deadline=deadline, look=False)
        before.close()
        before = process.save(deadline=deadline)
        buffers.add(os.fstat(before.fd).st_ino)
    before.close()
    assert len(buffers) <= 3


def test_an_evaluation_and_its_save_fail_separately(start: Start, deadline: Deadline) -> None:
    process = moody(start())
    train(process, 1, "unsavable")
    assert process.evaluate(deadline=deadline, look=True).metrics["total"] == 1
    with pytest.raises(TrainerFailed, match="Fraction"):
        process.save(deadline=deadline, look=True)
    train(process, 2, "unmeasurable")
    with pytest.raises(TrainerFailed, match="could not convert"):
        process.evaluate(deadline=deadline, look=True)
    assert process.call(deadline).seen().unread == [], "the answer of the save behind it is passed over"


@pytest.mark.parametrize("mood", ["slow_to_save", "slow_to_measure_and_save"])
def test_only_a_quick_evaluation_is_answered_with_its_save(start: Start, deadline: Deadline, mood: str) -> None:
    """Else both together might be silent for longer than one may be."""
    process = moody(start())
    train(process, 1, mood)
    begun_at = time.monotonic()
    process.evaluate(deadline=deadline, look=True)
    waited = time.monotonic() - begun_at >= SAVE_SECONDS
    process.save(deadline=deadline, look=True).close()
    assert time.monotonic() - begun_at >= SAVE_SECONDS
    assert waited == (mood == "slow_to_save")


def test_training_reports_the_memory_of_its_own_model(start: Start, deadline: Deadline) -> None:
    process, size = start(), 300 * 2**20
    peaks = list[int]()
    for each in (size, 8):
        process.call(deadline).build(file=MOODY, name="moody", args={"size": each}, seed=3)
        peaks.append(process.train({"mood": "fine"}, 1, deadline=deadline).peak_bytes)
    assert peaks[0] - peaks[1] > 0.9 * size and peaks[1] > 0


def test_a_checkpoint_is_restored_from_bytes(start: Start, deadline: Deadline, whole: bytes) -> None:
    state = State.from_bytes(whole)
    process = toy(start())
    process.call(deadline).load(fds=state.lend(), hp=HP, step=12)
    state.close()
    assert state_of(process, deadline) == whole


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_data_loader_has_workers_and_resumes_exactly(start: Start, deadline: Deadline, context: str) -> None:
    alone, watched = (moody(start(), workers=2, context=context) for _ in range(2))
    train(alone, 2)
    train(watched, 1)
    resumed = moody(start(), workers=0)
    resumed.call(deadline).load(fds=watched.save(deadline=deadline).lend(), hp={"mood": "fine"}, step=1)
    train(resumed, 2)
    metrics = alone.call(deadline).evaluate().metrics
    assert metrics == resumed.call(deadline).evaluate().metrics
    assert metrics["daemon"] == 0 and metrics["total"] != 0


def test_a_running_training_is_extended_and_shortened(start: Start) -> None:
    process = moody(start())
    assert train(process, 5, on_progress=lambda step: 40).step in (5, 40)
    aims = iter([10**9, 10**9 + 1])
    assert train(process, 10**9, on_progress=lambda step: next(aims, 0)).step < 10**9


def test_a_training_continues_to_an_end_that_arrives_late(start: Start) -> None:
    process = moody(start())
    on_progress = iter([50])
    assert train(process, 2, on_progress=lambda step: next(on_progress, None)).step in (2, 50)


def test_progress_is_reported_while_steps_are_short(start: Start) -> None:
    steps: list[int] = []

    def watch(step: int) -> int | None:
        steps.append(step)
        return 0 if step > 0 else None

    process = moody(start())
    end = train(process, 10**9, on_progress=watch)
    assert steps == sorted(steps) and 0 < steps[-1] <= end.step


def test_an_interrupt_of_the_watcher_stops_training_without_loss(start: Start, deadline: Deadline) -> None:
    def interrupt(step: int) -> None:
        raise KeyboardInterrupt

    process = moody(start())
    with pytest.raises(KeyboardInterrupt):
        train(process, 10**9, on_progress=interrupt)
    steps = process.call(deadline).evaluate().metrics["steps"]
    assert (
        train(process, int(steps or 0) + 3).step
        == process.call(deadline).evaluate().metrics["steps"]
        == (steps or 0) + 3
    )


def test_memory_of_saved_states_is_reused_and_of_loaded_ones_not(start: Start, deadline: Deadline) -> None:
    process, other = (moody(start()) for _ in range(2))
    train(process, 1)
    used = list[int]()
    for lend in (False, True, False):
        state = process.save(deadline=deadline)
        used.append(os.fstat(state.fd).st_ino)
        if lend:
            other.call(deadline).load(fds=state.lend(), hp={"mood": "fine"}, step=1)
        state.close()
    assert used[0] == used[1] != used[2]


def test_a_process_has_its_share_of_threads(start: Start, deadline: Deadline) -> None:
    assert moody(start(threads=3)).call(deadline).evaluate().metrics["threads"] == 3


def test_a_missing_gpu_is_reported_at_once(start: Start) -> None:
    with pytest.raises(TrainerFailed, match="finds no GPU") as failed:
        start(device="cuda:0", visible_devices="")
    assert failed.value.kind == "device"


@pytest.mark.parametrize(
    ("mood", "kind", "words"),
    [
        ("say_nonsense", "exception", r"ValueError: a file named \\udcff\\x00 is not there"),
        ("run_out_of_memory", "out_of_memory", "it did not fit"),
        ("break_the_context", "device", "device-side assert"),
        ("exit", "exception", "SystemExit: I quit"),
        ("no_such_mood", "exception", "no_such_mood"),
        ("stop", "exception", "has no terminal here: `stagetree debug STUDY TRIAL` trains a trial in yours"),
    ],
)
def test_an_error_is_reported_with_kind_step_and_traceback(start: Start, mood: str, kind: str, words: str) -> None:
    process = moody(start())
    train(process, 3)
    with pytest.raises(TrainerFailed, match=words) as failed:
        train(process, 9, mood)
    assert (failed.value.kind, failed.value.step) == (kind, 3)
    assert failed.value.error.splitlines()[0].startswith("Traceback") and MOODY in failed.value.error
    assert "stagetree/runtime" not in failed.value.error.partition(MOODY)[0]
    assert failed.value.signature.split(",")[1].startswith(" moody.py:")
    failed.value.error.encode()


def test_unknown_arguments_are_reported_without_a_traceback(start: Start) -> None:
    with pytest.raises(TrainerFailed, match=r"^TypeError: Moody.__init__\(\) got an unexpected .* 'sise'") as failed:
        moody(start(), sise=3)
    assert failed.value.kind == "exception"


def test_an_internal_error_is_distinguished(start: Start) -> None:
    with pytest.raises(TrainerFailed, match="there is no model yet") as failed:
        train(start(), 1)
    assert failed.value.kind == "internal"


def test_a_broken_context_does_not_affect_the_next_process(start: Start, deadline: Deadline) -> None:
    process = moody(start())
    with pytest.raises(TrainerFailed):
        train(process, 1, "break_the_context")
    assert process.call(deadline).evaluate().metrics["broken"] == 1
    assert moody(start()).call(deadline).evaluate().metrics["broken"] == 0


def test_all_output_goes_to_the_trials_log(start: Start, tmp_path: Path) -> None:
    process = moody(start())
    for name in ("one", "two"):
        process.log(tmp_path / "logs" / name)
        train(process, process.step + 1, "speak")
    for name in ("one", "two"):  # before it ends, when some libraries of others speak as well
        lines = (tmp_path / "logs" / name).read_text().splitlines()
        assert lines[0] == "printed by the trainer \\udcff"
        assert lines[1].endswith("INFO moody: logged by the trainer") and lines[1][:2] == "20"
        assert lines[2:] == ["written by a library", "said by a program"]


def test_a_log_may_change_while_it_trains(start: Start, tmp_path: Path) -> None:
    process = moody(start())

    def watch(step: int) -> int | None:
        if step and not (tmp_path / "log").exists():
            process.log(tmp_path / "log")
            return None
        return 0 if (tmp_path / "log").exists() and (tmp_path / "log").stat().st_size else None

    train(process, 10**9, "speak", on_progress=watch)
    assert "printed by the trainer" in (tmp_path / "log").read_text()


def test_resuming_on_another_machine_adds_a_line_to_the_log(start: Start, deadline: Deadline, tmp_path: Path) -> None:
    first, same, other = start(threads=1), start(threads=1), start(threads=2)
    toy(first).train(HP, 2, deadline=deadline)
    state, why = first.save(deadline=deadline), "resumed under another number of threads (2 after 1)"
    for process, reasons, line in ((same, [], ""), (other, [why], f"--- not exact: {why}\n")):
        process.log(tmp_path / str(process.pid))
        assert toy(process).call(deadline).load(fds=state.lend(), hp=HP, step=2) == reasons
        assert (tmp_path / str(process.pid)).read_text() == line


def test_resuming_with_another_package_adds_a_line_to_the_log(start: Start, deadline: Deadline, tmp_path: Path) -> None:
    """Of the packages that the trainer imports."""
    text = f"import json, sys\nsys.path.append({str(tmp_path / 'packages')!r})\nimport layers\n"
    (tmp_path / "trainer.py").write_text(text + Path(TOY).read_text().replace("from __future__ import annotations", ""))
    (tmp_path / "packages").mkdir()
    told, state = [], None
    for version in ("1.0", "1.10"):
        (tmp_path / "packages" / "layers.py").write_text(f"__version__ = {version!r}")
        process = start()
        process.log(tmp_path / version)
        process.call(deadline).build(file=str(tmp_path / "trainer.py"), name="toy", args={}, seed=3)
        if state is not None:
            process.call(deadline).load(fds=state.lend(), hp=HP, step=2)
        process.train(HP, 2 if state is None else 3, deadline=deadline)
        state = process.save(deadline=deadline)
        told.append((tmp_path / version).read_text())
    assert told == ["", "--- not exact: resumed under another layers (1.10 after 1.0)\n"]
