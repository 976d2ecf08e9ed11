"""Checks that a trainer is exact: several trainings of a few steps must agree bit for bit, each in a fresh process.

    python -P -m stagetree.runtime.check RESULT < JOB

JOB is the JSON of a `Job`, RESULT the file for the JSON of a `Report`. The trainer prints to stdout and stderr. This
process imports torch once and forks for each training. It runs no code of the trainer itself.
"""

from __future__ import annotations

import faulthandler
import glob
import hashlib
import json
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import distributed as dist

from stagetree.runtime import inexact_reasons, machine
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.exactness.differences import Leaves, causes, first_difference, leaves
from stagetree.runtime.exactness.held_values import differing_names, digest_held_values
from stagetree.runtime.failures import TrainerFailed, ending, user_code
from stagetree.runtime.loading import code_modules, load_trainer, script_of
from stagetree.runtime.machine import Machine
from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.reads.undeclared_reads import reads_of, watch_reads
from stagetree.runtime.warm import import_before_forking
from stagetree.system.files import anonymous_file
from stagetree.trainer.divided_tensors import Parted, map_parted
from stagetree.trainer.ranks import group

LATE_SECONDS = 1800.0
"""How long a rank waits for another one: as long as a step may take."""

Training = Callable[[], dict[str, Any]]


@contextmanager
def show_warnings_once() -> Iterator[None]:
    """Within the context, this process and its forks show each warning of one place once in total.

    Warnings that are recorded or raised as errors are not shown, and do not count.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        show = warnings.showwarning

        def once(message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any) -> None:
            text = f"{category.__name__} {filename}:{lineno} {message}"
            try:
                (Path(folder) / hashlib.sha256(text.encode(errors="replace")).hexdigest()).touch(exist_ok=False)
            except FileExistsError:
                return
            show(message, category, filename, lineno, *more)

        warnings.showwarning = once  # type: ignore[assignment]
        yield


def run_in_fork(way: Training) -> dict[str, Any]:
    """Run a training in a fork. Raises `TrainerFailed`."""
    return _parse_answer(*_run_all([way])[0])


def run_in_ranks(way: Training, world: int, device: str, *, is_watched: bool = False) -> dict[str, Any]:
    """Run the same training in a fork for each rank. Returns the leader's result. Raises `TrainerFailed`.

    is_watched: ranks that make different calls fail with these calls instead of waiting for each other; each call takes
    longer.
    """
    meeting = anonymous_file(0)

    def make_training(rank: int) -> Training:
        def do() -> dict[str, Any]:
            own = device if device == "cpu" else f"cuda:{rank}"
            if is_watched:
                dist.set_debug_level(dist.DebugLevel.DETAIL)  # type: ignore[attr-defined]
            group.be(group.Ranks.meet(meeting, rank, world, LATE_SECONDS, own))
            return way()

        return do

    try:
        answers = _run_all([make_training(rank) for rank in range(world)])
    finally:
        os.close(meeting)
    for rank, (status, answer) in answers.items():
        try:
            result = _parse_answer(status, answer)
        except TrainerFailed as failed:
            raise TrainerFailed(failed.kind, f"In rank {rank} of {world}:\n{failed.error}") from None
    return result


def _run_all(ways: list[Training]) -> dict[int, tuple[int, bytes]]:
    """Each fork's exit code and output, by number, the leader last. If one failed, only that one."""
    sys.stdout.flush()
    pids, pipes = list[int](), list[int]()
    for way in ways:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_and_exit(way, writing)
        os.close(writing)
        pids.append(pid)
        pipes.append(reading)
    parts = [b""] * len(ways)
    answers: dict[int, tuple[int, bytes]] = {}
    while waiting := [pipe for number, pipe in enumerate(pipes) if number not in answers]:
        for pipe in select.select(waiting, [], [])[0]:
            number = pipes.index(pipe)
            if part := os.read(pipe, 2**16):
                parts[number] += part
                continue
            os.close(pipe)
            status = os.waitstatus_to_exitcode(os.waitpid(pids[number], 0)[1])
            answers[number] = (status, parts[number])
            if not parts[number] or "error" in json.loads(parts[number]):
                for other in set(range(len(ways))) - answers.keys():  # they would wait for the one that failed
                    with suppress(ProcessLookupError):
                        os.kill(pids[other], signal.SIGKILL)
                    os.waitpid(pids[other], 0)
                    os.close(pipes[other])
                return {number: answers[number]}
    return dict(sorted(answers.items(), reverse=True))


def _parse_answer(status: int, answer: bytes) -> dict[str, Any]:
    """Raises `TrainerFailed`."""
    if not answer:
        raise TrainerFailed("crash", f"the trainer's process {ending(status)}")
    result: dict[str, Any] = json.loads(answer)
    if "error" in result:
        raise TrainerFailed("exception", result["error"])
    return result


