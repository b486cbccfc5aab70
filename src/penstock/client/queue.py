"""A queue as a consumer sees it: receive messages under leases, settle them, and administer the queue group."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.api import limits
from penstock.api.dead_letters import (
    DeadLetterFilter,
    DeadLetterView,
    ListDeadLetters,
    RedrivePlan,
    RedriveReport,
    RedriveView,
)
from penstock.api.dead_letters import Redrive as RedriveDeadLetters
from penstock.api.limits import StartPoint
from penstock.api.messages import bytes_of
from penstock.api.operation import Request
from penstock.api.queues import (
    Ack,
    DeclareQueueGroup,
    DescribeQueueGroup,
    Extend,
    ForgetQueueGroup,
    Nack,
    PauseQueueGroup,
    PurgeQueue,
    QueueGroupView,
    ReceiptResult,
    ReceiptResults,
    Receive,
    Received,
    Reject,
    Release,
    ResumeQueueGroup,
    SeekQueueGroup,
)
from penstock.client.admin import setting_texts
from penstock.client.calls import decoded, error_in
from penstock.client.leases import (
    AsyncQueueMessage,
    LeasedMessage,
    MessageFactory,
    ReceivedMessages,
    Refused,
    leased_messages,
    raise_refused,
    receipts_of,
)
from penstock.client.transport import Transport
from penstock.client.values import Duration, milliseconds_of, optional_ms
from penstock.errors import PenstockError, UnexpectedAnswer
from penstock.model import check_topic_name

log = logging.getLogger(__name__)

QueueStats = QueueGroupView
Redrive = RedriveView

_MULTI_STATUS: Final = 207
_DONE: Final = frozenset({"done", "repeated"})
_CHANCE: Final = random.Random()  # for the ids of attempts, which need not be hard to guess

Leased = TypeVar("Leased", bound=LeasedMessage)
Other = TypeVar("Other", bound=LeasedMessage)


class DeadLetter(DeadLetterView, frozen=True, kw_only=True):
    """A message that could not be processed, at its place in the dead-letter topic. Key and value are bytes."""

    key: bytes | None  # type: ignore[assignment]
    value: bytes | None  # type: ignore[assignment]


def _dead_letter(view: DeadLetterView) -> DeadLetter:
    content = {name: bytes_of(view, name) for name in ("key", "value")}
    return DeadLetter(**(msgspec.structs.asdict(view) | content))


class QueueCalls(Generic[Leased]):
    """The calls of a queue group. ``make`` is the class of its messages, and ``front`` the object that settles them."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        group: str,
        make: MessageFactory[Leased],
        *,
        consumer: str = "",
        front: object = None,
    ) -> None:
        self._transport = transport
        self._make = make
        self._front = self if front is None else front
        self.topic = check_topic_name(topic)
        self.group = group
        self.consumer = consumer

    def _with_messages(self, make: MessageFactory[Other], front: object) -> QueueCalls[Other]:
        """The same queue with messages of another class, settled by another object."""
        return QueueCalls(self._transport, self.topic, self.group, make, consumer=self.consumer, front=front)

    async def receive(
        self,
        max_messages: int = limits.RECEIVE_DEFAULT,
        *,
        wait: Duration = 0.0,
        visibility_timeout: Duration | None = None,
        ack: Iterable[LeasedMessage] = (),
    ) -> list[Leased]:
        """Receive up to ``max_messages`` messages, leased for ``visibility_timeout`` seconds (default: the group's
        setting). If there is none, wait up to ``wait`` seconds for the first.

        ``ack`` acks earlier messages in the same round trip. If it is too late for one of them, this raises `LeaseLost`
        and receives nothing.
        """
        request = Receive(
            topic=self.topic,
            group=self.group,
            max=max_messages,
            wait_ms=milliseconds_of(wait, "wait"),
            visibility_timeout_ms=optional_ms(visibility_timeout, "visibility_timeout"),
            consumer=self.consumer,
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_ms / 1000
        while True:
            messages, unreadable = await self._receive(request, ack)
            for problem, damaged in unreadable.items():
                log.warning("%r rejects %d messages that cannot be unpacked: %s", self, len(damaged), problem)
                await self.reject(damaged, reason=f"It cannot be unpacked: {problem}")
            if messages or not unreadable:
                return messages
            wait_ms = max(round(1000 * (deadline - loop.time())), 0)
            ack, request = (), msgspec.structs.replace(request, wait_ms=wait_ms)

    async def _receive(self, request: Receive, ack: Iterable[LeasedMessage]) -> ReceivedMessages[Leased]:
        receipts = receipts_of(ack)
        if len(receipts) > limits.RECEIPTS_MAX:
            raise_refused(await self.ack(message for _, members in receipts for message in members))
            receipts = []
        request = msgspec.structs.replace(
            request, attempt=f"{_CHANCE.getrandbits(96):x}", ack=[receipt for receipt, _ in receipts]
        )
        # If the answer is lost, the next try makes the node take back what the first one leased.
        again = msgspec.structs.replace(request, is_repeat=True)
        answer = await self._transport.call_packed(request, again=again)
        if answer.status == _MULTI_STATUS:
            raise_refused(_refused(receipts, decoded(answer.body, Received).acked or [], {"already_acked"}))
            # All were acked before, by a call whose answer was lost.
            answer = await self._transport.call_packed(msgspec.structs.replace(again, ack=[]))
        return leased_messages(answer.body, self._make, self._front)

    async def ack(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        """Ack messages: they are done and are never delivered again. Returns those for which it was too late."""
        return [each for each in await self._settle(Ack, messages) if each.fate != "already_acked"]

    async def nack(
        self, messages: Iterable[LeasedMessage], *, delay: Duration | None = None, reason: str = ""
    ) -> list[Refused]:
        """Have failed messages delivered again after ``delay`` seconds, or after the group's backoff.

        Returns those for which it was too late.
        """
        delay_ms = optional_ms(delay, "delay")
        return await self._settle(Nack, messages, delay_ms=delay_ms, reason=reason[: limits.REASON_CHARS_MAX])

    async def reject(self, messages: Iterable[LeasedMessage], *, reason: str = "") -> list[Refused]:
        """Send messages to the dead letters at once. Returns those for which it was too late."""
        return await self._settle(Reject, messages, reason=reason[: limits.REASON_CHARS_MAX])

    async def extend(
        self, messages: Iterable[LeasedMessage], visibility_timeout: Duration | None = None
    ) -> list[Refused]:
        """Extend leases to this many seconds from now. Returns the messages for which it was too late."""
        timeout_ms = optional_ms(visibility_timeout, "visibility_timeout")
        return await self._settle(Extend, messages, visibility_timeout_ms=timeout_ms)

    async def release(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        """Give messages back unprocessed: they are delivered again at once, and this delivery is not counted."""
        return await self._settle(Release, messages)

    # -- the queue group ----------------------------------------------------------------------------------------------

    async def stats(self) -> QueueStats:
        """How many messages are ready, in flight and waiting for another try."""
        return await self._transport.call(DescribeQueueGroup(topic=self.topic, group=self.group))

    async def configure(self, **settings: Any) -> QueueStats:
        """Set this group's settings, such as ``tries=5``, and create the group if it does not exist.

        Settings that are not named go back to those of the topic. See docs/reference/topics.md.
        """
        request = DeclareQueueGroup(topic=self.topic, group=self.group, settings=setting_texts(settings))
        return await self._transport.call(request)

    async def pause(self, reason: str = "") -> QueueStats:
        """Deliver no messages until `resume`; leased ones can still be settled."""
        return await self._transport.call(PauseQueueGroup(topic=self.topic, group=self.group, reason=reason))

    async def resume(self) -> QueueStats:
        """Deliver messages again."""
        return await self._transport.call(ResumeQueueGroup(topic=self.topic, group=self.group))

    async def seek(self, to: StartPoint = None, *, since: datetime | None = None) -> QueueStats:
        """Continue from an offset, ``earliest``, ``latest`` or an instant. This ends all leases."""
        return await self._transport.call(SeekQueueGroup(topic=self.topic, group=self.group, to=to, since=since))

    async def purge(self) -> QueueStats:
        """Ack everything that is in the topic now, for this group; other readers keep it."""
        return await self._transport.call(PurgeQueue(topic=self.topic, group=self.group))

    async def delete(self) -> None:
        """Delete this group and its progress."""
        await self._transport.call(ForgetQueueGroup(topic=self.topic, group=self.group))

    async def dead_letters(self, max_letters: int = 100, *, reason: str | None = None) -> Sequence[DeadLetter]:
        """The first dead letters of this group, all of them or those with one reason."""
        found: list[DeadLetter] = []
        cursor: str | None = None
        while len(found) < max_letters:
            limit = min(max_letters - len(found), limits.PAGE_MAX)
            page = await self._transport.call(
                ListDeadLetters(topic=self.topic, group=self.group, reason=reason, limit=limit, cursor=cursor)
            )
            found += map(_dead_letter, page.dead_letters)
            cursor = page.cursor
            if cursor is None:
                break
        return found

    async def redrive(
        self,
        *,
        reason: str | None = None,
        target: str | None = None,
        rate: float | None = None,
        limit: int | None = None,
        wait: Duration = 10.0,
    ) -> Redrive:
        """Send dead letters of this group back to where they came from, or to ``target``, ``rate`` a second.

        The cluster does this in the background; the call waits up to ``wait`` seconds for the end. If its answer is
        lost and the redrive still runs, the repeated call raises `RedriveRunning`; no message is sent back twice.
        """
        wait_ms = min(milliseconds_of(wait, "wait"), limits.WAIT_MS_MAX)
        answer = await self._redrive(reason, target=target, limit=limit, rate=rate, wait_ms=wait_ms)
        assert answer.redrive, "what was asked for"
        return answer.redrive

    async def plan_redrive(
        self, *, reason: str | None = None, target: str | None = None, limit: int | None = None
    ) -> RedrivePlan:
        """What `redrive` would do; nothing is sent."""
        answer = await self._redrive(reason, target=target, limit=limit, dry_run=True)
        assert answer.dry_run, "what was asked for"
        return answer.dry_run

    async def _redrive(self, reason: str | None, **more: Any) -> RedriveReport:
        which = DeadLetterFilter(group=self.group, reason=reason)
        return await self._transport.call(RedriveDeadLetters(topic=self.topic, filter=which, **more), can_repeat=True)

    async def _settle(
        self, verb: Callable[..., Request[ReceiptResults]], messages: Iterable[LeasedMessage], **more: Any
    ) -> list[Refused]:
        receipts = receipts_of(messages)
        refused: list[Refused] = []
        for begin in range(0, len(receipts), limits.RECEIPTS_MAX):
            some = receipts[begin : begin + limits.RECEIPTS_MAX]
            request = verb(topic=self.topic, group=self.group, receipts=[receipt for receipt, _ in some], **more)
            refused += _refused(some, (await self._transport.call(request)).results)
        return refused

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic} of group {self.group}>"


class AsyncQueue(QueueCalls[AsyncQueueMessage]):
    """A topic read as a queue by one group; made by `AsyncClient.queue`."""

    def __init__(self, transport: Transport, topic: str, group: str, consumer: str = "") -> None:
        super().__init__(transport, topic, group, AsyncQueueMessage, consumer=consumer)


def _refused(
    receipts: Sequence[tuple[str, Sequence[LeasedMessage]]],
    results: Sequence[ReceiptResult],
    accepted: Collection[str] = (),
) -> list[Refused]:
    """The messages that were not settled as asked; raises if the fate of some is unknown."""
    if len(results) != len(receipts):
        raise UnexpectedAnswer(f"{len(receipts)} receipts were sent, but the answer has {len(results)} results.")
    refused: list[Refused] = []
    failures: list[PenstockError] = []
    for (_, members), result in zip(receipts, results, strict=True):
        if result.error:
            failures.append(error_in(result.error))
        elif result.status not in _DONE:
            refused += _refused_of(members, result)
    if failures:
        raise failures[0]
    return [each for each in refused if each.fate not in accepted]


def _refused_of(messages: Sequence[LeasedMessage], result: ReceiptResult) -> list[Refused]:
    """The messages of a receipt that were not settled; a result without parts applies to all of them."""
    if not result.parts:
        return [Refused(message, result.status) for message in messages]
    return [
        Refused(message, part.status)
        for part in result.parts
        if part.status not in _DONE
        for message in messages
        if part.first <= message.offset <= part.last
    ]
