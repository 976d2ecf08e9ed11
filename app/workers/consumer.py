"""Which messages a worker accepts: only messages that our own senders could have made. `Channel` drops all others.

A message names one task of this worker's role, with its arguments. Nothing else in it counts: a time limit would
interrupt the task anywhere, a date would keep it in memory, and callbacks would send further messages.

Runs on: a worker's main process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from celery.worker.consumer import Consumer
from kombu.message import Message

from app.domain.slots import SCHEDULER

Tasks = Mapping[str, list[type]]

SCHEDULER_TASKS: Tasks = {"stagetree.tick": []}
SLOT_TASKS: Tasks = {"stagetree.stage": [str, int], "stagetree.rank": [str]}
"""The tasks of each role, and the types of their arguments."""

HEADERS = ("lang", "task", "id", "root_id", "parent_id", "expires")
"""The headers that Celery is shown."""

CALLBACKS = ("callbacks", "errbacks", "chord")


def accepted_headers(message: Message, tasks: Tasks) -> dict[str, Any]:
    """The headers that count. Raises if none of our senders could have made the message."""
    arguments, named, embedded = message.payload
    wanted, ids = tasks[message.headers["task"]], [message.headers["id"], message.headers.get("root_id", "")]
    if not isinstance(arguments, list) or [type(each) for each in arguments] != wanted or named:
        raise ValueError("the arguments do not fit the task")
    if any(embedded.get(name) for name in CALLBACKS):
        raise ValueError("it has callbacks")
    if any(link["task"] not in tasks or link["subtask_type"] for link in embedded.get("chain") or ()):
        raise ValueError("it is followed by tasks of others")
    if not all(isinstance(each, str) for each in ids):
        raise ValueError("its id is no text")
    return {name: message.headers[name] for name in HEADERS if name in message.headers}


class StrictConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Raises where Celery's consumer would log and continue, so that every message that is dropped is counted."""

    def create_task_handler(self, **options: Any) -> Callable[[Message], Any]:
        handle = super().create_task_handler(**options)
        is_scheduler = SCHEDULER in self.app.amqp.queues.consume_from
        tasks = SCHEDULER_TASKS if is_scheduler else SLOT_TASKS

        def receive(message: Message) -> Any:
            message.headers = accepted_headers(message, tasks)
            return handle(message)

        return receive

    def on_decode_error(self, message: Message, exc: Exception) -> NoReturn:
        raise exc

    def on_invalid_task(self, body: Any, message: Message, exc: Exception) -> NoReturn:
        raise exc
