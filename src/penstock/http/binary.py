"""Messages without JSON: record batches as they are made and stored, in MessagePack around them.

For clients that move many messages and encode on their own side. Forms: docs/reference/rest-binary.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import msgspec

from penstock.broker.batches import append_batches, append_staged
from penstock.broker.membership.member import Polled
from penstock.broker.queues.leases import Lease
from penstock.errors import PenstockError
from penstock.http.decoding import sentence_of
from penstock.http.door import Door
from penstock.http.exchange import MSGPACK, Call, Reply
from penstock.http.joint import ticket_of
from penstock.http.problems import InvalidBody, InvalidParameter, MalformedBody, UnsupportedMediaType

_BATCHES_MAX: Final = 10_000
_PARTITION_MAX: Final = (1 << 31) - 1

# Each batch is a copy of its own, because whoever appends it stamps it in place.
_batches: Final = msgspec.msgpack.Decoder(list[tuple[int, bytearray]])
_encoder: Final = msgspec.msgpack.Encoder()

# One batch for one of the first partitions, as clients send it most of the time: where it lies is seen at a glance.
_SINGLE: Final = Struct(">5sBBBI")
_SINGLE_FORM: Final = (b"\xdd\0\0\0\1", 0x92, 0xC6)
_FIXINTS: Final = 128

# Several, as programs send them that publish in bulk: an array of two each, of a 32-bit number and so many bytes.
_PAIR: Final = Struct(">BBIBI")
_PAIR_FORM: Final = (0x92, 0xCE, 0xC6)
_ARRAY_FORM: Final = 0xDD

_LEASE: Final = b"\x96"  # an array of six
_BYTES: Final = Struct(">BI")
_BYTES_FORM: Final = 0xC6


class ProducerView(msgspec.Struct, frozen=True, kw_only=True):
    """An identity for idempotent batches."""

    producer_id: int
    producer_epoch: int


async def publish_batches(door: Door, call: Call[bytearray, None]) -> Reply:
    """Publish record batches, each into its partition: MessagePack `[[partition, batch], ...]`."""
    if not call.header(b"content-type").startswith(MSGPACK):
        raise UnsupportedMediaType(f"Batches come as {MSGPACK}; publish JSON at `batch`.")
    broker, batches, timeout_ms = door.broker, _decode(call.body), door.config.publish_timeout_ms
    ticket = ticket_of(call)
    if ticket is None:
        outcomes = await append_batches(broker, call.topic, batches, timeout_ms=timeout_ms)
    elif ticket.sequence is not None:
        raise InvalidParameter("Batches have sequence numbers of their own; leave out Penstock-Sequence.")
    else:
        await broker.joint.loaded()
        outcomes = await append_staged(
            broker, ticket.transaction, ticket.writer, call.topic, batches, timeout_ms=timeout_ms
        )
    results = [
        (-1, outcome.code, outcome.message)
        if isinstance(outcome, PenstockError)
        else (outcome.base_offset, outcome.append_time_ms)
        for outcome in outcomes
    ]
    return binary_reply(results)


def _decode(body: bytearray) -> Sequence[tuple[int, bytearray | memoryview]]:
    """What is to be published; the batches lie in the body or are copies, and can be stamped either way."""
    if len(body) >= _SINGLE.size:
        array, pair, partition, kind, size = _SINGLE.unpack_from(body)
        if (array, pair, kind) == _SINGLE_FORM and partition < _FIXINTS and size == len(body) - _SINGLE.size:
            return [(partition, memoryview(body)[_SINGLE.size :])]
    batches: Sequence[tuple[int, bytearray | memoryview]] | None = _in_place(body)
    if batches is not None:
        return batches
    try:
        batches = _batches.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidBody(f"The body is not [[partition, batch], ...]: {sentence_of(error)}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedBody(f"The body is not valid MessagePack: {sentence_of(error)}") from None
    if len(batches) > _BATCHES_MAX:
        raise InvalidBody(f"A call takes up to {_BATCHES_MAX} batches, not {len(batches)}.")
    for index, _ in batches:
        if not 0 <= index <= _PARTITION_MAX:
            raise InvalidBody(f"Partitions are numbered from 0; {index} is none.")
    return batches


def _in_place(body: bytearray) -> list[tuple[int, memoryview]] | None:
    """Batches where they lie in the body, if all are told in the form of `_PAIR`; None if any of it is another one."""
    view, end, at = memoryview(body), len(body), _BYTES.size
    if end < at:
        return None
    form, count = _BYTES.unpack_from(body)
    if form != _ARRAY_FORM or count > _BATCHES_MAX:
        return None
    batches: list[tuple[int, memoryview]] = []
    for _ in range(count):
        if end - at < _PAIR.size:
            return None
        pair, number, partition, kind, size = _PAIR.unpack_from(body, at)
        at += _PAIR.size
        if (pair, number, kind) != _PAIR_FORM or partition > _PARTITION_MAX or size > end - at:
            return None
        batches.append((partition, view[at : at + size]))
        at += size
    return batches if at == end else None


async def create_producer(door: Door, _call: Call[None, None]) -> ProducerView:
    """Get an identity for idempotent batches: a producer id that nobody else has."""
    return ProducerView(producer_id=await door.broker.allocate_producer_id(), producer_epoch=0)


def leases_reply(leases: Sequence[Lease]) -> Reply:
    """Leases as they are: batches in bulk, and which of their messages are leased."""
    pieces: list[bytes] = []
    for lease in leases:
        *told, batches = lease
        head = _LEASE + b"".join(map(_encoder.encode, told)) + _BYTES.pack(_BYTES_FORM, len(batches))
        pieces += (head, batches)
    if not pieces:
        return binary_reply(())
    pieces[0] = _array_head(len(leases)) + pieces[0]
    return Reply(200, pieces[0], MSGPACK, [], tuple(pieces[1:]))


def _array_head(count: int) -> bytes:
    return _BYTES.pack(_ARRAY_FORM, count)


def polled_reply(standing: dict[str, Any], polled: Polled) -> Reply:
    """What a member polled, as whole batches."""
    answer = {
        **standing,
        "partitions": polled.standing.places,
        "poll": polled.number,
        "rebalanced": polled.is_rebalanced,
        "batches": [(topic, index, run.first, run.end, run.data) for (topic, index), run in polled.runs],
    }
    return binary_reply(answer)


def binary_reply(answer: object) -> Reply:
    return Reply(200, _encoder.encode(answer), MSGPACK, [])
