"""What a slot says of the files that a stage has opened, at its beginning and at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from assignments import FENCE
from stacks import Json

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.terms import ChainId, NodeId
from app.input_fingerprints import EVERYWHERE, look
from app.input_reader import InputReader
from app.workers.slot.claim import Claim
from app.workers.slot.input_watch import MAX_TIME_SHARE, InputWatch, StudyFiles, written_records
from app.workers.slot.retry import Clock, Instant, monotonic
from app.workers.slot.slot_status import SlotStatus

SUBMITTED = 1000.0
FILE = "/here/best.pt"
CHANGED = f"read {FILE}, which was changed after the study was submitted"
OTHERS = f"read {FILE}, which another trial of this study wrote"


def work(*inputs: Json, plan: str = "plan") -> ChainAssignment:
    stage = e.Stage(study="s", node=NodeId("n"), start=0, end=4, evaluate=())  # type: ignore[arg-type]
    how: Json = {"plan": plan, "trainer": "t", "trainer_version": "1", "trainer_args": {}, "seed": 0, "study": "s"}
    how |= {"trial": 0, "hp": {}, "stages": (stage,), "resume": None}
    return ChainAssignment(**how, inputs=inputs, submitted_at=SUBMITTED)


def make_watch(clock: Clock = monotonic) -> InputWatch:
    return InputWatch(StudyFiles(InputReader(60.0), EVERYWHERE, SlotStatus()), clock=clock)


def look_at_end(watch: InputWatch, claim: Claim, work: ChainAssignment, uses: Json) -> list[str]:
    return watch.look_at_end(claim, work, uses, lambda: False)


def claim(chain: str) -> Claim:
    return Claim(ChainId(chain), "stream", FENCE)


def uses(*read: tuple[str, float, bool], written: dict[str, bool] | None = None) -> Json:
    return {"read": [list(each) for each in read], "written": [list(each) for each in (written or {}).items()]}


@pytest.mark.parametrize(
    ("changed_at", "while_used", "said"),
    [
        (SUBMITTED - 1, False, []),
        (SUBMITTED + 1, False, [CHANGED]),
        (SUBMITTED - 1, True, [f"read {FILE}, which was changed while it was used"]),
    ],
)
def test_what_was_changed_since_the_submission_or_while_it_was_used_is_told(
    changed_at: float, while_used: bool, said: list[str]
) -> None:
    assert look_at_end(make_watch(), claim("a"), work(), uses((FILE, changed_at, while_used))) == said


def test_what_another_trial_has_written_is_told_and_what_it_wrote_itself_is_not() -> None:
    around = make_watch()
    assert look_at_end(around, claim("a"), work(), uses(written={FILE: True})) == []
    again = uses((FILE, SUBMITTED + 1, False), written={FILE: True})
    assert look_at_end(around, claim("a"), work(), again) == [], "in a later stage of its own"
    assert look_at_end(around, claim("b"), work(), again) == [OTHERS]
    assert look_at_end(around, claim("b"), work(), again) == [], "by now it has written it itself"
    assert look_at_end(around, claim("a"), work(), again) == [OTHERS]
    assert look_at_end(around, claim("a"), work(plan="other"), again) == [CHANGED]


def test_what_a_constructor_has_written_is_every_trials() -> None:
    """A data set that was downloaded, or prepared, by the first trial that needed it."""
    around, names = make_watch(), [f"/here/data/{number}.png" for number in range(40)]
    look_at_end(around, claim("a"), work(), uses(written=dict.fromkeys(names[:20], False)))
    assert look_at_end(around, claim("b"), work(), uses(*((name, SUBMITTED + 1, False) for name in names))) == []
    assert look_at_end(around, claim("b"), work(), uses(("/here/a.png", SUBMITTED + 1, False))) != []


def test_what_a_trainer_wrote_when_it_was_checked_is_every_trials_on_all_slots() -> None:
    names = [f"/here/data/{number}.png" for number in range(40)]
    records = written_records([*((name, False) for name in names), ("/here/vocab.json", False), (FILE, True)])
    assert [each["path"] for each in records] == ["/here/data/*.png", "/here/vocab.json", FILE]
    read = uses((names[3], SUBMITTED + 1, False), ("/here/vocab.json", SUBMITTED + 1, False))
    assert look_at_end(make_watch(), claim("a"), work(*records), read) == []
    assert make_watch().look(claim("a"), work(*records), 0, lambda: None) == ([], [])
    assert look_at_end(make_watch(), claim("a"), work(*records), uses((FILE, SUBMITTED + 1, False))) == [OTHERS]


def test_of_many_files_of_one_kind_the_kind_is_named() -> None:
    read = uses(*((f"/here/{number}.png", SUBMITTED + 1, False) for number in range(9)))
    [text] = look_at_end(make_watch(), claim("a"), work(), read)
    assert text == "read /here/*.png, which was changed after the study was submitted"


def test_what_was_written_before_a_chain_in_its_process_is_anothers() -> None:
    around = make_watch()
    around.note_writes(work(), uses(written={FILE: True}))
    assert look_at_end(around, claim("a"), work(), uses((FILE, SUBMITTED + 1, False))) == [OTHERS]


def test_a_file_is_reported_once(tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("one")
    record = look(str(data))
    data.write_text("another")
    [text] = look_at_end(make_watch(), claim("a"), work(record), uses((str(data), SUBMITTED + 1, False)))
    assert text == f"read {data}, which had changed since the study was submitted"


@pytest.mark.parametrize(("seconds", "looks"), [(0.0, 2), (0.001, 1)])
def test_looking_takes_a_bounded_share_of_the_time(tmp_path: Path, seconds: float, looks: int) -> None:
    """An answer was kept for 30 s, however little it cost."""
    data = tmp_path / "data.txt"
    data.write_text("one")
    record, now = look(str(data)), [0.0]

    def times() -> Iterator[float]:
        while True:
            yield now[0]
            now[0] += seconds

    clock = times()
    around = make_watch(clock=lambda: Instant(next(clock)))
    assert look_at_end(around, claim("a"), work(record), {}) == []
    data.write_text("another")
    os.utime(data, (5, 5))
    assert len(look_at_end(around, claim("a"), work(record), {})) == looks - 1
    now[0] += 2 * seconds / MAX_TIME_SHARE
    assert len(look_at_end(around, claim("a"), work(record), {})) == 1
