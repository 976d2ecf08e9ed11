"""A Celery chain of tasks that do nothing but note when they begin and end: what the broker takes for each step."""

from __future__ import annotations

import os
import time

from celery import Celery

celery = Celery(broker=os.environ["BROKER"])
celery.conf.update(task_ignore_result=True, worker_prefetch_multiplier=1)


@celery.task(name="note")
def note() -> None:
    begun = time.monotonic()
    time.sleep(0.03)
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{begun} {time.monotonic()}\n")
