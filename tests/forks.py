"""Fresh processes that need not import torch: the standard library forks them from a process that has."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context, set_start_method
from typing import Any, TypeVar

from stagetree.runtime.check import Job, check
from stagetree.runtime.warm import MODULES

T = TypeVar("T")
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload([*MODULES])


def run_in_fork(function: Callable[..., T], *args: Any, **named: Any) -> T:
    """Run a module's function in a process of its own, and return its result or raise its error.

    Its own child processes start as usual, not from a fork server of their own, which would import torch again.
    """
    with ProcessPoolExecutor(1, CONTEXT, initializer=set_start_method, initargs=(None, True)) as pool:
        return pool.submit(function, *args, **named).result()


def check_in_fork(job: dict[str, Any]) -> dict[str, Any]:
    """The report of `stagetree.runtime.check`, both as in the files of its command."""
    return run_in_fork(_check, job)


def _check(job: dict[str, Any]) -> dict[str, Any]:
    return asdict(check(Job(**job)))
