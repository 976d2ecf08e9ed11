"""Whether a slot is well: what failed on it in a row, and for how long it should be given nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_NODES = 3
"""So many different nodes that fail in a row, while other slots get on, are not the nodes' fault."""

MOST_ACCIDENTS = 3
"""So many accidents in a row are no accident: what happens at once, again and again, would keep everybody busy."""

FIRST_SECONDS, LONGEST_SECONDS = 60.0, 3600.0
"""In quarantine: for so long, and twice as long each time that it comes again, up to that."""


@dataclass(slots=True)
class Health:
    """failed_nodes: in a row, with no stage completed in between. since: the version of each stream at the first."""

    failed_nodes: set[str] = field(default_factory=set)
    since: dict[str, int] = field(default_factory=dict)
    accidents: int = 0
    quarantines: int = 0

    def succeeded(self) -> None:
        """A stage was completed."""
        self.failed_nodes.clear()
        self.since.clear()
        self.accidents = self.quarantines = 0

    def failed(self, node: str, stream: str, version: int) -> None:
        """The user's code failed."""
        self.failed_nodes.add(node)
        self.since.setdefault(stream, version)

    def had_accident(self) -> None:
        """A chain was given back, because of something that is nobody's fault."""
        self.accidents += 1

    @property
    def is_suspect(self) -> bool:
        """Whether it is in doubt; it is the slot's fault if others get on meanwhile."""
        return len(self.failed_nodes) >= MOST_NODES

    @property
    def is_unlucky(self) -> bool:
        return self.accidents >= MOST_ACCIDENTS

    def quarantined(self) -> float:
        """It is given nothing for a time: for how many seconds."""
        seconds = min(FIRST_SECONDS * 2.0**self.quarantines, LONGEST_SECONDS)
        self.quarantines += 1
        self.failed_nodes.clear()
        self.since.clear()
        self.accidents = 0
        return seconds

    @property
    def may_return_at_once(self) -> bool:
        """Whether a passed test is enough to end the quarantine: only the first time."""
        return self.quarantines == 1
