"""Between structs of the table and messages of protobuf: functions that are put together once for each pair.

A message is decoded to plain values, and these to the struct by msgspec, which holds them against the declared limits;
what is wrong is told by the name that protobuf has for the field. Zero and empty stand for "not given" where a field
cannot tell the difference, so that the table's default applies. A field that a request cannot have is refused.

A struct is encoded to plain values too, of which the library makes the message in one step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import UNSET

from penstock.api.messages import bytes_of, header_pairs_of
from penstock.errors import InvalidField
from penstock.grpc.legacy import OMITTED, At
from penstock.grpc.shapes import Kind, Leaf, leaves_of

S = TypeVar("S", bound=msgspec.Struct)
Plain = dict[str, Any]
Take = Callable[[Any, Plain], None]  # from a message into plain values
Convert = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_SECONDS: Final = 86_400
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
    wanted = [(leaf, at, at.path.split(".")) for leaf in leaves for at in leaf.places]
    into = _reader(described, wanted, "", is_answer=is_answer)
    fillings = [(leaf.within, leaf.name, _filling(leaf)) for leaf in leaves if is_answer and leaf.is_required]
    fillings += [((), name, value) for name, value in OMITTED.get(kind, {}).items() if is_answer]

    def decode_message(message: Any) -> Plain:
        plain: Plain = {}
        for within in inlined:
            _at(plain, within[:-1])[within[-1]] = {}
        into(message, plain)
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


def _reader(described: Descriptor, wanted: list[tuple[Leaf, At, list[str]]], path: str, *, is_answer: bool) -> Take:
    """What takes the fields of a message that are set; most of a message is not."""
    takes: dict[int, Take] = {}
    nested: dict[str, list[tuple[Leaf, At, list[str]]]] = {}
    unset: list[Callable[[Plain], None]] = []
    for leaf, place, (name, *more) in wanted:
        if more:
            nested.setdefault(name, []).append((leaf, place, more))
            continue
        field = described.fields_by_name[name]
        takes[field.number] = _take(field, leaf, place, f"{path}{name}", is_answer=is_answer)
        if leaf.kind is Kind.CHANGES:
            takes[described.fields_by_name[f"unset_{name}"].number] = _take_unset(name, leaf)
        instead = _instead(field, leaf, place, path, is_answer=is_answer)
        if instead is not None:
            unset.append(instead)
    for name, inner in nested.items():
        number = described.fields_by_name[name].number
        takes[number] = _reader(_message_type(described, name), inner, f"{path}{name}.", is_answer=is_answer)
    instead_of = tuple(unset)

    def read(message: Any, plain: Plain) -> None:
        for field, value in message.ListFields():
            take = takes.get(field.number)
            if take is not None:
                take(value, plain)
            elif not is_answer:
                raise InvalidArgument(f"{path}{field.name} is not taken here.")
        for each in instead_of:
            each(plain)

    return read


def _instead(
    field: FieldDescriptor, leaf: Leaf, place: At, path: str, *, is_answer: bool
) -> Callable[[Plain], None] | None:
    """What stands for a field that is not set; None if the table's default does."""
    key, within = leaf.name, leaf.within
    if place.needed:

        def refuse(plain: Plain) -> None:
            if key not in _at(plain, within):
                raise InvalidArgument(f"{path}{field.name} is missing.")

        return refuse
    is_number = leaf.kind is Kind.INT and not field.has_presence and not field.is_repeated
    value: Any
    if leaf.is_raw:
        value, unless = _NULL, f"{key}_base64"
    elif leaf.kind is Kind.PAYLOAD and is_answer:
        value, unless = None, f"{key}_base64"
    elif leaf.kind is Kind.CHANGES:
        value, unless = {}, key
    elif is_number and (leaf.is_required or (is_answer and path)):
        value, unless = 0, key
    else:
        return None

    def fill(plain: Plain) -> None:
        into = _at(plain, within)
        if unless not in into:
            into.setdefault(key, value)

    return fill


def _message_type(described: Descriptor, name: str) -> Descriptor:
    found = described.fields_by_name[name].message_type
    assert found is not None, f"{described.full_name}.{name} is no message"
    return found


def _take(field: FieldDescriptor, leaf: Leaf, place: At, where: str, *, is_answer: bool) -> Take:
    key, within = leaf.name, leaf.within
    if leaf.kind is Kind.PAYLOAD:
        return _take_payload(leaf, is_answer=is_answer)
    if leaf.kind is Kind.CHANGES:
        return _take_changes(leaf)
    read = dict if _is_map(field) else _reading(field, leaf, place, where, is_answer=is_answer)
    if leaf.kind is Kind.HEADERS:
        key, read = "headers_in_order", _headers
    elif field.is_repeated and not _is_map(field):
        one = read
        read = list if one is None else lambda values: [one(value) for value in values]
    default = place.default

    def take(value: Any, plain: Plain) -> None:
        if within:
            plain = _at(plain, within)
        if default is None or value != default:
            plain[key] = value if read is None else read(value)

    return take


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


def _take_payload(leaf: Leaf, *, is_answer: bool) -> Take:
    key, twin, within = leaf.name, f"{leaf.name}_base64", leaf.within
    is_shown = is_answer and not leaf.is_raw

    def take(data: Any, plain: Plain) -> None:
        text = _text_of(data) if is_shown else None
        into = _at(plain, within)
        if text is None:
            into[twin] = data
        else:
            into[key] = text

    return take


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _headers(headers: Any) -> list[tuple[str, bytes | None]]:
    return [(header.name, header.value if header.HasField("value") else None) for header in headers]


