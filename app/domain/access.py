"""Access control: scopes, each of which includes the narrower ones, and principals, each with one scope."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Scope(IntEnum):
    """What a principal may do. Each scope includes those before it.

    READ: look. SUBMIT: have studies of one's own, and change them. OPERATE: change the studies of others, and slots.
    ADMIN: make and revoke tokens.
    """

    READ = 1
    SUBMIT = 2
    OPERATE = 3
    ADMIN = 4

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Scope:
        """By its name, as people write it. Raises `ValueError`, which says what would be right."""
        try:
            return cls[word.strip().upper()]
        except KeyError:
            raise ValueError(f"must be one of {', '.join(map(str, cls))}, got {word!r}") from None


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. name: of the token or, behind a proxy, of the user; "" where no token was needed.

    project: the one that the scope is for; None for all projects.
    """

    name: str
    scope: Scope
    project: str | None = None

    def sees(self, project: str) -> bool:
        """Whether studies of the project are there for them."""
        return self.project in (None, project)

    def sees_all_of(self, project: str | None) -> bool:
        """Whether all is there for them that a principal of this project, or of all projects, sees."""
        return self.project in (None, project)

    def may_change(self, owner: str) -> bool:
        """Whether they may change a study of this owner, in a project that they see."""
        return self.scope >= (Scope.SUBMIT if owner == self.name else Scope.OPERATE)


ANYBODY = Principal("", Scope.ADMIN)
"""A caller that needs no token."""
