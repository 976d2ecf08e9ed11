"""The real application, for what users import; and numbers that are computed on one thread, as slots compute them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from resuming import one_thread

from tests.api.conftest import app, make_app, server, trainers, use, wake_ups, workers

__all__ = ["app", "make_app", "server", "trainers", "use", "wake_ups", "workers"]


@pytest.fixture(autouse=True, scope="module")
def to_the_bit() -> Iterator[None]:
    """Several threads divide a sum by the load of the moment."""
    with one_thread():
        yield
