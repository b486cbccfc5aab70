"""Frames between nodes: bytes in, frames out, and back. Knows no socket and no clock.

A frame is a head, which is checked by a checksum, and the raw bytes behind it, which carry checksums of their own where
it matters (they are record batches as stored). The format is told in docs/formats/peers.md.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import crc32c
import msgspec

from penstock import errors
from penstock.errors import CorruptRecords, MessageTooLarge, PenstockError
from penstock.network.port import Pieces

FRAME_BYTES_MAX: Final = 128 * 1024 * 1024

_LENGTH: Final = struct.Struct(">I")
_CHECKED: Final = struct.Struct(">II")  # the length of what follows it, and the checksum of the head behind both
_SIZES: Final = struct.Struct(">HII")  # of the envelope, of the structure, of the body
_HEAD_AT: Final = _CHECKED.size
_ENVELOPE_AT: Final = _HEAD_AT + _SIZES.size

_BUFFER_BYTES: Final = 64 * 1024
_WHOLE_BYTES: Final = 16 * 1024  # a frame larger than this that has not come whole gets memory of its own

NO_BYTES: Final = memoryview(b"")

_FIELDS: Final = {kind: vars(kind()).keys() for kind in errors.ALL}


class FrameKind(enum.IntEnum):
    """What a frame is."""

    CALL = 0
    TELL = 1
    REPLY = 2
    ERROR = 3
    PING = 4
    PONG = 5
    GREETING = 6  # of the handshake; its step is told by the method's name


class CorruptFrame(CorruptRecords):
    """What came in cannot be a frame; the connection is closed."""


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """What is written on the outside of a frame."""

    kind: int
    number: int = 0  # of the call that this is, or that this answers
    method: str = ""


class Frame(NamedTuple):
    """A frame as received. Both views stay good for as long as they are held."""

    kind: int
    number: int
    method: str
    structure: memoryview
    body: memoryview


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an error travels: the name of its class in `penstock.errors`, its message and its fields.

    One that is defined elsewhere travels as its nearest ancestor there.
    """

    error: str
    message: str
    fields: dict[str, Any] = {}

    @classmethod
    def of(cls, error: PenstockError) -> Failure:
        kind = next(each for each in type(error).__mro__ if each in _FIELDS)
        return cls(kind.__name__, error.message, {name: getattr(error, name) for name in _FIELDS[kind]})

    def revived(self) -> PenstockError:
        """The error as the other node raised it; the root of the tree if this node does not know the class."""
        kind = getattr(errors, self.error, None)
        if kind not in _FIELDS:
            return PenstockError(self.message)
        error: PenstockError = kind(self.message, **{name: self.fields[name] for name in _FIELDS[kind] & self.fields})
        return error


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_envelope: Final = msgspec.msgpack.Decoder(Envelope).decode
_decoders: Final[dict[type[msgspec.Struct], msgspec.msgpack.Decoder[Any]]] = {}


def decode_structure(kind: type[msgspec.Struct], data: memoryview) -> Any:
    """Read a structure; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(data)


def pieces_bytes(pieces: Pieces) -> int:
    size = 0
    for piece in pieces:
        size += len(piece)
    return size


def encode_head(
    kind: FrameKind,
    number: int,
    method: str,
    structure: msgspec.Struct | None,
    body_bytes: int,
    *,
    limit: int = FRAME_BYTES_MAX,
) -> bytes:
    """The bytes in front of a frame's body."""
    envelope = _encode(Envelope(kind, number, method))
    content = b"" if structure is None else _encode(structure)
    head = b"".join((_SIZES.pack(len(envelope), len(content), body_bytes), envelope, content))
    length = _LENGTH.size + len(head) + body_bytes
    if length > limit:
        raise MessageTooLarge(f"{method} would be a frame of {length} bytes; {limit} go between nodes at once.")
    return _CHECKED.pack(length, crc32c.crc32c(head)) + head


def joined(pieces: Pieces) -> memoryview:
    """The body as the other side would receive it, for calls that pass no socket."""
    if not pieces:
        return NO_BYTES
    plain = [piece if isinstance(piece, bytes | memoryview) else piece.read() for piece in pieces]
    return memoryview(plain[0] if len(plain) == 1 else b"".join(plain))


def parse_frame(data: memoryview) -> Frame:
    """Take one whole frame apart, its length included."""
    if len(data) < _ENVELOPE_AT:
        raise CorruptFrame(f"A frame of {len(data)} bytes is shorter than its own head.")
    _, checksum = _CHECKED.unpack_from(data, 0)
    envelope_bytes, structure_bytes, body_bytes = _SIZES.unpack_from(data, _HEAD_AT)
    structure_at = _ENVELOPE_AT + envelope_bytes
    body_at = structure_at + structure_bytes
    if body_at + body_bytes != len(data):
        raise CorruptFrame("The sizes in a frame's head do not add up to its length.")
    if crc32c.crc32c(data[_HEAD_AT:body_at]) != checksum:
        raise CorruptFrame("The checksum of a frame's head does not match.")
    try:
        envelope = _decode_envelope(data[_ENVELOPE_AT:structure_at])
    except msgspec.DecodeError as error:  # includes ValidationError
        raise CorruptFrame(f"A frame's envelope cannot be read: {error}.") from error
    body = data[body_at:] if body_bytes else NO_BYTES
    return Frame(envelope.kind, envelope.number, envelope.method, data[structure_at:body_at], body)


class FrameBuffer:
    """Cuts what a socket receives into frames.

    Small frames are received together into one reused buffer and copied out of it; a large one is received into memory
    of its own, which its body then is a view of.
    """

    def __init__(self, *, limit: int = FRAME_BYTES_MAX) -> None:
        self.limit = limit
        self._shared = memoryview(bytearray(_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._own: memoryview | None = None
        self._filled = 0  # of the own memory

    def space(self) -> memoryview:
        """Where the next bytes are to be received."""
        return self._shared[self._end :] if self._own is None else self._own[self._filled :]

    def take(self, received: int) -> Iterator[Frame]:
        """The frames that are whole with the ``received`` bytes now in the space. To be exhausted before the next."""
        if self._own is not None:
            self._filled += received
            if self._filled < len(self._own):
                return
            whole, self._own = self._own, None
            yield parse_frame(whole)
            return
        self._end += received
        while (available := self._end - self._start) >= _LENGTH.size:
            length = _LENGTH.size + self._claimed()
            if length > available:
                break
            whole = memoryview(bytes(self._shared[self._start : self._start + length]))
            self._start += length
            yield parse_frame(whole)
        self._make_room()

    def _claimed(self) -> int:
        (length,) = _LENGTH.unpack_from(self._shared, self._start)
        if not _ENVELOPE_AT - _LENGTH.size <= length <= self.limit:
            raise CorruptFrame(f"A frame claims {length} bytes; at most {self.limit} go between nodes at once.")
        return int(length)

    def _make_room(self) -> None:
        unread = self._end - self._start
        if unread >= _LENGTH.size and (length := _LENGTH.size + self._claimed()) > _WHOLE_BYTES:
            self._own = memoryview(bytearray(length))
            self._own[:unread] = self._shared[self._start : self._end]
            self._filled = unread
            unread = 0
        elif unread and self._start:
            self._shared[:unread] = bytes(self._shared[self._start : self._end])
        self._start, self._end = 0, unread
