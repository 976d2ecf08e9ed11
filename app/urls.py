"""URLs of databases and brokers as they may be shown: without what is secret in them."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

SOUNDS_SECRET = "(?:pass|secret|token|key|credential)"
"""As a part of an option's name, in any case."""

SECRET = re.compile(SOUNDS_SECRET, re.IGNORECASE)
HIDDEN = "***"


def shown(url: str) -> str:
    """The URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def without_secrets(text: str, *urls: str) -> str:
    """The text, with whatever is secret in these URLs covered up."""
    for url in urls:
        for secret in sorted(_secrets(urlsplit(url)), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
    return text


def _secrets(parts: SplitResult) -> set[str]:
    login, _, _ = parts.netloc.rpartition("@")
    options = [value for name, value in parse_qsl(parts.query) if SECRET.search(name)]
    raw = [login.partition(":")[2], *options]
    return {secret for each in raw for secret in (each, unquote(each)) if secret}
