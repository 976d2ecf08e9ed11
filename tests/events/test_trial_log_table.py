"""The output and logged values of slots: stored once, in order, bounded, and deleted with their study."""

from __future__ import annotations

import pytest

from app.events import trial_logs
from app.events.database import Database
from app.events.trial_logs import LogPiece, TrialLogTable


@pytest.fixture
def table(database: Database) -> TrialLogTable:
    return TrialLogTable(database)


def piece(data: bytes, begin: int = 0, *, source: str = "c1-0", name: str = "0.log", study: str = "s") -> LogPiece:
    return LogPiece(name, study, source, begin, data)


def text(table: TrialLogTable, trial: int = 0, study: str = "s") -> str:
    return "".join(table.printed(study, trial))


def test_repeated_and_overlapping_pieces_are_stored_once(table: TrialLogTable) -> None:
    assert table.add(piece(b"one ")) == 4
    assert table.add(piece(b"one ")) == 4
    assert table.add(piece(b"ne two ", 1)) == 8
    assert table.add(piece(b"two three", 4)) == 13
    assert table.end("0.log", "s", "c1-0") == 13
    assert text(table) == "one two three"


def test_stages_follow_each_other_as_they_began(table: TrialLogTable) -> None:
    table.add(piece(b"b1 ", source="b"))
    table.add(piece(b"a1 ", source="a"))
    table.add(piece(b"b2 ", 3, source="b"))
    assert text(table) == "b1 b2 a1 "


def test_a_long_stage_is_a_few_rows_and_characters_are_not_cut(
    table: TrialLogTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_logs, "PART_BYTES", 5)
    data = "ä€𝄞\0ends".encode()
    for at in range(len(data)):
        table.add(piece(data[at : at + 1], at))
    parts = list(table.printed("s", 0))
    assert "".join(parts) == "ä€𝄞\0ends" and len(parts) < 8


def test_gaps_are_marked(table: TrialLogTable) -> None:
    table.add(piece(b"begin"))
    table.add(piece(b"end", 1_000_005))
    assert text(table) == "begin\n--- 1,000,000 bytes are left out: they were more than could be sent\nend"


def test_the_output_of_a_restarted_stage_is_stored_too(table: TrialLogTable) -> None:
    table.add(piece(b"leader\n"))
    table.add(piece(b"other\n", source="c1-0.r1"))
    assert text(table) == "leader\n--- process r1 of a stage\nother\n"


@pytest.mark.slow
def test_of_a_long_log_the_middle_is_left_out(table: TrialLogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST_BYTES": 1000, "HEAD_BYTES": 100, "PART_BYTES": 50}.items():
        monkeypatch.setattr(trial_logs, name, value)
    at = 0
    for number in range(400):
        at = table.add(piece(f"line {number}\n".encode(), at, source="c1-0"))
    said = text(table)
    assert len(said) < 1000 + 2 * len(trial_logs.LEFT_OUT)
    assert said.startswith("line 0\n") and said.endswith("line 399\n")
    assert said.count("is left out") == 1
    assert table.end("0.log", "s", "c1-0") == at


def test_rows_of_a_node_are_found_in_any_study_and_other_plans_have_their_own(table: TrialLogTable) -> None:
    table.add(piece(b'{"step": 1}\n', name="plan/n1.jsonl", source="a", study="s"))
    table.add(piece(b'{"step": 2}\n', name="plan/n1.jsonl", source="b", study="other"))
    table.add(piece(b'{"step": 3}\n', name="plan2/n1.jsonl", source="c"))
    assert table.logged("plan", "n1") == ['{"step": 1}\n', '{"step": 2}\n']
    assert table.logged("plan", "n2") == []


def test_a_deleted_study_keeps_rows_that_others_read(table: TrialLogTable) -> None:
    for name in ("0.log", "1.log", "proofs.log", "plan/kept.jsonl", "plan/gone.jsonl"):
        for study in ("s", "other"):
            table.add(piece(b"x", name=name, study=study))
    table.remove("s", {"kept"})
    assert [text(table, study=study) for study in ("s", "other")] == ["", "x"]
    assert len(table.logged("plan", "kept")) == 2 and len(table.logged("plan", "gone")) == 1
    table.remove("s", set())
    assert len(table.logged("plan", "kept")) == 1
