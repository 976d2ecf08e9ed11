from __future__ import annotations

from moods import Start, moody, train

from app.workers.trainer_connection import Deadline


def test_a_deadline_is_many_times_the_longest_silence_and_never_less_than_its_floor() -> None:
    deadline = Deadline(floor=60.0, factor=10.0)
    for seconds, expected in ((1.0, 60.0), (7.0, 70.0), (2.0, 70.0)):
        deadline.observe(seconds)
        assert deadline.seconds == expected


def test_the_first_deadline_is_another_one() -> None:
    deadline = Deadline(1800.0).limit_steps(is_patient=False)
    assert deadline.seconds == 1800.0
    deadline.observe(0.5)
    assert deadline.seconds == 60.0
    deadline.observe(90.0)
    assert deadline.seconds == 900.0
    assert deadline.limit_steps(is_patient=True).seconds == 1800.0
    assert Deadline(5.0).limit_steps(is_patient=False).seconds == 5.0


def test_a_training_teaches_its_deadline(start: Start) -> None:
    deadline = Deadline(60.0)
    train(moody(start()), 3, deadline=deadline)
    assert 0 < deadline.longest < 60
