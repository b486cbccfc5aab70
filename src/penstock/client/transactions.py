"""Transactions: messages that are seen together or never, and acks that count only if they are.

A transaction is kept open while its block runs, however long that takes, and ended with it: committed if the block
comes to its end, aborted if it is left by an exception. Calls are numbered and the commit is named, so that repeating
one whose answer was lost changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

import msgspec

from penstock.client.connections import HeaderList
from penstock.client.drafts import Draft, outgoing_of
from penstock.client.leases import LeasedMessage, Refused, raise_refused, receipts_of
from penstock.client.messages import Published, instant
from penstock.client.parcels import Outgoing
from penstock.client.problems import error_named
from penstock.client.transport import Transport
from penstock.client.values import GivenHeaders, Key, Moment, Value, header_pairs, key_bytes, moment_ms, value_bytes
from penstock.errors import InvalidTxnState, PenstockError, UnexpectedAnswer
from penstock.model import check_topic_name

log = logging.getLogger(__name__)

_CALL_BYTES_MAX: Final = 1024 * 1024
_CALL_MESSAGES_MAX: Final = 5_000
_SPOILT: Final = "A call of this transaction failed, so it was not committed: nobody will see it. Begin a new one."
_RENEWALS: Final = 3  # in the time of a transaction


class _Opened(msgspec.Struct, frozen=True):
    transaction: str


class _Place(msgspec.Struct, frozen=True):
    topic: str = ""
    partition: int = -1
    offset: int = -1
    timestamp: datetime | None = None
    error: dict[str, Any] | None = None


class _Places(msgspec.Struct, frozen=True):
    results: list[_Place]


class AsyncTransaction:
    """A transaction under way; made by `AsyncClient.transaction` and used with ``async with``.

    A call that fails spoils it: then it can only be aborted, also if the block catches the error.
    """

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._id = ""
        self._key = uuid4().hex
        self._sequence = 0
        self._turn = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._is_over = False
        self._is_spoilt = False

    @property
    def id(self) -> str:
        """The transaction's name; other writers may publish into it by this."""
        return self._id

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: Moment = None,
        priority: str | None = None,
    ) -> Published:
        """Publish a message that nobody sees before the commit."""
        message = Outgoing(key_bytes(key), value_bytes(value), header_pairs(headers, priority), moment_ms(timestamp))
        (published,) = await self._publish(topic, [message], partition)
        return published

    async def publish_many(
        self,
        topic: str,
        values: Iterable[Value | Draft],
        *,
        partition: int | None = None,
        priority: str | None = None,
    ) -> list[Published]:
        """Publish many messages, values or `Draft`s, that nobody sees before the commit."""
        published: list[Published] = []
        some: list[Outgoing] = []
        size = 0
        for message in outgoing_of(values, priority):
            if some and (size + message.size > _CALL_BYTES_MAX or len(some) == _CALL_MESSAGES_MAX):
                published += await self._publish(topic, some, partition)
                some, size = [], 0
            some.append(message)
            size += message.size
        return published + (await self._publish(topic, some, partition) if some else [])

    async def ack(self, messages: Iterable[LeasedMessage] | LeasedMessage) -> None:
        """Ack queue messages with the commit; if the transaction is aborted they are delivered again.

        Raises `LeaseLost` if one of them is no longer this consumer's: then leave the block by it.
        """
        given = [messages] if isinstance(messages, LeasedMessage) else list(messages)
        groups: dict[str, list[LeasedMessage]] = {}
        for message in given:
            groups.setdefault(message._lease.queue.group, []).append(message)
        for group, members in groups.items():
            await self._ack(group, members)

    async def _ack(self, group: str, members: Sequence[LeasedMessage]) -> None:
        self._check(is_spoilt_fine=False)
        receipts = receipts_of(members)
        body = {"group": group, "receipts": [receipt for receipt, _ in receipts]}
        async with self._turn, self._spoiling():
            answer = await self._transport.post(
                dict[str, list[dict[str, Any]]], "v1", "transactions", self._id, "ack", body=body
            )
            self._judge(receipts, answer["results"])

    def _judge(
        self, receipts: Sequence[tuple[str, Sequence[LeasedMessage]]], results: Sequence[dict[str, Any]]
    ) -> None:
        for (_, some), result in zip(receipts, results, strict=True):
            if result["status"] not in {"done", "repeated"}:
                raise_refused([Refused(some[0], str(result["status"]))])

    async def _publish(self, topic: str, messages: list[Outgoing], partition: int | None) -> list[Published]:
        self._check(is_spoilt_fine=False)
        body = msgspec.json.encode({"messages": [_form(message, partition) for message in messages]})
        async with self._turn, self._spoiling():
            headers: HeaderList = [
                (b"penstock-transaction", self._id.encode()),
                (b"penstock-sequence", str(self._sequence).encode()),
            ]
            path = ("v1", "topics", check_topic_name(topic), "batch")
            answer = await self._transport.call("POST", path, body=body, headers=headers)
            self._sequence += len(messages)
            try:
                places = msgspec.json.decode(answer.body, type=_Places).results
            except msgspec.DecodeError as error:
                raise UnexpectedAnswer(f"The answer is not what a Penstock node says: {error}") from None
            return [_published(place) for place in places]

    @asynccontextmanager
    async def _spoiling(self) -> AsyncIterator[None]:
        """What is left by an error may have been written or not, so it must not be committed by accident."""
        try:
            yield
        except BaseException:
            self._is_spoilt = True
            raise

    # -- beginning and end --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncTransaction:
        body = {"timeout_ms": round(self._timeout_s * 1000)}
        self._id = (await self._transport.post(_Opened, "v1", "transactions", body=body)).transaction
        self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._is_over:
            return
        if kind is None and not self._is_spoilt:
            await self.commit()
            return
        try:
            await self.abort()
        except PenstockError as failure:
            # Nobody will commit it, so its timeout ends it; what the block was left by says more.
            log.warning("Transaction %s could not be aborted: %s", self._id, failure.message)
        if kind is None:
            raise InvalidTxnState(_SPOILT)

    async def commit(self) -> None:
        """End it: everybody sees what was published, and acks count. At the end of the block this happens by itself."""
        if self._is_spoilt:
            raise InvalidTxnState(_SPOILT)
        await self._end()
        named: HeaderList = [(b"idempotency-key", self._key.encode())]
        await self._transport.post(Any, "v1", "transactions", self._id, "commit", body={}, headers=named)

    async def abort(self) -> None:
        """End it: nobody will see what was published, and acks are void."""
        await self._end()
        await self._transport.post(Any, "v1", "transactions", self._id, "abort", body=None)

    async def _end(self) -> None:
        self._check()
        self._is_over = True
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    def _check(self, *, is_spoilt_fine: bool = True) -> None:
        if self._is_spoilt and not is_spoilt_fine:
            raise InvalidTxnState(_SPOILT)
        if self._is_over or not self._id:
            raise InvalidTxnState("The transaction is not open; use it inside its `async with` block.")

    async def _renew(self) -> None:
        """Keep it open while the block runs."""
        while True:
            await asyncio.sleep(self._timeout_s / _RENEWALS)
            try:
                await self._transport.post(Any, "v1", "transactions", self._id, "extend", body={})
            except PenstockError as error:
                log.warning("Transaction %s could not be kept open: %s", self._id, error.message)


def _form(message: Outgoing, partition: int | None) -> dict[str, Any]:
    """A message as JSON takes it."""
    form: dict[str, Any] = {}
    if message.key is not None:
        form["key_base64"] = b64encode(message.key).decode()
    if message.value is None:
        form["value"] = None
    else:
        form["value_base64"] = b64encode(message.value).decode()
    if message.headers:
        named: dict[str, list[str | None]] = {}
        for name, value in message.headers:
            named.setdefault(name, []).append(None if value is None else b64encode(value).decode())
        form["headers_base64"] = named
    if partition is not None:
        form["partition"] = partition
    if message.timestamp_ms is not None:
        form["timestamp"] = instant(message.timestamp_ms)
    return form


def _published(place: _Place) -> Published:
    if place.error is not None:
        raise error_named(str(place.error.get("code", "")), str(place.error.get("detail", "")))
    timestamp_ms = moment_ms(place.timestamp)
    return Published(place.topic, place.partition, place.offset, -1 if timestamp_ms is None else timestamp_ms)
