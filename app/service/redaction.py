"""The secrets that a report for others leaves out: paths, hosts, slots, addresses and the names of people.

Every string is redacted, values and names alike. Known names come from slots, hosts, this machine, its user, and
people in the log. Text that looks like a path or an address is hidden as well, since tracebacks and notes hold
any text. This hides more than necessary, and leaves nothing of such a form.
"""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "[hidden]"
PLACES = re.compile(
    r"""
    \b[a-z][a-z0-9+.-]*://[^\s"'<>)]+         # an address with its scheme
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)*            # a user at a host
    | \b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b    # an IP address
    | (?<![\w:])(?=[\w.-]*[A-Za-z])[\w-]+(?:\.[\w-]+)*:\d{2,5}\b   # a host and a port
    | \b[A-Za-z]:\\[^\s"']+                   # paths: of Windows, from the root or the home, and with several folders
    | (?<![\w\])])(?:~|\.{1,2})?/[^\s"'`<>:;,()]+
    | \b[\w.-]+(?:/[\w.-]+){2,}
    """,
    re.VERBOSE,
)
BETWEEN_TAGS = re.compile(r">([^<]+)<")
DROPPED = ("owner", "project", "by", "host", "hosts", "repository", "inputs", "device", "key", "objects", "sinks")
"""Fields whose values are such names, or records of files."""

SHORTEST = 2
"""A shorter name would match within any word."""


class Redactor:
    """Redacts whole answers. names: people and hosts. slots: replaced by numbers. kept: ids that stay."""

    def __init__(self, names: Iterable[str], slots: Iterable[str], kept: Iterable[str] = ()) -> None:
        self._kept = frozenset(kept)
        numbered = {slot: f"slot {number}" for number, slot in enumerate(sorted(set(slots)))}
        words = {name: HIDDEN for name in names if len(name) >= SHORTEST} | numbered
        longest = sorted(filter(None, words), key=len, reverse=True)
        self._words = words
        self._known = re.compile("|".join(rf"(?<!\w){re.escape(each)}(?!\w)" for each in longest) or r"(?!)")

    def redact(self, value: Any) -> Any:
        """The same without the secrets; JSON stays JSON."""
        if isinstance(value, str):
            if value in self._kept:
                return value
            return self._redact_svg(value) if value.startswith("<svg") else self.text(value)
        if isinstance(value, list | tuple):
            return [self.redact(each) for each in value]
        if isinstance(value, Mapping):
            return {self.text(str(name)): self._field(str(name), each) for name, each in value.items()}
        return value

    def text(self, text: str) -> str:
        """Known names go first, so that the rest of an address still looks like one."""
        return PLACES.sub(HIDDEN, self._known.sub(lambda found: self._words[found[0]], text))

    def _field(self, name: str, value: Any) -> Any:
        if name not in DROPPED or (name == "by" and value in ("tuner", "user")):
            return self.redact(value)
        return type(value)() if isinstance(value, str | list | dict) else None

    def _redact_svg(self, svg: str) -> str:
        """Redact the text of a drawing, and leave its markup and style."""
        parts = re.split(r"(<style>.*?</style>)", svg, flags=re.DOTALL)
        return "".join(each if each.startswith("<style>") else self._redact_markup(each) for each in parts)

    def _redact_markup(self, drawn: str) -> str:
        return BETWEEN_TAGS.sub(lambda found: f">{self.text(found[1])}<", drawn)


def local_names() -> list[str]:
    """This machine and its user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have a user without a name
        user = ""
    return [platform.node(), user]
