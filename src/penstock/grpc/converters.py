"""Between structs of the table and messages of protobuf: functions that are put together once for each pair.

A message is decoded to plain values, and these to the struct by msgspec, which holds them against the declared limits;
what is wrong is told by the name that protobuf has for the field. Zero and empty stand for "not given" where a field
cannot tell the difference, so that the table's default applies. A field that a request cannot have is refused.

A struct is encoded to plain values too, of which the library makes the message in one step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import UNSET

from penstock.api.messages import bytes_of, header_pairs_of, to_ms
from penstock.errors import InvalidField
from penstock.grpc.legacy import OMITTED, At
from penstock.grpc.shapes import Kind, Leaf, leaves_of

S = TypeVar("S", bound=msgspec.Struct)
Plain = dict[str, Any]
Take = Callable[[Any, Plain], None]  # from a message into plain values
Convert = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS: Final = 1_000_000_000
_NANOS_PER_MS: Final = 1_000_000
# What the two types may hold by their own definitions: from the year 1 to the year 9999.
_TIMESTAMP_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
_DURATION_SECONDS_MAX: Final = 315_576_000_000
_NULL: Final = msgspec.Raw(b"null")
_AT: Final = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_STEP: Final = re.compile(r"\.(\w+)|(\[[^\]]*\])")
_DURATION: Final = "google.protobuf.Duration"
_TIMESTAMP: Final = "google.protobuf.Timestamp"


class InvalidArgument(InvalidField):
    """A field of a request has a value that makes no sense; the message names it."""


# -- messages to structs -----------------------------------------------------------------------------------------------


def decode(kind: type[S], message: Message) -> S:
    """The struct that a message says; `InvalidArgument` if it is none that is taken."""
    return convert(kind, plain_of(kind, message))


def convert(kind: type[S], plain: Plain, within: str = "") -> S:
    """The struct of plain values, within its limits; ``within`` is where errors say that they are."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{within}{told_of(kind, str(error))}") from None


def plain_of(kind: type[msgspec.Struct], message: Message) -> Plain:
    return _decoder(kind, message.DESCRIPTOR, is_answer=False)(message)


def answer_of(kind: type[S], message: Message) -> S:
    """An answer, for clients: what protobuf leaves out is filled in."""
    return msgspec.convert(_decoder(kind, message.DESCRIPTOR, is_answer=True)(message), kind)


def told_of(kind: type[msgspec.Struct], error: str) -> str:
    """An error of msgspec with the names that protobuf has."""
    found = _AT.fullmatch(error)
    assert found is not None, "it matches anything"
    what, at, path = found["what"], kind, ""
    names = [(name, index) for name, index in _STEP.findall(found["path"] or "")]
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        names.append((missing[1], ""))
    within: tuple[str, ...] = ()
    for name, index in names:
        if index:
            path += index
            continue
        leaf = next((each for each in leaves_of(at) if (*each.within, each.name) == (*within, _twin(name))), None)
        if leaf is None:
            within = (*within, name)
            continue
        path, within = f"{path}.{leaf.places[0].path}", ()
        at = leaf.struct or at
    path = path.lstrip(".")
    if missing is not None:
        return f"{path or missing[1]} is missing."
    return f"{path}: {what}." if path else f"{what}."


def _twin(name: str) -> str:
    return "headers" if name == "headers_in_order" else name.removesuffix("_base64")


@lru_cache(None)
def _decoder(kind: type[msgspec.Struct], described: Descriptor, *, is_answer: bool) -> Callable[[Any], Plain]:
    leaves = leaves_of(kind)
    inlined = sorted({leaf.within for leaf in leaves if leaf.within}, key=len)
    takes = _takes(
        described, [(leaf, at, at.path.split(".")) for leaf in leaves for at in leaf.places], "", is_answer=is_answer
    )
    fillings = [(leaf.within, leaf.name, _filling(leaf)) for leaf in leaves if is_answer and leaf.is_required]
    fillings += [((), name, value) for name, value in OMITTED.get(kind, {}).items() if is_answer]

    def decode_message(message: Any) -> Plain:
        plain: Plain = {}
        for within in inlined:
            _at(plain, within[:-1])[within[-1]] = {}
        for take in takes:
            take(message, plain)
        for within, name, value in fillings:
            _at(plain, within).setdefault(name, value)
        return plain

    return decode_message


