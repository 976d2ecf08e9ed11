"""A worker accepts only messages that our own senders could have made."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from kombu.message import Message

from app.workers.celery_app import celery
from app.workers.consumer import SCHEDULER_TASKS, SLOT_TASKS, accepted_headers

NO_CALLBACKS = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def message(task: Any = "stagetree.stage", arguments: Any = ("a", 0), **more: Any) -> Message:
    """A message to a slot. more: headers, or `named` and `embedded` parts of its body."""
    named, embedded = more.pop("named", {}), more.pop("embedded", {})
    body = [arguments, named, NO_CALLBACKS | embedded if isinstance(embedded, dict) else embedded]
    headers = {"lang": "py", "task": task, "id": "a:0", **more}
    return Message(json.dumps(body), content_type="application/json", content_encoding="utf-8", headers=headers)


@pytest.mark.parametrize(
    ("task", "arguments", "tasks"),
    [
        ("stagetree.stage", ["a", 3], SLOT_TASKS),
        ("stagetree.rank", ["a"], SLOT_TASKS),
        ("stagetree.tick", [], SCHEDULER_TASKS),
    ],
)
def test_messages_of_our_senders_are_accepted(task: str, arguments: list[Any], tasks: Any) -> None:
    """A message made by Celery, for each of our tasks."""
    made = celery.amqp.as_task_v2("id", task, arguments, root_id="root", expires=60)
    sent = Message(
        json.dumps(made.body), content_type="application/json", content_encoding="utf-8", headers=made.headers
    )
    assert set(accepted_headers(sent, tasks)) == {"lang", "task", "id", "root_id", "parent_id", "expires"}


def test_a_message_may_be_followed_by_those_of_the_next_stages() -> None:
    link = celery.signature("stagetree.stage", ("a", 1), immutable=True, queue="gpu0")
    assert accepted_headers(message(embedded={"chain": [link]}), SLOT_TASKS)["id"] == "a:0"


def test_every_task_belongs_to_a_role() -> None:
    celery.loader.import_default_modules()
    ours = {name for name in celery.tasks if name.startswith("stagetree.")}
    assert ours == SCHEDULER_TASKS.keys() | SLOT_TASKS.keys()


def test_time_limits_and_dates_do_not_count() -> None:
    """A time limit would interrupt a task anywhere; a date would keep it in memory."""
    forged = message(timelimit=[0.1, 0.1], eta="2999-01-01T00:00:00", stamps={"a": 1}, retries=7, shadow="x")
    assert accepted_headers(forged, SLOT_TASKS) == {"lang": "py", "task": "stagetree.stage", "id": "a:0"}


@pytest.mark.parametrize(
    "forged",
    [
        message("stagetree.tick", []),  # not on a slot
        message("celery.map", [{"task": "stagetree.stage"}, [["a", 0]]]),
        message("os.system", ["true"]),
        message(None),
        message(["stagetree.stage"]),
        message(arguments=[]),
        message(arguments=["a"]),
        message(arguments=["a", 0, 0]),
        message(arguments=["a", "0"]),
        message(arguments=["a", 0.0]),
        message(arguments=["a", False]),
        message(arguments=[None, 0]),
        message(arguments=[{"chain": "a"}, 0]),
        message(arguments="a0"),
        message("stagetree.rank", "a"),
        message(named={"chain": "a"}),
        message(arguments=[], named={"chain": "a", "index": 0}),
        message(embedded={"callbacks": [{"task": "stagetree.stage", "args": ["b", 0]}]}),
        message(embedded={"errbacks": [{"task": "stagetree.tick"}]}),
        message(embedded={"chord": {"task": "stagetree.tick"}}),
        message(embedded={"chain": [{"task": "stagetree.tick", "subtask_type": None}]}),
        message(embedded={"chain": [{"task": "stagetree.stage", "subtask_type": "chord"}]}),
        message(embedded=None),
        message(id=None),
        message(id={"a": 0}),
        message(root_id=[]),
        Message(
            b'{"task": "stagetree.stage", "args": ["a", 0], "id": "x"}', content_type="application/json", headers={}
        ),
        Message(b"[" * 100_000, content_type="application/json", headers={"task": "stagetree.stage", "id": "x"}),
        Message(base64.b64decode("gASVCQAAAAAAAABdlChLAUsCZS4="), content_type="application/x-python-serialize"),
        Message(b"", headers={"task": "stagetree.stage", "id": "x"}),
    ],
)
def test_forged_messages_raise(forged: Message) -> None:
    """The worker then drops and counts it."""
    with pytest.raises(Exception):  # noqa: B017  # whichever it is: what a message can raise has no end
        accepted_headers(forged, SLOT_TASKS)


def test_a_slots_work_is_not_the_schedulers() -> None:
    with pytest.raises(KeyError):
        accepted_headers(message(), SCHEDULER_TASKS)
