"""Common parts of tests in browsers: expected messages, and how tests are skipped without a browser."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

EXPECTED = ("Failed to load resource", "net::ERR_", "EventSource")
"""Messages of browsers about a server that a test has stopped."""


def skip_without(what: str) -> NoReturn:
    """Fail in CI, skip elsewhere, with a remedy."""
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)
