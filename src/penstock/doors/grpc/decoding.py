"""Requests from the wire, and what to say of those that cannot be read.

Requests are parsed here and not by the library, so that one that is broken is refused with the name of the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from penstock.grpc.converters import InvalidArgument

M = TypeVar("M", bound=Message)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS_MAX: Final = 70


def parse(kind: type[M], data: bytes) -> M:
    """The request; `InvalidArgument` if it is broken."""
    try:
        return kind.FromString(data)
    except DecodeError:
        field = _unreadable_text(kind.DESCRIPTOR, memoryview(data), "")
        if field is not None:
            raise InvalidArgument(f"{field} is text, and what it holds is not valid UTF-8.") from None
        raise InvalidArgument(f"The request is not a {kind.DESCRIPTOR.full_name}: its bytes cannot be read.") from None


def _unreadable_text(kind: Any, data: memoryview, path: str) -> str | None:
    """The first field of text that is not text, with the way to it."""
    seen: dict[int, int] = {}
    for number, content in _contents(data):
        field = kind.fields_by_number.get(number)
        if field is None:
            continue
        name = f"{path}{field.name}"
        if field.is_repeated:
            name = f"{name}[{seen.setdefault(number, 0)}]"
            seen[number] += 1
        if field.type == FieldDescriptor.TYPE_STRING and not _is_text(content):
            return name
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            found = _unreadable_text(field.message_type, content, f"{name}.")
            if found is not None:
                return found
    return None


def _is_text(content: memoryview) -> bool:
    try:
        str(content, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _contents(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of each field that has a length, up to where the bytes make no sense any more."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if size > len(data) - at:
                return
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            return


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends; one that is cut off ends behind the data."""
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    return 0, len(data)
