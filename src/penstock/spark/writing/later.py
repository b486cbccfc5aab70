"""Rows with ``deliver_at``: messages for later, which the broker's schedules keep until they are due.

A schedule is no part of a transaction, so these rows are not staged: they travel to the driver with the message of
their task, and are scheduled when the batch is committed, right before that. Each gets an id made of the batch and of
what is in the row, so that scheduling the same rows again, in any order and by whomever, schedules nothing anew while
they are pending. That is all that is promised of them; see docs/explanation/delivery-guarantees.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock.api.messages import NewMessage, PublishBatch
from penstock.client.messages import outcomes_in
from penstock.client.transport import Transport
from penstock.client.values import Outgoing
from penstock.errors import InvalidRecord, PenstockError
from penstock.records import decode_records
from penstock.records.batch import Headers
from penstock.spark.writing.columns import Rows
from penstock.spark.writing.encoding import Columns, Numbering, encode

LATER_BYTES_MAX: Final = 16 * 1024 * 1024  # for one task: they go through the driver
_CALL_MESSAGES: Final = 1_000
_CALL_BYTES: Final = 4 * 1024 * 1024
_OVERHEAD_BYTES: Final = 64
_BATCH_BYTES: Final = 1_000_000


class LaterRows(NamedTuple):
    """A message for later."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    due_ms: int

    @property
    def size(self) -> int:
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return _OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + headers


def parted(rows: Rows) -> tuple[Rows, list[LaterRows]]:
    """The rows that are for now, and those that are for later one by one."""
    if rows.due_ms is None:
        return rows, []
    is_later = rows.due_ms >= 0
    if not is_later.any():
        return rows, []
    return rows.only(~is_later), list(_messages(rows.only(is_later)))


def check_size(messages: Iterable[LaterRows]) -> None:
    """Refuse more than can go through the driver."""
    if sum(message.size for message in messages) > LATER_BYTES_MAX:
        raise InvalidRecord(
            f"Rows with deliver_at go through the driver, up to {LATER_BYTES_MAX >> 20} MiB of them for each task and "
            "batch. Read fewer rows at a time (maxRecordsPerTrigger), or use more partitions."
        )


def _messages(rows: Rows) -> Iterator[LaterRows]:
    assert rows.due_ms is not None, "these are for later"
    columns = Columns(
        np.zeros(rows.count, np.int64), rows.timestamps_ms, rows.key, rows.value, rows.header_counts, rows.headers
    )
    plain = Numbering(-1, -1, is_transactional=False)
    batches = encode(rows.topic, columns, plain, batch_bytes=_BATCH_BYTES)
    records = (record for batch in batches for record in decode_records(batch.data))
    for at, record in enumerate(records):
        partition = -1 if rows.partitions is None else int(rows.partitions[at])
        yield LaterRows(
            rows.topic,
            record.key,
            record.value,
            record.headers,
            None if partition < 0 else partition,
            int(rows.due_ms[at]),
        )


async def schedule(transport: Transport, scope: str, messages: Sequence[LaterRows]) -> None:
    """Schedule all of these; those that are pending already under the same scope stay as they are."""
    by_topic: dict[str, list[NewMessage]] = {}
    seen: Counter[LaterRows] = Counter()
    for message in messages:
        given = Outgoing(message.key, message.value, message.headers).request(
            message.partition, deliver_at=message.due_ms, schedule_id=_id(scope, message, seen[message])
        )
        by_topic.setdefault(message.topic, []).append(given)
        seen[message] += 1
    for topic, given_to in by_topic.items():
        for some in _pieces(given_to):
            answer = await transport.call(PublishBatch(topic=topic, messages=some), can_repeat=True)  # they have ids
            for outcome in outcomes_in(answer, len(some)):
                if isinstance(outcome, PenstockError):
                    raise outcome


def _id(scope: str, message: LaterRows, number: int) -> str:
    """The same for the same row of the same batch, whatever order rows come in; equal rows are counted."""
    return "spark:" + blake2b(msgspec.msgpack.encode((scope, message, number)), digest_size=20).hexdigest()


def _pieces(messages: Sequence[NewMessage]) -> Iterator[list[NewMessage]]:
    some: list[NewMessage] = []
    size = 0
    for message in messages:
        message_bytes = len(message.value_base64 or b"") + _OVERHEAD_BYTES
        if some and (size + message_bytes > _CALL_BYTES or len(some) == _CALL_MESSAGES):
            yield some
            some, size = [], 0
        some.append(message)
        size += message_bytes
    yield some
