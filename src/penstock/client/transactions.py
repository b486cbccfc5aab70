"""Transactions: messages that readers see together or never, and acks that count only if they do.

A transaction is kept open while its block runs, and ended with it: committed at the end of the block, aborted if an
exception leaves it. Calls are numbered and the commit has a key, so a call whose answer was lost can be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

from penstock.api.messages import PublishBatch
from penstock.api.transactions import (
    AbortTransaction,
    AckInTransaction,
    CommitTransaction,
    ExtendTransaction,
    OpenTransaction,
)
from penstock.client.leases import LeasedMessage, Refused, raise_refused, receipts_of
from penstock.client.messages import Published, outcomes_in
from penstock.client.transport import Transport
from penstock.client.values import Draft, GivenHeaders, Key, Moment, Outgoing, Value, outgoing, outgoing_of
from penstock.errors import InvalidTxnState, PenstockError
from penstock.model import check_topic_name

log = logging.getLogger(__name__)

_CALL_BYTES_MAX: Final = 1024 * 1024
_CALL_MESSAGES_MAX: Final = 5_000
_FAILED: Final = (
    "A call of this transaction failed, so it was not committed and its messages stay invisible. Begin a new one."
)
_RENEWALS: Final = 3  # per transaction timeout


class AsyncTransaction:
    """A transaction under way; made by `AsyncClient.transaction` and used with ``async with``.

    After a failed call it can only be aborted, even if the block catches the error.
    """

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._id = ""
        self._key = uuid4().hex
        self._sequence = 0
        self._one_call = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._is_over = False
        self._has_failed = False

    @property
    def id(self) -> str:
        """The transaction's id; other writers can publish into it with this."""
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
        """Publish a message that readers see after the commit."""
        message = outgoing(value, key, headers, timestamp, priority)
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
        """Publish many messages, values or `Draft`s, that readers see after the commit."""
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

        Raises `LeaseLost` if one of the leases is over: let it leave the block.
        """
        given = [messages] if isinstance(messages, LeasedMessage) else list(messages)
        groups: dict[str, list[LeasedMessage]] = {}
        for message in given:
            groups.setdefault(message._lease.queue.group, []).append(message)
        for group, members in groups.items():
            await self._ack(group, members)

    async def _ack(self, group: str, members: Sequence[LeasedMessage]) -> None:
        self._check(may_have_failed=False)
        receipts = receipts_of(members)
        request = AckInTransaction(transaction=self._id, group=group, receipts=[receipt for receipt, _ in receipts])
        async with self._one_call, self._failing():
            answer = await self._transport.call(request)
            for (_, some), result in zip(receipts, answer.results, strict=True):
                if result.status not in {"done", "repeated"}:
                    raise_refused([Refused(some[0], result.status)])

    async def _publish(self, topic: str, messages: list[Outgoing], partition: int | None) -> list[Published]:
        self._check(may_have_failed=False)
        given = [message.request(partition) for message in messages]
        async with self._one_call, self._failing():
            request = PublishBatch(
                topic=check_topic_name(topic), messages=given, transaction=self._id, sequence=self._sequence
            )
            answer = await self._transport.call(request, can_repeat=True)  # the sequence makes that safe
            self._sequence += len(messages)
            published: list[Published] = []
            for outcome in outcomes_in(answer, len(messages)):
                if isinstance(outcome, PenstockError):
                    raise outcome
                published.append(outcome)
            return published

    @asynccontextmanager
    async def _failing(self) -> AsyncIterator[None]:
        """After an error it is unknown what was written, so the transaction must not be committed by accident."""
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise

    # -- beginning and end --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncTransaction:
        request = OpenTransaction(timeout_ms=round(self._timeout_s * 1000))
        # One that was opened by a call whose answer was lost ends by its timeout.
        self._id = (await self._transport.call(request, can_repeat=True)).transaction
        self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._is_over:
            return
        if kind is None and not self._has_failed:
            await self.commit()
            return
        try:
            await self.abort()
        except PenstockError as failure:
            # Its timeout ends it. The error that left the block says more than this one.
            log.warning("Transaction %s could not be aborted: %s", self._id, failure.message)
        if kind is None:
            raise InvalidTxnState(_FAILED)

    async def commit(self) -> None:
        """Commit: readers see the messages, and acks count. The end of the block does this by itself."""
        if self._has_failed:
            raise InvalidTxnState(_FAILED)
        await self._end()
        await self._transport.call(CommitTransaction(transaction=self._id, key=self._key))

    async def abort(self) -> None:
        """Abort: readers never see the messages, and acks are void."""
        await self._end()
        await self._transport.call(AbortTransaction(transaction=self._id))

    async def _end(self) -> None:
        self._check()
        self._is_over = True
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    def _check(self, *, may_have_failed: bool = True) -> None:
        if self._has_failed and not may_have_failed:
            raise InvalidTxnState(_FAILED)
        if self._is_over or not self._id:
            raise InvalidTxnState("The transaction is not open; use it inside its `async with` block.")

    async def _renew(self) -> None:
        """Keep it open while the block runs."""
        while True:
            await asyncio.sleep(self._timeout_s / _RENEWALS)
            try:
                await self._transport.call(ExtendTransaction(transaction=self._id))
            except PenstockError as error:
                log.warning("Transaction %s could not be kept open: %s", self._id, error.message)
