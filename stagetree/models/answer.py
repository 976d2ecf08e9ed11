"""What all answers have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from stagetree.errors import StagetreeError

Json = dict[str, Any]


class Answer(BaseModel):
    """A JSON object of the API."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Self:
        """The answer that JSON writes. Raises `StagetreeError` for what no stagetree server says."""
        try:
            return cls.model_validate(json)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            text = f"this is not a server that this client understands: {cls.__name__}.{place} is not as expected"
            raise StagetreeError(text) from None

    def to_json(self) -> Json:
        """The JSON object, as the server sent it."""
        return self.model_dump(mode="json", exclude_unset=True)

    def __eq__(self, other: object) -> bool:
        return self.to_json() == other if isinstance(other, Mapping) else super().__eq__(other)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in type(self).model_fields or name in (self.model_extra or {})

    def get(self, name: str, default: Any = None) -> Any:
        """A field by its name, or `default` where there is none."""
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self) -> Iterator[str]:
        """The names of the fields that the server sent, so that `{**answer}` is a dict of them."""
        return iter(self.model_fields_set)
