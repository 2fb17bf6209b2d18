"""Frozen dataclasses that are read from JSON objects and written back with all unknown keys."""

# Annotations are evaluated at import, here and in modules with such classes: reading one compiles no text.
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from typing import Annotated, Any, ClassVar, Self

from gpuledger.files.shapes import Either, Fields, Items, ListOf, MappingOf, Shape, maybe


@dataclass(frozen=True, kw_only=True)
class JsonObject:
    """A JSON object with known keys, which are the fields of the dataclass.

    A field has one of these types: ``int``, ``float``, ``str``, ``bool``, an ``Enum`` with string values, another
    :class:`JsonObject`, ``tuple[X, ...]`` or ``tuple[X, Y]`` (a list), ``Mapping[str, X]`` (an object with any keys),
    or one of them ``| None``. ``Annotated[X, shape]`` gives the shape of the value explicitly. A field with a default
    can be absent or null.

    ``as_read`` is the object as it was read, including keys unknown to this version. If one of the keys in ``together``
    is present, all must be.
    """

    together: ClassVar[tuple[str, ...]] = ()
    as_read: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the object. ``value`` must have the shape that :func:`shape_of` returns."""
        kinds = _kinds_of(cls)
        known = {
            one.name: _decoded(value[one.name], kinds[one.name])
            for one in fields(cls)
            if one.name in kinds and one.name in value and (value[one.name] is not None or _is_required(one))
        }
        return cls(as_read=dict(value), **known)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object: the original with changed fields, or every field of a new object."""
        value = dict(self.as_read)
        for one in fields(self):
            if one.name == "as_read":
                continue
            mine = getattr(self, one.name)
            if not self.as_read or mine != _as_before(self.as_read, one.name, _kinds_of(type(self))[one.name], one):
                value[one.name] = _encoded(mine)
        return value


def shape_of(cls: type[JsonObject]) -> Fields:
    """Return the shape of a JSON object that :meth:`JsonObject.from_json` can read."""
    known = {
        one.name: _shape(one.type) if _is_required(one) else _maybe(_shape(one.type))
        for one in fields(cls)
        if one.name != "as_read"
    }
    required = tuple(one.name for one in fields(cls) if one.name in known and _is_required(one))
    return Fields(known, required, cls.together)


def _is_required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _maybe(shape: Shape) -> Shape:
    return shape if isinstance(shape, Either) and None in shape.shapes else maybe(shape)


_known_kinds: dict[type[JsonObject], dict[str, Any]] = {}


def _kinds_of(cls: type[JsonObject]) -> dict[str, Any]:
    """Return the type of each field. Cached per class."""
    kinds = _known_kinds.get(cls)
    if kinds is None:
        kinds = _known_kinds[cls] = {one.name: _plain(one.type) for one in fields(cls) if one.name != "as_read"}
    return kinds


def _plain(kind: Any) -> Any:
    """Return a type without ``Annotated`` and without ``| None``."""
    if typing.get_origin(kind) is Annotated:
        kind = kind.__origin__
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (kind,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
    return kind


def _shape(kind: Any) -> Shape:
    if typing.get_origin(kind) is Annotated:
        shape: Shape = kind.__metadata__[0]
        return shape
    plain = _plain(kind)
    if plain is not kind:
        return _maybe(_shape(plain))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return ListOf(_shape(inner[0])) if inner[-1] is Ellipsis else Items(tuple(map(_shape, inner)))
    if origin is Mapping:
        return MappingOf(_shape(inner[1]))
    if kind is Any:
        return object
    if issubclass(kind, JsonObject):
        return shape_of(kind)
    return str if issubclass(kind, Enum) else kind


def _as_before(value: Mapping[str, Any], name: str, kind: Any, one: Field[Any]) -> Any:
    """Return the value of a field when the object was read, or its default."""
    if value.get(name) is not None or _is_required(one):
        return _decoded(value[name], kind)
    return one.default if one.default_factory is MISSING else one.default_factory()


def _decoded(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_decoded(one, _plain(each)) for one, each in zip(value, kinds, strict=True))
    if isinstance(kind, type) and issubclass(kind, JsonObject):
        return kind.from_json(value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


def _encoded(value: Any) -> Any:
    if isinstance(value, JsonObject):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_encoded(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _encoded(one) for name, one in value.items()}
    return value.value if isinstance(value, Enum) else value