def _at(plain: Plain, within: tuple[str, ...]) -> Plain:
    for name in within:
        plain = plain[name]
    return plain


def _filling(leaf: Leaf) -> Any:
    if leaf.is_nullable:
        return None
    if leaf.is_list:
        return []
    zeros: Mapping[Kind, Any] = {Kind.INT: 0, Kind.FLOAT: 0.0, Kind.BOOL: False, Kind.TEXT: ""}
    if leaf.kind is Kind.WORD:
        place = leaf.places[0]
        return next((word for word in leaf.words if word != place.true), "")
    return zeros.get(leaf.kind, {})


def _takes(
    described: Descriptor, wanted: list[tuple[Leaf, At, list[str]]], path: str, *, is_answer: bool
) -> tuple[Take, ...]:
    takes: list[Take] = []
    nested: dict[str, list[tuple[Leaf, At, list[str]]]] = {}
    names: set[str] = set()
    for leaf, place, (name, *more) in wanted:
        names.add(name)
        if leaf.kind is Kind.CHANGES:
            names.add(f"unset_{name}")
        if more:
            nested.setdefault(name, []).append((leaf, place, more))
        else:
            takes.append(_take(described.fields_by_name[name], leaf, place, path, is_answer=is_answer))
    for name, inner in nested.items():
        into = _takes(_message_type(described, name), inner, f"{path}{name}.", is_answer=is_answer)
        takes.append(_take_nested(name, into))
    if not is_answer:
        foreign = [field for field in described.fields if field.name not in names]
        if foreign:
            takes.append(_refuse(foreign, path))
    return tuple(takes)


def _message_type(described: Descriptor, name: str) -> Descriptor:
    found = described.fields_by_name[name].message_type
    assert found is not None, f"{described.full_name}.{name} is no message"
    return found


def _take_nested(name: str, into: tuple[Take, ...]) -> Take:
    def take(message: Any, plain: Plain) -> None:
        if message.HasField(name):
            inner = getattr(message, name)
            for each in into:
                each(inner, plain)

    return take


def _refuse(fields: list[FieldDescriptor], path: str) -> Take:
    """Fields of a message that is used elsewhere too, which mean nothing here."""
    known = {field.name for field in fields}

    def take(message: Any, _plain: Plain) -> None:
        for field, _ in message.ListFields():
            if field.name in known:
                raise InvalidArgument(f"{path}{field.name} is not taken here.")

    return take


def _take(field: FieldDescriptor, leaf: Leaf, place: At, path: str, *, is_answer: bool) -> Take:
    name, key, within = field.name, leaf.name, leaf.within
    where = f"{path}{name}"
    if leaf.kind is Kind.PAYLOAD:
        return _take_payload(name, leaf, is_answer=is_answer)
    if leaf.kind is Kind.HEADERS:
        return _take_headers(name, leaf)
    if leaf.kind is Kind.CHANGES:
        return _take_changes(name, leaf)
    if _is_map(field):

        def take_map(message: Any, plain: Plain) -> None:
            found = getattr(message, name)
            if found or is_answer:
                _at(plain, within)[key] = dict(found)

        return take_map
    read = _reading(field, leaf, place, where, is_answer=is_answer)
    if field.is_repeated:

        def take_list(message: Any, plain: Plain) -> None:
            found = getattr(message, name)
            if found or (is_answer and leaf.is_required and not leaf.is_nullable):
                _at(plain, within)[key] = list(found) if read is None else [read(each) for each in found]

        return take_list
    if field.has_presence:

        def take_given(message: Any, plain: Plain) -> None:
            if message.HasField(name):
                found = getattr(message, name)
                _at(plain, within)[key] = found if read is None else read(found)

        return take_given
    is_always = (leaf.is_required or (is_answer and path != "" and leaf.kind is Kind.INT)) and field.cpp_type not in (
        FieldDescriptor.CPPTYPE_STRING,
        FieldDescriptor.CPPTYPE_ENUM,
    )

    def take_scalar(message: Any, plain: Plain) -> None:
        found = getattr(message, name)
        if found or is_always:
            if found == place.default:
                return
            value = found if read is None else read(found)
            if within:
                plain = _at(plain, within)
            plain[key] = value
        elif place.needed:
            raise InvalidArgument(f"{where} is missing.")

    return take_scalar


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _reading(field: FieldDescriptor, leaf: Leaf, place: At, where: str, *, is_answer: bool) -> Convert | None:
    """What makes the plain value of a field; None if it is that already."""
    if leaf.kind is Kind.STRUCT:
        assert leaf.struct is not None
        return _nested(_decoder(leaf.struct, field.message_type, is_answer=is_answer), where)
    if field.message_type is not None and field.message_type.full_name == _DURATION:
        return lambda value: _milliseconds(value, where)
    if field.message_type is not None and field.message_type.full_name == _TIMESTAMP:
        if leaf.kind is Kind.TIME:
            return lambda value: _EPOCH + timedelta(milliseconds=_timestamp_ms(value, where))
        return lambda value: _timestamp_ms(value, where)
    if field.enum_type is not None:
        words = {number: word for word, number in words_of(field.enum_type).items()}
        return lambda number: words.get(number, str(number))
    if place.true is not None:
        true, false = place.true, next(word for word in leaf.words if word != place.true)
        return lambda flag: true if flag else false
    return None


