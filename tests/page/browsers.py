"""Common parts of tests in browsers: expected messages, and how tests are skipped without a browser."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

EXPECTED = ("Failed to load resource", "net::ERR_", "EventSource")
"""What a browser says by itself of a server that is away, where a test takes it away."""


def missing(what: str) -> NoReturn:
    """In CI a failure, elsewhere a skip: either says what to do."""
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)
