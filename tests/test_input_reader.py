"""Inputs are read in a process of their own: a blocked, killed or ended reader delays no caller."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
from blocked_files import KINDS, block_opening, make, needs_leases
from stacks import wait_for

from app import input_reader
from app.input_fingerprints import EVERYWHERE, InputForbidden, InputMissing, InputTimeout, InputUnread, look
from app.input_reader import READY, InputReader, ReadRequest
from app.undeclared_inputs import record_undeclared

PATIENT = 300.0


@pytest.fixture
def reader() -> Iterator[InputReader]:
    made = InputReader(PATIENT)
    yield made
    made.close()
    wait_for("the end of all processes", lambda: not processes(), 10.0)


def processes() -> list[psutil.Process]:
    """The reader processes of this process."""
    found = psutil.Process().children()
    return [each for each in found if each.status() != psutil.STATUS_ZOMBIE and "app.input_process" in each.cmdline()]


def test_the_reader_answers_like_a_direct_read(reader: InputReader, tmp_path: Path) -> None:
    (tmp_path / "a\udcff\n").write_text("one")
    record, folders = look(str(tmp_path)), [str(tmp_path)]
    [found] = record_undeclared([str(tmp_path / "a\udcff\n")])
    questions = [
        ReadRequest.look(str(tmp_path), folders),
        ReadRequest.content_changed(record, folders),
        ReadRequest.undeclared_changed(found),
        ReadRequest.record_undeclared([found["path"], str(tmp_path / "none")]),
        ReadRequest.check_readable(str(tmp_path), folders),
        ReadRequest.file_changed(found["path"], found["sha256"]),
    ]
    assert reader.read(questions) == [record, False, False, [found], None, False]
    (tmp_path / "a\udcff\n").write_text("three")
    assert reader.read(questions[1:3]) == [True, True]


def test_one_process_serves_consecutive_reads_and_none_starts_early(reader: InputReader, tmp_path: Path) -> None:
    assert reader.read([]) == [] and not processes()
    assert reader.read([READY]) == [None]
    reader.read([ReadRequest.look(str(tmp_path), EVERYWHERE)] * 3)
    [process] = processes()
    reader.read([ReadRequest.look(str(tmp_path), EVERYWHERE)])
    assert processes() == [process]


def test_the_process_can_be_started_before_it_is_needed(reader: InputReader) -> None:
    """Once the first read, in the check of a trainer, waited a fifth of a second for it."""
    reader.prepare()
    wait_for("a process of which the system tells the command", processes)
    [process] = processes()
    reader.prepare()
    assert reader.read([READY]) == [None] and processes() == [process]


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_file_blocks_it(reader: InputReader, tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path)
    record = {"path": path, "stamp": "", "sha256": "", "found": True}
    questions = [
        ReadRequest.look(path, EVERYWHERE),
        ReadRequest.stamp(path, EVERYWHERE),
        ReadRequest.check_readable(path, EVERYWHERE),
        ReadRequest.content_changed(record),
        ReadRequest.undeclared_changed({**record, "path": f"{path}/FIFO" if kind == "folder of all" else path}),
    ]
    answers = reader.read(questions)
    assert not any(isinstance(answer, InputTimeout) for answer in answers)
    if said := KINDS[kind]:
        assert all(isinstance(answer, InputMissing) and said in str(answer) for answer in answers)
    else:
        assert answers[0]["files"] > 5 and answers[2:4] == [None, True] and "is a FIFO" in str(answers[4])
    assert reader.read([ReadRequest.record_undeclared([path])]) == [[]]


def test_a_forbidden_input_reveals_nothing(reader: InputReader, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("one")
    answers = []
    for name in ("secret", "none"):
        path = str(tmp_path / name)
        answers.append(reader.read([ReadRequest.look(path, ["/nowhere"]), ReadRequest.check_readable(path, [])]))
    assert all(isinstance(answer, InputForbidden) for each in answers for answer in each)
    secret, none = (list(map(str, each)) for each in answers)
    assert [text.replace("none", "secret") for text in none] == secret


@needs_leases
def test_a_blocked_read_times_out_and_delays_no_other(tmp_path: Path) -> None:
    (tmp_path / "dead").write_text("one")
    (tmp_path / "well").write_text("one")
    reader, said = InputReader(2.0), []
    dead, well = (ReadRequest.look(str(tmp_path / name), EVERYWHERE) for name in ("dead", "well"))
    with block_opening(tmp_path / "dead"):
        waiting = Thread(target=lambda: said.extend(reader.read([dead, well])))
        waiting.start()
        wait_for("a process that reads", processes)
        [answer] = reader.read([well])
        assert answer["files"] == 1
        waiting.join()
    assert [type(each) for each in said] == [InputTimeout, InputTimeout]
    assert str(said[0]) == f"{tmp_path}/dead was not read within 2 s"
    assert str(said[1]).startswith(f"{tmp_path}/well was not read, because {tmp_path}/dead was not")
    assert [each["files"] for each in reader.read([dead, well])] == [1, 1], "the next read is tried"
    reader.close()
    wait_for("the end of all processes", lambda: not processes(), 10.0)


@needs_leases
def test_a_cancelled_wait_returns_at_once(reader: InputReader, tmp_path: Path) -> None:
    class NotWanted(Exception):
        pass

    def on_wait(path: str, seconds: float) -> None:
        seen.append((path, seconds))
        if len(seen) == 3:
            raise NotWanted

    seen: list[tuple[str, float]] = []
    file, begun = tmp_path / "dead", time.monotonic()
    file.write_text("one")
    with block_opening(file), pytest.raises(NotWanted):
        reader.read([ReadRequest.look(str(file), EVERYWHERE)], on_wait)
    assert time.monotonic() - begun < PATIENT / 10 and {path for path, _ in seen} == {str(file)}
    assert [seconds for _, seconds in seen] == sorted(seconds for _, seconds in seen)
    wait_for("the end of the process", lambda: not processes(), 10.0)


@needs_leases
def test_a_process_that_is_killed_is_a_sentence_and_the_next_one_reads(reader: InputReader, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    question = ReadRequest.look(str(file), EVERYWHERE)

    def kill(path: str, seconds: float) -> None:
        for each in processes():
            each.kill()

    with block_opening(file):
        [problem] = reader.read([question], kill)
    assert type(problem) is InputUnread and str(problem) == f"{file} was not read: its process has ended"
    assert reader.read([question])[0]["files"] == 1
    kill("", 0.0)  # while it is idle
    wait_for("its end", lambda: not processes())
    assert reader.read([question])[0]["files"] == 1


@needs_leases
def test_there_are_few_processes_and_others_wait_for_one(
    reader: InputReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_reader, "MAX_PROCESSES", 1)
    files = [tmp_path / name for name in ("dead", "well")]
    for file in files:
        file.write_text("one")
    dead, well = (ReadRequest.look(str(file), EVERYWHERE) for file in files)
    answers: list[Any] = []
    waiting = [Thread(target=lambda each=each: answers.extend(reader.read([each]))) for each in (dead, well)]
    with block_opening(files[0]):
        for each in waiting:
            each.start()
            wait_for("a process that reads", processes)
        assert answers == [] and len(processes()) == 1
    for each in waiting:
        each.join()
    assert [each["files"] for each in answers] == [1, 1]
