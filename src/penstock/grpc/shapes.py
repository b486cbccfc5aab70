"""What protobuf makes of the table: which methods there are, and where a message has the fields of a struct.

Rules, where `legacy` says nothing else: a service for each module of `penstock.api`, with a method for each operation,
called as its request type; the request is ``<method>Request``, the answer is called as its type, ``<method>Response``
if there is none. Fields are called as those of the struct, but:

- a number in milliseconds, ``wait_ms``, is the Duration ``wait``, and an instant, ``ended_at_ms``, a Timestamp;
- ``value`` and its twin ``value_base64`` are the bytes ``value``, and the headers of a message a list in their order;
- a map in which null unsets something has a second field ``unset_<name>`` with these names.

Both the definitions (`definitions`) and the converters (`converters`) are made from this.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec import inspect as types
from msgspec.structs import FieldInfo

from penstock.api.operation import Operation
from penstock.grpc.legacy import ANSWERS, FIELDS, INLINE, MESSAGES, METHODS, NOT_IN_GRPC, OMITTED, At, Places
from penstock.grpc.streams import STREAM_FIELDS, STREAMS

_TWIN: Final = "_base64"
_IN_ORDER: Final = "headers_in_order"
_ZEROS: Final[tuple[Any, ...]] = (None, UNSET, 0, "", False, (), [], {})


class Kind(enum.Enum):
    """What a field holds."""

    INT = enum.auto()
    FLOAT = enum.auto()
    BOOL = enum.auto()
    TEXT = enum.auto()
    WORD = enum.auto()  # one of a few texts
    BYTES = enum.auto()
    TIME = enum.auto()
    MOMENT = enum.auto()  # milliseconds or a time
    POINT = enum.auto()  # an offset or a word
    PAYLOAD = enum.auto()  # bytes, of which JSON has two forms
    HEADERS = enum.auto()
    TEXTS = enum.auto()  # texts by name
    COUNTS = enum.auto()  # numbers by name
    CHANGES = enum.auto()  # texts by name, or null
    STRUCT = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A field of a struct, and where a message has it. ``within`` are the fields that it is inlined from."""

    name: str
    within: tuple[str, ...]
    kind: Kind
    struct: type[msgspec.Struct] | None
    words: tuple[str, ...]
    is_list: bool
    is_nullable: bool
    is_required: bool
    default: Any
    places: tuple[At, ...]
    description: str
    low: int | None
    high: int | None
    is_raw: bool  # a payload that may be any JSON

    @property
    def has_zero_default(self) -> bool:
        return any(
            self.default is zero or (type(self.default) is type(zero) and self.default == zero) for zero in _ZEROS
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """A method of a service. ``operation`` is the row that it is bound to; None if it is a stream."""

    service: str
    name: str
    request: type[msgspec.Struct]
    request_message: str
    answer: type[msgspec.Struct] | None
    answer_message: str
    summary: str
    operation: Operation | None = None
    has_many_requests: bool = False

    @property
    def is_stream(self) -> bool:
        return self.operation is None


def rpcs_of(operations: Iterable[Operation]) -> list[Rpc]:
    """Every method: of rows of the table, and streams."""
    return [*(_rpc(row) for row in operations if row.request not in NOT_IN_GRPC), *_streams()]


def _rpc(row: Operation) -> Rpc:
    name = METHODS.get(row.request, row.request.__name__)
    answer = ANSWERS.get(row.request) or (f"{name}Response" if row.answer is None else message_of(row.answer))
    return Rpc(
        service=row.request.__module__.rpartition(".")[2],
        name=name,
        request=row.request,
        request_message=f"{name}Request",
        answer=row.answer,
        answer_message=answer,
        summary=row.summary,
        operation=row,
    )


def _streams() -> Iterator[Rpc]:
    for stream in STREAMS:
        yield Rpc(
            service=stream.service,
            name=stream.name,
            request=stream.request,
            request_message=f"{stream.name}Request",
            answer=stream.answer,
            answer_message=f"{stream.name}Response",
            summary=stream.summary,
            has_many_requests=stream.has_many_requests,
        )


def service_name(module: str) -> str:
    return "".join(word.capitalize() for word in module.split("_"))


def message_of(struct: type[msgspec.Struct]) -> str:
    return MESSAGES.get(struct, struct.__name__)


# -- fields ------------------------------------------------------------------------------------------------------------


@lru_cache(None)
def leaves_of(struct: type[msgspec.Struct]) -> tuple[Leaf, ...]:
    """The fields of a struct, each with where protobuf has it; those of inlined structs too."""
    return tuple(_leaves(struct, ()))


def _leaves(struct: type[msgspec.Struct], within: tuple[str, ...]) -> Iterator[Leaf]:
    hints = _hints_of(struct)
    infos = {info.name: info for info in msgspec.structs.fields(struct)}
    for name, info in infos.items():
        if (
            (name.endswith(_TWIN) and name.removesuffix(_TWIN) in infos)
            or name == _IN_ORDER
            or name in OMITTED.get(struct, ())
        ):
            continue
        if hints.get(name) == INLINE:
            _, inner = _struct_in(types.type_info(info.type))
            assert inner is not None, f"{struct.__name__}.{name} is inlined and no struct"
            yield from _leaves(inner, (*within, name))
            continue
        yield _leaf(info, within, is_twin=f"{name}{_TWIN}" in infos, hint=hints.get(name))


def _hints_of(struct: type[msgspec.Struct]) -> Mapping[str, Places]:
    merged: dict[str, Places] = {}
    for kind in reversed(struct.__mro__):
        merged.update(STREAM_FIELDS.get(kind, {}))
        merged.update(FIELDS.get(kind, {}))
    return merged


def _leaf(info: FieldInfo, within: tuple[str, ...], *, is_twin: bool, hint: Places | None) -> Leaf:
    told = types.type_info(info.type)
    description = ""
    if isinstance(told, types.Metadata):
        description = str((told.extra_json_schema or {}).get("description", ""))
    kinds, is_nullable = _alternatives(told)
    is_list = False
    struct: type[msgspec.Struct] | None = None
    if is_twin:
        kind = Kind.HEADERS if info.name == "headers" else Kind.PAYLOAD
    else:
        if len(kinds) == 1 and isinstance(kinds[0], (types.ListType, types.VarTupleType)):
            is_list = True
            kinds, _ = _alternatives(kinds[0].item_type)
        kind = _kind(kinds)
        if isinstance(kinds[0], types.StructType):
            struct = kinds[0].cls
    default = info.default
    if default is msgspec.NODEFAULT and info.default_factory is not msgspec.NODEFAULT:
        default = info.default_factory()
    words = tuple(word for each in kinds if isinstance(each, types.LiteralType) for word in each.values)
    return Leaf(
        name=info.name,
        within=within,
        kind=kind,
        struct=struct,
        words=tuple(str(word) for word in words),
        is_list=is_list,
        is_nullable=is_nullable or default is UNSET,
        is_required=info.required,
        default=None if info.required else default,
        places=_places(hint) or (At(default_name(info.name, kind, is_list=is_list)),),
        description=description,
        low=kinds[0].ge if isinstance(kinds[0], types.IntType) else None,
        high=kinds[0].le if isinstance(kinds[0], types.IntType) else None,
        is_raw=isinstance(kinds[0], types.RawType),
    )


def _places(hint: Places | None) -> tuple[At, ...]:
    if hint is None:
        return ()
    if isinstance(hint, tuple):
        return hint
    return (hint if isinstance(hint, At) else At(hint),)


def default_name(name: str, kind: Kind, *, is_list: bool) -> str:
    return name.removesuffix("_ms") if kind is Kind.INT and not is_list else name


def default_type(leaf: Leaf) -> str:
    """The type of a field that is new."""
    if leaf.kind is Kind.INT and not leaf.is_list and leaf.name.endswith("_ms"):
        is_instant = leaf.name.endswith("_at_ms") or leaf.name == "time_ms"
        return _TYPES[Kind.TIME] if is_instant else "google.protobuf.Duration"
    if leaf.kind is Kind.STRUCT:
        assert leaf.struct is not None
        return message_of(leaf.struct)
    return _TYPES[leaf.kind]


_TYPES: Final = {
    Kind.INT: "int64",
    Kind.FLOAT: "double",
    Kind.BOOL: "bool",
    Kind.TEXT: "string",
    Kind.WORD: "string",
    Kind.BYTES: "bytes",
    Kind.TIME: "google.protobuf.Timestamp",
    Kind.MOMENT: "google.protobuf.Timestamp",
    Kind.POINT: "Start",
    Kind.PAYLOAD: "bytes",
    Kind.HEADERS: "Header",
    Kind.TEXTS: "map<string, string>",
    Kind.COUNTS: "map<string, int64>",
    Kind.CHANGES: "map<string, string>",
}


def _alternatives(told: types.Type) -> tuple[list[types.Type], bool]:
    """What a type may be beside null, and whether it may be that."""
    while isinstance(told, types.Metadata):
        told = told.type
    if not isinstance(told, types.UnionType):
        return [told], False
    found = [each.type if isinstance(each, types.Metadata) else each for each in told.types]
    return [each for each in found if not isinstance(each, types.NoneType)], len(found) > len(
        [each for each in found if not isinstance(each, types.NoneType)]
    )


def _struct_in(told: types.Type) -> tuple[bool, type[msgspec.Struct] | None]:
    kinds, is_nullable = _alternatives(told)
    return is_nullable, kinds[0].cls if isinstance(kinds[0], types.StructType) else None


_KINDS: Final[Mapping[type[types.Type], Kind]] = {
    types.IntType: Kind.INT,
    types.FloatType: Kind.FLOAT,
    types.BoolType: Kind.BOOL,
    types.StrType: Kind.TEXT,
    types.LiteralType: Kind.WORD,
    types.BytesType: Kind.BYTES,
    types.DateTimeType: Kind.TIME,
    types.StructType: Kind.STRUCT,
}


def _kind(kinds: list[types.Type]) -> Kind:
    if len(kinds) == 1:
        (only,) = kinds
        if not isinstance(only, types.DictType):
            return _KINDS[type(only)]
        values, is_nullable = _alternatives(only.value_type)
        if is_nullable:
            return Kind.CHANGES
        return Kind.COUNTS if all(isinstance(each, types.IntType) for each in values) else Kind.TEXTS
    found = {type(each) for each in kinds}
    if found == {types.IntType, types.DateTimeType}:
        return Kind.MOMENT
    if found == {types.IntType, types.LiteralType}:
        return Kind.POINT
    raise TypeError(f"Protobuf has nothing for {kinds}; give it a rule in penstock.grpc.shapes.")
