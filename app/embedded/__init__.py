"""The whole service on one machine: Redis, the API, the scheduler and one worker a slot, as children of this process.

These are a cluster's processes with a private Redis socket, SQLite and a folder. They end with this process, however it
ends. Their files are private to this user, and nothing in the working folder is imported by accident.
"""

from __future__ import annotations

from app.embedded.interpreter import Interpreter
from app.embedded.machine import (
    PYTHON,
    StackFailed,
    checkout_path,
    default_device,
    default_slots,
    private_files,
    redis_server,
    slot_names,
)
from app.embedded.stack import Embedded, embedded

__all__ = [
    "PYTHON",
    "Embedded",
    "Interpreter",
    "StackFailed",
    "checkout_path",
    "default_device",
    "default_slots",
    "embedded",
    "private_files",
    "redis_server",
    "slot_names",
]
