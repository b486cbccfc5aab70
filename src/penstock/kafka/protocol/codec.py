"""Messages to bytes and back: the two functions that everything outside the hot path goes through.

The first use of a message at a version compiles its reader or writer; later ones run it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.kafka.protocol.errors import ProtocolError
from penstock.kafka.protocol.reader import compile_reader
from penstock.kafka.protocol.schema import Message
from penstock.kafka.protocol.varint import Buffer
from penstock.kafka.protocol.writer import compile_writer

M = TypeVar("M", bound=Message)


_UNLIMITED: Final = 1 << 62


def decode(
    cls: type[M], version: int, buffer: Buffer, position: int = 0, *, elements_max: int = _UNLIMITED
) -> tuple[M, int]:
    """Read one message; ``ProtocolError`` if the bytes are not one, or if its arrays have more elements together.

    The bytes after it are the caller's business.
    """
    if not cls.api.supports(version):
        raise ProtocolError(f"{cls.__name__} has no version {version} here.")
    read = _reader(cls, version)
    try:
        message, position = read(buffer, position, elements_max)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"{cls.__name__} v{version} is cut short.") from error
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{cls.__name__} v{version} has a string that is not UTF-8.") from error
    return message, position


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message, without header or frame."""
    out = bytearray()
    encode_into(out, message, version)
    return bytes(out)


def encode_into(out: bytearray, message: Message, version: int) -> None:
    """Append the bytes of a message, without header or frame."""
    assert message.api.supports(version), f"{type(message).__name__} has no version {version}"
    try:
        _writer(type(message), version)(out, message)
    except struct.error as error:
        raise AssertionError(f"{type(message).__name__} v{version}: {error}") from error


@functools.cache
def _reader(cls: type[Message], version: int) -> Callable[[Buffer, int, int], tuple[Any, int]]:
    return compile_reader(cls, version, flexible=cls.api.is_flexible(version))


@functools.cache
def _writer(cls: type[Message], version: int) -> Callable[[bytearray, Any], None]:
    return compile_writer(cls, version, flexible=cls.api.is_flexible(version))
