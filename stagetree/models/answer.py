"""What all answers have in common: what a server must say, and how a client reads it."""

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

    A server sets every field that is declared without a default. A client is lenient: it keeps the fields that a newer
    server adds, takes words that it does not know (`Word`), and where an older server leaves a field out, the field is
    empty, unless the class `needs` it.
    """

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)
    _names: ClassVar[dict[str, str]] = {}
    """The fields that have another name in JSON."""

    _fields: ClassVar[dict[str, str]] = {}
    """All of them, by their names in JSON."""

    _promised: ClassVar[frozenset[str]] = frozenset()
    _is_open: ClassVar[bool] = False

    def __init_subclass__(cls, *, needs: Sequence[str] | None = None, is_open: bool = False) -> None:
        """Needs: the fields without which a client does not understand it, None for all that have no default.

        is_open: whether servers set fields of other names, too.
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
        """What a server answers: it sets the fields that it promises, which a client does without."""
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
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def with_fields(self, **fields: Any) -> Self:
        """The same answer, with these fields set as well. They are not validated."""
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
        """A field by its name, or `default` where there is none."""
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self) -> Iterator[str]:
        """The names of the fields that the server sent, in their order, so that `{**answer}` is a dict of them."""
        yield from (name for name, _ in self.sent())
        yield from self.model_extra or ()

    def sent(self) -> list[tuple[str, Any]]:
        """The fields that are set, and that this client knows: each with its name in JSON, and its value."""
        fields, names = self.model_fields_set, self._names
        return [(names.get(field, field), value) for field, value in vars(self).items() if field in fields]


Fields = ParamSpec("Fields")
Made = TypeVar("Made", bound=Answer)


def unchecked(kind: Callable[Fields, Made]) -> Callable[Fields, Made]:
    """The class, as a function that validates nothing: for answers of which a server makes thousands.

    A type checker sees to it that all fields are given, and are of their types.
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
    """Give a field the empty value of its type: None, "", 0, a list or an object without anything in it."""
    kind: Any = get_origin(field.annotation) or field.annotation
    choices = get_args(field.annotation) if kind in (Union, UnionType) else ()
    if NoneType in choices:
        field.default = None
    else:
        field.default_factory = str if str in choices else kind


class Word:
    """In `Annotated[Literal[...] | str, Word(Literal[...])]`: one of some words for servers, any text for clients."""

    def __init__(self, words: Any) -> None:
        self._words = list(get_args(words))

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.str_schema()

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        return {"type": "string", "enum": self._words}
