"""The base class of all answers: strict on the server, lenient in the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from stagetree.errors import StagetreeError

Json = dict[str, Any]


class Answer(BaseModel):
    """A JSON object of the API.

    A server sets every field that is declared without a default. A client is lenient: it keeps fields added by a newer
    server and accepts unknown words (`Word`). A field that an older server omits is empty, unless the class `needs` it.
    """

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)
    _names: ClassVar[dict[str, str]] = {}
    """Fields with another name in JSON."""

    _fields: ClassVar[dict[str, str]] = {}
    """All fields by their names in JSON."""

    _promised: ClassVar[frozenset[str]] = frozenset()
    _is_open: ClassVar[bool] = False

    def __init_subclass__(cls, *, needs: Sequence[str] | None = None, is_open: bool = False) -> None:
        """needs: the fields a client cannot do without; None for all without a default.

        is_open: whether servers also set fields of other names.
        """

    @classmethod
    def __pydantic_init_subclass__(cls, *, needs: Sequence[str] | None = None, is_open: bool = False, **_: Any) -> None:
        own = {name: field for name, field in cls.model_fields.items() if field.is_required()}
        lenient = [name for name in own if needs is not None and name not in needs]
        for name in lenient:
            _make_optional(own[name])
        cls._names = {name: field.alias for name, field in cls.model_fields.items() if field.alias}
        cls._fields = {cls._names.get(name, name): name for name in cls.model_fields}
        cls._promised, cls._is_open = cls._promised.union(own[name].alias or name for name in lenient), is_open

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """The server's schema: fields it always sets are required, although clients accept answers without them."""
        schema = handler.resolve_ref_schema(handler(core))
        if not cls._is_open:
            schema.pop("additionalProperties", None)
        required = cls._promised.union(schema.get("required", ()))
        for name in cls._promised:
            schema["properties"][name].pop("default", None)
        if required:
            schema["required"] = [name for name in schema["properties"] if name in required]
        return schema

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Parse an answer. Raises `StagetreeError` for JSON that no stagetree server sends."""
        try:
            return cls.model_validate(json)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            text = f"this is not a server that this client understands: {cls.__name__}.{place} is not as expected"
            raise StagetreeError(text) from None

    def to_json(self) -> Json:
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def with_fields(self, **fields: Any) -> Self:
        """A copy with these fields set, without validation."""
        return self.model_copy(update=fields) if fields else self

    def __eq__(self, other: object) -> bool:
        return self.to_json() == other if isinstance(other, Mapping) else super().__eq__(other)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, self._fields.get(name, name))

    def __contains__(self, name: object) -> bool:
        return name in self._fields or name in (self.model_extra or {})

    def get(self, name: str, default: Any = None) -> Any:
        """A field by its name, or `default`."""
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self) -> Iterator[str]:
        """The names of the fields that the server sent, in order, so that `{**answer}` is a dict of them."""
        yield from (name for name, _ in self.sent())
        yield from self.model_extra or ()

    def sent(self) -> list[tuple[str, Any]]:
        """The known fields that are set: name in JSON, and value."""
        fields, names = self.model_fields_set, self._names
        return [(names.get(field, field), value) for field, value in vars(self).items() if field in fields]


Fields = ParamSpec("Fields")
Made = TypeVar("Made", bound=Answer)


def constructor_without_validation(kind: Callable[Fields, Made]) -> Callable[Fields, Made]:
    """The class as a constructor without validation, for answers that a server creates by the thousand.

    A type checker verifies that all fields are given with their types.
    """
    of = cast(type[Made], kind)
    order = {name: field.get_default() for name, field in of.model_fields.items()}

    def make(*_: Fields.args, **fields: Fields.kwargs) -> Made:
        answer = of.__new__(of)
        object.__setattr__(answer, "__dict__", order | fields)
        object.__setattr__(answer, "__pydantic_fields_set__", set(fields))
        object.__setattr__(answer, "__pydantic_extra__", None)
        object.__setattr__(answer, "__pydantic_private__", None)
        return answer

    return make


def _make_optional(field: FieldInfo) -> None:
    """Give a field the empty value of its type: None, "", 0, [] or an empty object."""
    kind: Any = get_origin(field.annotation) or field.annotation
    choices = get_args(field.annotation) if kind in (Union, UnionType) else ()
    if NoneType in choices:
        field.default = None
    else:
        field.default_factory = str if str in choices else kind


class Word:
    """`Annotated[Literal[...] | str, Word(Literal[...])]`: servers send one of the words, clients accept any text."""

    def __init__(self, words: Any) -> None:
        self._words = list(get_args(words))

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.str_schema()

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        return {"type": "string", "enum": self._words}