def _nested(inner: Callable[[Any], Plain], where: str) -> Convert:
    def read(message: Any) -> Plain:
        try:
            return inner(message)
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}.{error.message}") from None

    return read


def words_of(enum: EnumDescriptor) -> dict[str, int]:
    """The words of an enum, without the prefix that protobuf wants and the one that says nothing."""
    prefix = re.sub(r"(?<!^)([A-Z])", r"_\1", enum.name).upper()
    return {value.name.removeprefix(f"{prefix}_").lower(): value.number for value in enum.values if value.number}


def _take_payload(name: str, leaf: Leaf, *, is_answer: bool) -> Take:
    twin, within, key = f"{name}_base64", leaf.within, leaf.name
    is_raw = leaf.is_raw

    def take(message: Any, plain: Plain) -> None:
        into = _at(plain, within)
        if message.HasField(name):
            data = getattr(message, name)
            if is_answer and not is_raw and (text := _text_of(data)) is not None:
                into[key] = text
            else:
                into[twin] = data
        elif is_raw:
            into[key] = _NULL
        elif is_answer:
            into[key] = None

    return take


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _take_headers(name: str, leaf: Leaf) -> Take:
    within = leaf.within

    def take(message: Any, plain: Plain) -> None:
        found = getattr(message, name)
        if found:
            _at(plain, within)["headers_in_order"] = [
                (header.name, header.value if header.HasField("value") else None) for header in found
            ]

    return take


def _take_changes(name: str, leaf: Leaf) -> Take:
    key, unset = leaf.name, f"unset_{name}"

    def take(message: Any, plain: Plain) -> None:
        changes, gone = dict(getattr(message, name)), getattr(message, unset)
        both = changes.keys() & set(gone)
        if both:
            raise InvalidArgument(f"{name} and {unset} both name {min(both)!r}.")
        plain[key] = {**changes, **dict.fromkeys(gone)}

    return take