def _run_and_exit(way: Training, writing: int) -> None:
    """In the fork: run, write the answer, and exit."""
    answer: Mapping[str, Any]
    try:
        answer = way()
    except TrainerFailed as failed:
        answer = {"error": failed.error}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    with open(writing, "w") as pipe:
        json.dump(answer, pipe)
    for worker in multiprocessing.active_children():  # a loader's workers would hold the pipe for seconds
        worker.kill()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


RANKED = "Likely: train() reads something that depends on its rank, or adds up in another order than self.ranks.sum"
_MEASURED = (
    *("metrics", "not_exact", "unread", "reads", "first_step_seconds", "step_seconds", "evaluate_seconds"),
    *("checkpoint_bytes", "save_seconds"),
)


@dataclass(frozen=True)
class Job:
    """What to check.

    file, name: the trainer. steps: the length of each training. broken: the step after which a training is resumed. hp:
    JSON of its sequences. shards, parallel: of the study, see `stagetree.trainer.ranks.group`. ranks: the numbers of
    ranks that must agree with one process.
    """

    file: str
    name: str
    args: Mapping[str, Any]
    seed: int
    hp: Mapping[str, Any]
    steps: int = 4
    broken: int = 2
    device: str = "cpu"
    threads: int = 1
    determinism: str = "strict"
    shards: int = 0
    parallel: str = "tree"
    ranks: tuple[int, ...] = ()


@dataclass
class Report:
    """The result of a check.

    differences: by kind of training, the first leaf that differs (or a metric, if no leaf does), the number of leaves
    that do, and the likely cause. Kinds: `split` in two processes; `watched`, evaluated and saved after each step;
    `again`, a plain repetition; `ranks 2`, trained by 2 ranks, without a break or from the state of one process.
    failed: the trainer's own error, which prevented a comparison. not_exact: operations without a deterministic form.
    unread: hyper-parameters that were not read. reads: undeclared data, code and variables. first_step_seconds:
    includes one-time work such as compiling. save_seconds: the time to save `checkpoint_bytes`.
    """

    steps: int
    broken: int
    metrics: dict[str, float | None] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)
    not_exact: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    first_step_seconds: float = 0.0
    step_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    checkpoint_bytes: int = 0
    save_seconds: float = 0.0
    load_seconds: float = 0.0
    failed: str = ""


def check(job: Job) -> Report:
    """Run and compare all trainings. This process must not have started CUDA or threads."""
    import_before_forking([job.file])
    report = Report(job.steps, job.broken)
    with tempfile.TemporaryDirectory() as folder, show_warnings_once():
        ways = _Trainings(job, Path(folder))
        try:
            _compare(job, ways, report)
        except TrainerFailed as failed:
            report.failed = failed.error
    if report.differences and (script := script_of(job.file, job.name)) is not None:
        for way, text in report.differences.items():
            report.differences[way] = inexact_reasons.rephrase_for_scripts(text, bool(script.get("launch")))
    return report


def _compare(job: Job, ways: _Trainings, report: Report) -> None:
    run_in_fork = ways.run_in_fork
    run_in_fork(partial(ways.train_until, job.broken, "first"))
    whole = run_in_fork(ways.train_unbroken)
    for name in _MEASURED:
        setattr(report, name, whole[name])
    others = {"split": run_in_fork(ways.train_split), "watched": run_in_fork(ways.train_watched)}
    report.load_seconds = others["split"]["load_seconds"]
    wrong = {way: text for way in others if (text := ways.difference(way))}
    names = causes(differing_names(whole["held_values"], others["split"]["held_values"]), ways.leaves("whole"))
    for way, result in others.items():
        text = "" if way in wrong else inexact_reasons.other_metrics(report.metrics, result["metrics"])
        if text:
            report.differences[way] = f"{text}. {inexact_reasons.metric_cause(names if way == 'split' else ())}"
    if wrong and run_in_fork(partial(ways.train_until, job.steps, "again")) and (text := ways.difference("again")):
        wrong = {"again": text, **wrong}
    for way, text in wrong.items():
        unrestored = inexact_reasons.unrestored_cause(names) or inexact_reasons.LOST
        cause = inexact_reasons.WATCHED if way == "watched" else unrestored
        report.differences[way] = f"{text}. {inexact_reasons.UNREPEATABLE if 'again' in wrong else cause}"
    for world in ways.worlds if not wrong else ():
        result = run_in_ranks(partial(ways.train_in_ranks, world), world, ways.device, is_watched=True)
        text = ways.difference(f"ranks {world}") or ways.difference(f"ranks {world} on")
        if text := text or inexact_reasons.other_metrics(report.metrics, result["metrics"]):
            report.differences[f"ranks {world}"] = f"{text}. {RANKED}"


