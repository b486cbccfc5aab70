"""How a message is described: a frozen structure whose annotations carry the facts that depend on the version.

    class MetadataRequest(WireMessage, frozen=True, kw_only=True):
        topics: Annotated[tuple[MetadataRequestTopic, ...] | None, Nullable(1)]
        allow_auto_topic_creation: Annotated[Bool, Since(4)] = True

There is one description for all versions of a message. A field that some version lacks needs a default: decoding such
a version leaves the default, encoding it leaves the field out. ``fields_of`` reads the description; what is done with
it is the compiler's business.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

# -- the kinds of value there are on the wire --------------------------------------------------------------------------


class Fixed(msgspec.Struct, frozen=True):
    """A number or a boolean: ``code`` is its letter in the struct module, which also says how wide it is."""

    code: str
    width: int


class Text(msgspec.Struct, frozen=True):
    """A UTF-8 string with its length in front."""


class Blob(msgspec.Struct, frozen=True):
    """Bytes with their length in front."""


class UuidBytes(msgspec.Struct, frozen=True):
    """A UUID of 16 bytes."""


class Struct(msgspec.Struct, frozen=True):
    """A nested structure."""

    cls: type[object]


class Array(msgspec.Struct, frozen=True):
    """Any number of one kind of value, with the count in front."""

    element: Kind


Kind: TypeAlias = Fixed | Text | Blob | UuidBytes | Struct | Array

Bool: TypeAlias = Annotated[bool, Fixed("?", 1)]
Int8: TypeAlias = Annotated[int, Fixed("b", 1)]
Int16: TypeAlias = Annotated[int, Fixed("h", 2)]
Int32: TypeAlias = Annotated[int, Fixed("i", 4)]
Int64: TypeAlias = Annotated[int, Fixed("q", 8)]
UInt16: TypeAlias = Annotated[int, Fixed("H", 2)]
Float64: TypeAlias = Annotated[float, Fixed("d", 8)]
String: TypeAlias = Annotated[str, Text()]
Bytes: TypeAlias = Annotated[bytes, Blob()]
Uuid: TypeAlias = Annotated[UUID, UuidBytes()]

NO_UUID = UUID(int=0)

# -- what may be said about a field ------------------------------------------------------------------------------------

_FOREVER = 1 << 15


class Since(msgspec.Struct, frozen=True):
    """The first version that has the field."""

    version: int


class Until(msgspec.Struct, frozen=True):
    """The last version that has the field."""

    version: int


class Nullable(msgspec.Struct, frozen=True):
    """The first version in which the field may be null; without it an optional field may be null in all of them."""

    version: int


class Tag(msgspec.Struct, frozen=True):
    """The field is a tagged one: left out where it has its default, skipped by those who do not know it (KIP-482)."""

    number: int


# -- messages ----------------------------------------------------------------------------------------------------------


class Api(msgspec.Struct, frozen=True):
    """One kind of request: its number, the versions described here, and the first one in the flexible encoding."""

    key: int
    name: str
    first: int
    last: int
    flexible: int

    def supports(self, version: int) -> bool:
        return self.first <= version <= self.last

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible

    @property
    def versions(self) -> range:
        return range(self.first, self.last + 1)


class ApiMessage(Protocol):
    """A request or a response, as against a structure nested in one."""

    api: ClassVar[Api]


class Field(msgspec.Struct, frozen=True):
    """What the description says about one field."""

    name: str
    kind: Kind
    optional: bool
    since: int
    until: int
    nullable: int
    tag: int | None
    has_default: bool
    default: Any

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def is_in_all(self, versions: range) -> bool:
        return self.since <= versions[0] and versions[-1] <= self.until

    def is_nullable_in(self, version: int) -> bool:
        return self.optional and version >= self.nullable


def fields_of(cls: type[object]) -> tuple[Field, ...]:
    """The fields of a described structure, in the order of the wire."""
    assert issubclass(cls, msgspec.Struct), f"{cls} has no place on the wire"
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_field(plain, hints[plain.name]) for plain in msgspec.structs.fields(cls))


def _field(plain: msgspec.structs.FieldInfo, hint: Any) -> Field:
    facts = {type(fact): fact for fact in getattr(hint, "__metadata__", ())}
    bare, is_optional = _without_none(hint)
    has_default = plain.default is not msgspec.NODEFAULT
    return Field(
        name=plain.name,
        kind=_kind(bare),
        optional=is_optional,
        since=facts[Since].version if Since in facts else 0,
        until=facts[Until].version if Until in facts else _FOREVER,
        nullable=facts[Nullable].version if Nullable in facts else 0,
        tag=facts[Tag].number if Tag in facts else None,
        has_default=has_default,
        default=plain.default if has_default else None,
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The hint less its ``| None``, wherever in it ``Annotated`` stands, and whether there was one."""
    if get_origin(hint) is Annotated and get_origin(hint.__origin__) in (Union, types.UnionType):
        hint = hint.__origin__
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    (bare,) = (part for part in get_args(hint) if part is not types.NoneType)
    return bare, True


def _kind(hint: Any) -> Kind:
    if get_origin(hint) is Annotated:
        for fact in hint.__metadata__:
            if isinstance(fact, Fixed | Text | Blob | UuidBytes):
                return fact
        return _kind(hint.__origin__)
    if get_origin(hint) is tuple:
        return Array(_kind(get_args(hint)[0]))
    assert isinstance(hint, type), f"{hint} has no place on the wire"
    return Struct(hint)