def _take_changes(leaf: Leaf) -> Take:
    key = leaf.name

    def take(changes: Any, plain: Plain) -> None:
        plain.setdefault(key, {}).update(changes)

    return take


def _take_unset(name: str, leaf: Leaf) -> Take:
    """Settings to unset; they come after those to set, because their number is the higher one."""
    key = leaf.name

    def take(gone: Any, plain: Plain) -> None:
        changes = plain.setdefault(key, {})
        both = changes.keys() & set(gone)
        if both:
            raise InvalidArgument(f"{name} and unset_{name} both name {min(both)!r}.")
        changes.update(dict.fromkeys(gone))

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
    """The message that says what a struct says. Long lists are added one by one, so that few objects live at once."""
    plain = _encoder(type(value), described)(value)
    lists = {name: plain.pop(name) for name in _lists_of(type(value), described) if name in plain}
    message = _class_of(described)(**plain)
    for name, items in lists.items():
        add = getattr(message, name).add
        for item in items:
            add(**item)
    return message


@lru_cache(None)
def _lists_of(kind: type[msgspec.Struct], described: Descriptor) -> tuple[str, ...]:
    """The fields of a message that are lists of messages."""
    paths = [leaf.places[0].path for leaf in leaves_of(kind) if leaf.kind is Kind.STRUCT and leaf.is_list]
    return tuple(path for path in paths if path in described.fields_by_name)


@lru_cache(None)
def _class_of(described: Descriptor) -> type[Message]:
    return GetMessageClass(described)


@lru_cache(None)
def _encoder(kind: type[msgspec.Struct], described: Descriptor) -> Callable[[Any], Plain]:
    """What makes plain values of a struct: written out field by field, because an answer can have 10,000 of them."""
    names: dict[str, Any] = {"UNSET": UNSET, "payload": _payload, "headers": _header_list}
    body = [line for at, leaf in enumerate(leaves_of(kind)) for line in _encoding(described, leaf, at, names)]
    outers = {line.split()[1] for line in body if line.lstrip().startswith("if into_")}
    head = ["def encode_struct(struct):", "    plain = {}", *(f"    {name} = None" for name in sorted(outers))]
    exec("\n".join((*head, *body, "    return plain")), names)  # noqa: S102 - made of names that the table declares
    made: Callable[[Any], Plain] = names["encode_struct"]
    return made


def _encoding(described: Descriptor, leaf: Leaf, at: int, names: dict[str, Any]) -> Iterator[str]:
    """The lines that encode a field."""
    owner = ".".join(("struct", *leaf.within))
    if leaf.kind is Kind.CHANGES:
        name = leaf.places[0].path
        names["texts"] = lambda changes: {each: _text(word) for each, word in changes.items() if word is not None}
        yield f"    plain[{name!r}] = texts({owner}.{leaf.name})"
        yield f"    plain['unset_{name}'] = [each for each, word in {owner}.{leaf.name}.items() if word is None]"
        return
    if leaf.kind is Kind.PAYLOAD:
        yield f"    found = payload({owner}, {leaf.name!r})"
    elif leaf.kind is Kind.HEADERS:
        yield f"    found = headers({owner})"
    else:
        yield f"    found = {owner}.{leaf.name}"
    place = leaf.places[0]
    if place.default is not None:
        yield f"    found = {place.default!r} if found is None or found is UNSET else found"
    if place.unset is not None:
        yield f"    found = None if found == {place.unset!r} else found"
    yield "    if found is not None and found is not UNSET:"
    for number, each in enumerate(leaf.places):
        word = "if" if number == 0 else "elif"
        yield f"        {word} {_condition(leaf, each, number, owner)}:"
        yield from _assignment(described, leaf, each, f"write_{at}_{number}", names)


def _condition(leaf: Leaf, place: At, number: int, owner: str) -> str:
    if leaf.kind is Kind.POINT:
        return "isinstance(found, int)" if number == 0 else "isinstance(found, str)"
    return (
        "True" if place.given is None else f"{owner}.{place.given} is not None and {owner}.{place.given} is not UNSET"
    )


def _assignment(described: Descriptor, leaf: Leaf, place: At, write: str, names: dict[str, Any]) -> Iterator[str]:
    *outer, name = place.path.split(".")
    into = "plain"
    for depth, step in enumerate(outer):
        described = _message_type(described, step)
        inner = f"into_{'_'.join(outer[: depth + 1])}"
        yield f"            if {inner} is None:"
        yield f"                {inner} = {into}[{step!r}] = {{}}"
        into = inner
    names[write] = _writing(described.fields_by_name[name], leaf, place)
    yield f"            {into}[{name!r}] = {'found' if names[write] is None else f'{write}(found)'}"


def _header_list(value: Any) -> list[Plain] | None:
    if not (value.headers or value.headers_base64 or value.headers_in_order):
        return None
    return [{"name": name, "value": data} for name, data in header_pairs_of(value)]


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
        return (lambda values: (each(value) for value in values)) if leaf.is_list else each
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
        one = _moment
    if leaf.is_list and one is not None:
        single = one
        return lambda values: [single(value) for value in values]
    return one


def _seconds(milliseconds: int) -> Plain:
    seconds, rest = divmod(milliseconds, 1_000)
    return {"seconds": seconds, "nanos": rest * _NANOS_PER_MS}


def _moment(moment: datetime | int) -> Plain:
    if isinstance(moment, int):
        return _seconds(moment)
    since = moment - _EPOCH
    return {"seconds": since.days * _DAY_SECONDS + since.seconds, "nanos": since.microseconds * 1_000}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
