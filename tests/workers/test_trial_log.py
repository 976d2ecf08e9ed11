"""The output of trainers is bounded, and names its omissions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from assignments import stage, work

from app.domain.chain_assignment import VerificationOrder
from app.events import DatabaseUnavailable
from app.events.trial_logs import LogPiece
from app.process import logs as log_files
from app.process.logs import shorten
from app.workers import trial_logs
from app.workers.threads import Task, Threads
from app.workers.trial_logs import MAX_UNSENT_BYTES, PIECE_BYTES, LogSender, TrialLogs


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MAX_BYTES": 1000, "HEAD_BYTES": 100, "TAIL_BYTES": 200}.items():
        monkeypatch.setattr(log_files, name, value)


def test_a_file_keeps_its_head_and_tail_while_writers_continue(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    with path.open("ab", buffering=0) as writer:
        for number in range(200):
            writer.write(f"line {number}\n".encode())
            shorten(path)
        writer.write(b"the end\n")
    text = path.read_text()
    assert len(text) < 1100
    assert text.startswith("line 0\n") and text.endswith("line 199\nthe end\n")
    assert "bytes are left out: 1,000 are kept at most" in text
    assert all(line.startswith(("line ", "lin", "---", "the", "")) for line in text.splitlines())


def test_a_short_file_stays_and_a_missing_one_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "0.log"
    path.write_text("x" * 1000)
    shorten(path)
    assert path.read_text() == "x" * 1000
    shorten(tmp_path / "gone.log")
    assert "is not shortened" in caplog.text


def test_the_file_of_the_stage_under_way_is_kept_short(tmp_path: Path) -> None:
    logs = TrialLogs(tmp_path, "gpu0")
    logs.truncate_current()
    files = logs.begin("chain", work(stage()), 0)
    assert files is not None
    with files.printed.open("a") as file:
        file.write("x" * 5000)
    logs.truncate_current()
    assert files.printed.stat().st_size < 1000


# ------------------------------------------------------------------------------------------------ in a cluster


class Table:
    """Keeps the sent rows, as the database does; `away`: the number of calls that find it away."""

    def __init__(self) -> None:
        self.texts = dict[tuple[str, str, str], bytes]()
        self.away = 0
        self.loses_answers = False

    def end(self, name: str, study: str, source: str) -> int:
        self._answer()
        return len(self.texts.get((study, name, source), b""))

    def add(self, piece: LogPiece) -> int:
        self._answer()
        key = (piece.study, piece.name, piece.source)
        known = self.texts.get(key, b"")
        self.texts[key] = known.ljust(piece.begin, b"?") + piece.data[max(0, len(known) - piece.begin) :]
        if self.loses_answers:
            self.loses_answers = False
            raise DatabaseUnavailable("the connection was lost while the commit was under way")
        return len(self.texts[key])

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise DatabaseUnavailable("away")


class Idle(Threads):
    """Of the threads beside the test, the first is left out: it would send again and again."""

    def __init__(self) -> None:
        self.spawned = 0

    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        self.spawned += 1
        return super().spawn(name, run if self.spawned > 1 else lambda: None)


@pytest.fixture
def table() -> Table:
    return Table()


def sender(folder: Path, table: Table) -> LogSender:
    return LogSender(folder / "unsent", table, Idle())  # type: ignore[arg-type]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_new_output_is_sent_and_files_of_ended_chains_are_deleted(tmp_path: Path, table: Table) -> None:
    sends = sender(tmp_path, table)
    printed = sends.begin("c1") / "s" / "0.log" / "c1-0"
    rows = printed.parents[1] / "plan" / "n.jsonl" / "c1-0"
    write(printed, "one ")
    write(rows, "{}\n")
    assert sends.send()
    write(printed, "two")
    assert sends.send() and printed.exists()
    sends.end("c1")
    write(printed, " last")
    assert sends.send() and not printed.exists() and not rows.exists()
    assert table.texts == {("s", "0.log", "c1-0"): b"one two last", ("s", "plan/n.jsonl", "c1-0"): b"{}\n"}
    assert list(tmp_path.iterdir()) == []


def test_what_was_printed_in_a_check_that_failed_is_added_to_the_trials_log(tmp_path: Path, table: Table) -> None:
    order = VerificationOrder(kind="check", metrics=("loss",))
    checked = replace(work(stage()), study="s", trial=7, proof=order)
    logs = TrialLogs(tmp_path, "gpu0", table, Idle())  # type: ignore[arg-type]
    files = logs.begin("c1", checked, 0)
    assert files is not None
    size = files.size()
    files.add(b"nan\n")
    logs.add_to_trial("c1", checked, files.read_since(size))
    logs.end("c1")
    logs.close()
    header, printed = table.texts["s", "7.log", "c1-0"].decode().splitlines()
    assert header.startswith("--- check at node ") and printed == "nan"
    assert table.texts["s", "proofs.log", "c1-0"].decode().splitlines()[1:] == ["nan"]


def test_a_file_that_was_cut_off_comes_to_an_end(tmp_path: Path, table: Table) -> None:
    """Its rest was looked for again and again, without a pause, on a core of the slot."""
    sends = sender(tmp_path, table)
    printed = sends.begin("c1") / "s" / "0.log" / "c1-0"
    write(printed, "x" * (MAX_UNSENT_BYTES + PIECE_BYTES))
    assert not sends.send()
    sends.end("c1")
    assert sends.send() and not printed.exists()


def test_a_database_that_is_away_or_loses_an_answer_costs_nothing(tmp_path: Path, table: Table) -> None:
    sends = sender(tmp_path, table)
    printed = sends.begin("c1") / "s" / "0.log" / "c1-0"
    write(printed, "one ")
    table.away = 2
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            sends.send()
    table.loses_answers = True
    with pytest.raises(DatabaseUnavailable):
        sends.send()
    write(printed, "two")
    assert sends.send()
    assert table.texts == {("s", "0.log", "c1-0"): b"one two"}


def test_what_a_killed_worker_left_is_sent_by_the_next_one_of_its_slot(tmp_path: Path, table: Table) -> None:
    killed = sender(tmp_path, table)
    printed = killed.begin("c1") / "s" / "0.log" / "c1-0"
    write(printed, "sent ")
    killed.send()
    write(printed, "unsent")
    assert sender(tmp_path, table).send()
    assert table.texts == {("s", "0.log", "c1-0"): b"sent unsent"} and not printed.exists()


def test_a_long_file_is_sent_in_pieces(tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_logs, "PIECE_BYTES", 4)
    sends = sender(tmp_path, table)
    write(sends.begin("c1") / "s" / "0.log" / "c1-0", "0123456789")
    assert [sends.send() for _ in range(3)] == [False, False, True]
    assert table.texts == {("s", "0.log", "c1-0"): b"0123456789"}


def test_a_trainer_that_prints_more_than_can_be_sent_does_not_fill_the_disk(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_logs, "PIECE_BYTES", 4)
    monkeypatch.setattr(trial_logs, "MAX_UNSENT_BYTES", 100)
    sends = sender(tmp_path, table)
    printed = sends.begin("c1") / "s" / "0.log" / "c1-0"
    write(printed, "head" + "x" * 196)
    assert not sends.send()
    assert printed.stat().st_size == 0
    write(printed, "tail")
    assert sends.send()
    assert table.texts == {("s", "0.log", "c1-0"): b"head" + b"?" * 196 + b"tail"}


def test_a_worker_that_ends_sends_the_rest_and_does_not_wait_for_ever(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = TrialLogs(tmp_path, "gpu0", table, Idle())  # type: ignore[arg-type]
    files = logs.begin("c1", work(stage()), 0)
    assert files is not None and files.rows is not None
    logs.close()
    assert {name for _, name, _ in table.texts} == {"0.log", f"{work(stage()).plan}/{stage().node}.jsonl"}
    table.away = 10**6
    write(files.printed, "more")
    logs.close()