class _Trainings:
    """The trainings, each for a process of its own. Their states are written to `folder` by name."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._folder = job, folder
        self._timeline = HpTimeline(job.hp)
        self.worlds, self.device = [each for each in job.ranks if each > 1], job.device

    def run_in_fork(self, way: Training) -> dict[str, Any]:
        """Run a training in a fork, or in one fork a rank if their number is part of the results."""
        _, _, number = self._job.parallel.partition(":")
        return run_in_ranks(way, int(number), self.device) if number else run_in_fork(way)

    def train_until(self, step: int, way: str) -> dict[str, Any]:
        """Train up to a step, such as the break."""
        model = self._build_model()
        self._train(model, step)
        self._save_state(model, way)
        return {"done": True}

    def train_unbroken(self) -> dict[str, Any]:
        """Train without a break."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch_reads()
            model = self._build_model()
            seconds = self._train(model, self._job.steps)
        size, save_seconds = self._save_state(model, "whole")
        held, begun_at = self._held_values(model), time.monotonic()
        return {
            "held_values": held,
            "metrics": model.evaluate(),
            "evaluate_seconds": time.monotonic() - begun_at,
            "not_exact": sorted({name for each in caught if (name := inexact_reasons.operation_in(str(each.message)))}),
            "unread": model.unread(),
            "reads": reads_of(model.trainer, self._job.file),
            "first_step_seconds": seconds[0],
            "step_seconds": sorted(seconds[1:] or seconds)[len(seconds[1:]) // 2],
            "checkpoint_bytes": size,
            "save_seconds": save_seconds,
        }

    def train_split(self) -> dict[str, Any]:
        """Resume from the state at the break, in a new process."""
        return self._resume(self._build_model(), "split")

    def train_watched(self) -> dict[str, Any]:
        """Evaluate and save after each step."""
        model, metrics = self._build_model(), dict[str, float | None]()
        for step in range(1, self._job.steps + 1):
            self._train(model, step)
            metrics = model.evaluate()
            self._save_state(model, "watched")
        return {"metrics": metrics}

    def train_in_ranks(self, world: int) -> dict[str, Any]:
        """As one of several ranks: train without a break, then from the state of one process."""
        model = self._build_model()
        self._train(model, self._job.steps)
        self._save_state(model, f"ranks {world}")
        metrics = model.evaluate()
        self._resume(model, f"ranks {world} on")
        return {"metrics": metrics}

    def difference(self, way: str) -> str:
        """The first difference of the final state from the unbroken training; empty if there is none."""
        return first_difference(self.leaves("whole"), self.leaves(way))

    def leaves(self, way: str) -> Leaves:
        """The leaves of the final state."""
        return leaves(map_parted(self._load_state(way), Parted.whole))

    def _build_model(self) -> Model:
        job, here = self._job, group.here()
        here.shards, here.parallel = job.shards, job.parallel
        device = job.device if here.world == 1 else job.device.replace("cuda:0", f"cuda:{here.rank}")
        Machine(device, None, job.threads, job.determinism).prepare()
        with user_code():
            kind = load_trainer(job.file, job.name)
        return Model.build(kind, job.args, job.seed, device)

    def _train(self, model: Model, until: int) -> list[float]:
        seconds = []
        model.expect(self._timeline, until, until, ())
        while model.step < until:
            begun_at = time.monotonic()
            model.advance(self._timeline)
            seconds.append(time.monotonic() - begun_at)
        return seconds

    def _resume(self, model: Model, way: str) -> dict[str, Any]:
        begun_at = time.monotonic()
        model.load(self._load_state("first"), self._timeline, self._job.broken)
        load_seconds = time.monotonic() - begun_at
        self._train(model, self._job.steps)
        self._save_state(model, way)
        return {"load_seconds": load_seconds, "held_values": self._held_values(model), "metrics": model.evaluate()}

    def _held_values(self, model: Model) -> Mapping[str, str]:
        with model.given.ignoring_reads():
            return digest_held_values(model.trainer, code_modules(self._job.file))

    def _save_state(self, model: Model, name: str) -> tuple[int, float]:
        """Save the state by name; returns its size and duration. Each rank saves its part."""
        begun_at, rank = time.monotonic(), group.here().rank
        state = {**model.state(), "machine": {}}
        layout = state_format.Layout.build_part(state) if rank else state_format.Layout.plan(state)
        if layout is None:
            return 0, 0.0
        fd, size = layout.write()
        seconds = time.monotonic() - begun_at
        with open(fd, "rb") as file:
            file.seek(0)
            (self._folder / (f"{name}.{rank}" if rank else name)).write_bytes(file.read())
        return size, seconds

    def _load_state(self, name: str) -> Any:
        """The state by name, merged from all ranks."""
        files = [self._folder / name, *sorted(self._folder.glob(f"{glob.escape(name)}.*"))]
        return state_format.unpack(*(file.read_bytes() for file in files))


def main() -> None:
    job = Job(**json.load(sys.stdin))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command reports Ctrl-C, once for all of its processes
    faulthandler.enable()
    machine.refuse_breakpoints()
    Path(sys.argv[1]).write_text(json.dumps(asdict(check(job))))


if __name__ == "__main__":
    main()