def _milliseconds(value: Any, where: str) -> int:
    """A duration; a part of a millisecond counts as a whole one, so that what is not zero stays so."""
    if abs(value.nanos) >= _NANOS or abs(value.seconds) > _DURATION_SECONDS_MAX:
        raise InvalidArgument(f"{where} is not a valid duration.")
    return -(-(int(value.seconds) * _NANOS + int(value.nanos)) // _NANOS_PER_MS)


def _timestamp_ms(value: Any, where: str) -> int:
    low, high = _TIMESTAMP_SECONDS
    if not low <= value.seconds <= high or not 0 <= value.nanos < _NANOS:
        raise InvalidArgument(f"{where} is not a valid instant.")
    if value.seconds < 0:
        raise InvalidArgument(f"{where} is before 1970.")
    return int(value.seconds) * 1_000 + int(value.nanos) // _NANOS_PER_MS


# -- structs to messages -----------------------------------------------------------------------------------------------


def encode(value: msgspec.Struct, described: Descriptor) -> Message:
    """The message that says what a struct says."""
    return _class_of(described)(**_encoder(type(value), described)(value))


@lru_cache(None)
def _class_of(described: Descriptor) -> type[Message]:
    return GetMessageClass(described)


Put = Callable[[Any, Plain], None]


@lru_cache(None)
def _encoder(kind: type[msgspec.Struct], described: Descriptor) -> Callable[[Any], Plain]:
    puts = tuple(_put(described, leaf) for leaf in leaves_of(kind))

    def encode_struct(value: Any) -> Plain:
        plain: Plain = {}
        for put in puts:
            put(value, plain)
        return plain

    return encode_struct


def _put(described: Descriptor, leaf: Leaf) -> Put:
    puts = [(place.given, _put_at(described, leaf, place)) for place in leaf.places]
    if len(puts) == 1 and not leaf.within:
        return puts[0][1]
    takes_only = _takes_int if leaf.kind is Kind.POINT else None

    def put(value: Any, plain: Plain) -> None:
        for name in leaf.within:
            value = getattr(value, name)
        for at, (given, each) in enumerate(puts):
            if given is not None and getattr(value, given) in (None, UNSET):
                continue
            if takes_only is not None and takes_only(getattr(value, leaf.name)) != (at == 0):
                continue
            each(value, plain)
            return

    return put


def _takes_int(value: Any) -> bool:
    return isinstance(value, int)


def _put_at(described: Descriptor, leaf: Leaf, place: At) -> Put:
    *outer, name = place.path.split(".")
    for step in outer:
        described = _message_type(described, step)
    field, key = described.fields_by_name[name], leaf.name

    def inner(plain: Plain) -> Plain:
        for step in outer:
            plain = plain.setdefault(step, {})
        return plain

    if leaf.kind is Kind.PAYLOAD:

        def put_payload(value: Any, plain: Plain) -> None:
            data = _payload(value, key)
            if data is not None:
                inner(plain)[name] = data

        return put_payload
    if leaf.kind is Kind.HEADERS:

        def put_headers(value: Any, plain: Plain) -> None:
            if value.headers or value.headers_base64 or value.headers_in_order:
                pairs = header_pairs_of(value)
                inner(plain)[name] = [{"name": each, "value": data} for each, data in pairs]

        return put_headers
    if leaf.kind is Kind.CHANGES:

        def put_changes(value: Any, plain: Plain) -> None:
            changes = getattr(value, key)
            plain[name] = {each: _text(word) for each, word in changes.items() if word is not None}
            plain[f"unset_{name}"] = [each for each, word in changes.items() if word is None]

        return put_changes
    write = _writing(field, leaf, place)
    unset, default = place.unset, place.default

    def put(value: Any, plain: Plain) -> None:
        found = getattr(value, key)
        if found is None or found is UNSET:
            if default is None:
                return
            found = default
        elif unset is not None and found == unset:
            return
        into = plain if not outer else inner(plain)
        into[name] = found if write is None else write(found)

    return put


def _payload(value: Any, key: str) -> bytes | None:
    found = getattr(value, key)
    if not isinstance(found, msgspec.Raw):
        return bytes_of(value, key)
    raw = bytes(found)
    if raw == b"null":
        return None
    return msgspec.json.decode(raw, type=str).encode() if raw[:1] == b'"' else raw


def _writing(field: FieldDescriptor, leaf: Leaf, place: At) -> Convert | None:
    """What makes of a value what the library takes; None if it takes it as it is."""
    if leaf.kind is Kind.STRUCT:
        assert leaf.struct is not None
        each = _encoder(leaf.struct, field.message_type)
        return (lambda values: [each(value) for value in values]) if leaf.is_list else each
    if leaf.kind is Kind.TEXTS:
        return lambda texts: {name: _text(value) for name, value in texts.items()}
    if place.true is not None:
        return lambda word: word == place.true
    one: Convert | None = None
    if field.enum_type is not None:
        words = words_of(field.enum_type)
        one = lambda word: words.get(word, 0)  # noqa: E731
    elif field.message_type is not None and field.message_type.full_name == _DURATION:
        one = _seconds
    elif field.message_type is not None and field.message_type.full_name == _TIMESTAMP:
        one = lambda moment: _seconds(to_ms(moment) if isinstance(moment, datetime) else moment)  # noqa: E731
    if leaf.is_list and one is not None:
        single = one
        return lambda values: [single(value) for value in values]
    return one


def _seconds(milliseconds: int) -> Plain:
    seconds, rest = divmod(milliseconds, 1_000)
    return {"seconds": seconds, "nanos": rest * _NANOS_PER_MS}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
