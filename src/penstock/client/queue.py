"""A queue as a consumer sees it: messages under leases, and what to do with each."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.client import operations
from penstock.client.connections import Answer
from penstock.client.dead_letters import (
    DeadLetter,
    QueueStats,
    Redrive,
    RedrivePlan,
    read_dead_letters,
    redrive,
)
from penstock.client.leases import (
    AsyncQueueMessage,
    LeasedMessage,
    MakesMessages,
    Received,
    Refused,
    leased_messages,
    raise_refused,
    receipts_of,
)
from penstock.client.operations import perform, settings_form, start_form
from penstock.client.problems import error_named
from penstock.client.transport import MSGPACK, Transport
from penstock.client.values import Duration, milliseconds_of
from penstock.errors import PenstockError, UnexpectedAnswer
from penstock.model import check_topic_name

log = logging.getLogger(__name__)

DEFAULT_GROUP: Final = "default"
_RECEIPTS_MAX: Final = 10_000
_REASON_CHARS_MAX: Final = 1_000
_PARTLY: Final = 207
_REDRIVE_WAIT_MS_MAX: Final = 60_000
_DONE: Final = frozenset({"done", "repeated"})
_CHANCE: Final = random.Random()  # names of attempts; nothing depends on nobody guessing them

Leased = TypeVar("Leased", bound=LeasedMessage)


class _Part(msgspec.Struct, frozen=True):
    first: int
    last: int
    status: str


class _Error(msgspec.Struct, frozen=True):
    code: str
    detail: str


class _Result(msgspec.Struct, frozen=True):
    status: str
    parts: list[_Part] = []
    error: _Error | None = None


class _Results(msgspec.Struct, frozen=True):
    results: list[_Result]


class _Acked(msgspec.Struct, frozen=True):
    acked: list[_Result]


class QueueCalls(Generic[Leased]):
    """The calls of a queue group, whatever kind of message they make. ``front`` is where a message's verbs go."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        group: str,
        make: MakesMessages[Leased],
        *,
        consumer: str = "",
        front: object = None,
    ) -> None:
        self._transport = transport
        self._path = ("v1", "queues", check_topic_name(topic))
        self._make = make
        self.front = self if front is None else front
        self.topic = topic
        self.group = group
        self.consumer = consumer

    async def receive(
        self,
        max_messages: int = 10,
        *,
        wait: Duration = 0.0,
        visibility_timeout: Duration | None = None,
        ack: Iterable[LeasedMessage] = (),
    ) -> list[Leased]:
        """Up to ``max_messages`` messages, which are this consumer's for ``visibility_timeout`` seconds (default: as
        the group is set). If there is none, waits for the first up to ``wait`` seconds.

        ``ack`` acks what was received before, in the same round trip; `LeaseLost` is raised, and nothing received, if
        it was too late for one of these.
        """
        body: dict[str, Any] = {"group": self.group, "max": max_messages, "wait_ms": milliseconds_of(wait, "wait")}
        if visibility_timeout is not None:
            body["visibility_timeout_ms"] = milliseconds_of(visibility_timeout, "visibility_timeout")
        if self.consumer:
            body["consumer"] = self.consumer
        loop = asyncio.get_running_loop()
        deadline = loop.time() + body["wait_ms"] / 1000
        while True:
            messages, unreadable = await self._receive(body, ack)
            for problem, poisoned in unreadable.items():
                log.warning("%r rejects %d messages that cannot be unpacked: %s", self, len(poisoned), problem)
                await self.reject(poisoned, reason=f"It cannot be unpacked: {problem}")
            if messages or not unreadable:
                return messages
            ack, body["wait_ms"] = (), max(round(1000 * (deadline - loop.time())), 0)

    async def _receive(self, body: dict[str, Any], ack: Iterable[LeasedMessage]) -> Received[Leased]:
        receipts = receipts_of(ack)
        if len(receipts) > _RECEIPTS_MAX:
            raise_refused(await self.ack(message for _, members in receipts for message in members))
            receipts = []
        body = {**body, "attempt": f"{_CHANCE.getrandbits(96):x}"}
        answer = await self._ask({**body, "ack": [receipt for receipt, _ in receipts]} if receipts else body)
        if answer.status == _PARTLY:
            raise_refused(_told(receipts, _decoded_acks(answer.body), {"already_acked"}))
            # All of these were acked before, by a call whose answer was lost.
            answer = await self._ask({**body, "is_repeat": True})
        return leased_messages(answer.body, self._make, self.front)

    async def _ask(self, body: dict[str, Any]) -> Answer:
        """Receive. If the answer is lost, the next try has the node take back what the first one got."""
        return await self._transport.call(
            "POST",
            (*self._path, "receive"),
            body=msgspec.json.encode(body),
            body_again=msgspec.json.encode({**body, "is_repeat": True}),
            accept=MSGPACK,
            wait_s=body["wait_ms"] / 1000,
        )

    async def ack(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        """These are done and never come back. Returns those for which it was too late."""
        return [each for each in await self._settle("ack", messages) if each.fate != "already_acked"]

    async def nack(
        self, messages: Iterable[LeasedMessage], *, delay: Duration | None = None, reason: str = ""
    ) -> list[Refused]:
        """These failed: deliver them again after ``delay`` seconds, or after the group's backoff. Returns those for
        which it was too late.
        """
        more: dict[str, Any] = {"reason": reason[:_REASON_CHARS_MAX]}
        if delay is not None:
            more["delay_ms"] = milliseconds_of(delay, "delay")
        return await self._settle("nack", messages, **more)

    async def reject(self, messages: Iterable[LeasedMessage], *, reason: str = "") -> list[Refused]:
        """These cannot be done: to the dead letters at once. Returns those for which it was too late."""
        return await self._settle("reject", messages, reason=reason[:_REASON_CHARS_MAX])

    async def extend(
        self, messages: Iterable[LeasedMessage], visibility_timeout: Duration | None = None
    ) -> list[Refused]:
        """Hold these for so many seconds from now on. Returns those for which it was too late."""
        more: dict[str, Any] = {}
        if visibility_timeout is not None:
            more["visibility_timeout_ms"] = milliseconds_of(visibility_timeout, "visibility_timeout")
        return await self._settle("extend", messages, **more)

    async def release(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        """Give these back unseen: they are delivered again at once, and this delivery does not count as a try."""
        return await self._settle("release", messages)

    # -- the queue itself ---------------------------------------------------------------------------------------------

    async def stats(self) -> QueueStats:
        """How many messages are ready, in flight and waiting for another try."""
        return await self._perform(operations.QUEUE_STATS)

    async def configure(self, **settings: Any) -> QueueStats:
        """Set how this group works, such as ``tries=5``, and begin it if it is not there; see docs/reference/topics.md.

        What is not named goes by the topic's settings again.
        """
        return await self._perform(operations.CONFIGURE_QUEUE, {"settings": settings_form(settings)})

    async def pause(self, reason: str = "") -> QueueStats:
        """Hand out no messages until `resume`; those that are leased may still be settled."""
        return await self._perform(operations.PAUSE_QUEUE, {"reason": reason})

    async def resume(self) -> QueueStats:
        """Hand out messages again."""
        return await self._perform(operations.RESUME_QUEUE)

    async def seek(self, to: int | str | None = None, *, since: datetime | None = None) -> QueueStats:
        """Read on from an offset, from ``earliest`` or ``latest``, or from an instant on; leases are over then."""
        return await self._perform(operations.SEEK_QUEUE, start_form(to, since))

    async def purge(self) -> QueueStats:
        """Have everything that is there now count as done by this group; other readers keep it."""
        return await self._perform(operations.PURGE_QUEUE, {"group": self.group})

    async def delete(self) -> None:
        """Forget this group, and what it has done."""
        await perform(self._transport, operations.DELETE_QUEUE, topic=self.topic, group=self.group)

    async def _perform(
        self, operation: operations.Operation[QueueStats], body: dict[str, Any] | None = None
    ) -> QueueStats:
        return await perform(self._transport, operation, body=body, topic=self.topic, group=self.group)

    async def dead_letters(self, max_letters: int = 100, *, reason: str | None = None) -> Sequence[DeadLetter]:
        """The first messages of this group that could not be processed, all of them or those of one reason."""
        return await read_dead_letters(self._transport, self.topic, self.group, max_letters, reason)

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

        It goes on by itself; this waits for its end up to ``wait`` seconds. Where the answer is lost it is asked for
        again, which raises `RedriveRunning` if the first one is at it; what was sent back is not sent twice.
        """
        wait_ms = min(milliseconds_of(wait, "wait"), _REDRIVE_WAIT_MS_MAX)
        body = self._redrive(reason, target, limit, rate=rate, wait_ms=wait_ms)
        done = await redrive(self._transport, self.topic, body, wait_ms / 1000)
        assert isinstance(done, Redrive)
        return done

    async def plan_redrive(
        self, *, reason: str | None = None, target: str | None = None, limit: int | None = None
    ) -> RedrivePlan:
        """What `redrive` would do; nothing is sent."""
        done = await redrive(self._transport, self.topic, self._redrive(reason, target, limit, dry_run=True), 0.0)
        assert isinstance(done, RedrivePlan)
        return done

    def _redrive(self, reason: str | None, target: str | None, limit: int | None, **more: Any) -> dict[str, Any]:
        asked = {"filter": {"group": self.group, "reason": reason}, "target": target, "limit": limit, **more}
        return {name: value for name, value in asked.items() if value is not None}

    async def _settle(self, verb: str, messages: Iterable[LeasedMessage], **more: Any) -> list[Refused]:
        receipts = receipts_of(messages)
        refused: list[Refused] = []
        for begin in range(0, len(receipts), _RECEIPTS_MAX):
            some = receipts[begin : begin + _RECEIPTS_MAX]
            body = {"group": self.group, "receipts": [receipt for receipt, _ in some], **more}
            answer = await self._transport.post(_Results, *self._path, verb, body=body)
            refused += _told(some, answer.results)
        return refused

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic} of group {self.group}>"


class AsyncQueue(QueueCalls[AsyncQueueMessage]):
    """A topic read as a queue by one group; made by `AsyncClient.queue`."""

    def __init__(self, transport: Transport, topic: str, group: str, consumer: str = "") -> None:
        super().__init__(transport, topic, group, AsyncQueueMessage, consumer=consumer)


def _decoded_acks(body: bytes | bytearray) -> list[_Result]:
    try:
        return msgspec.json.decode(body, type=_Acked).acked
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(f"The answer is not what a Penstock node says: {error}") from None


def _told(
    receipts: Sequence[tuple[str, Sequence[LeasedMessage]]],
    results: Sequence[_Result],
    also_fine: Collection[str] = (),
) -> list[Refused]:
    """Which messages were not settled as asked; raises where nothing is known of some."""
    if len(results) != len(receipts):
        raise UnexpectedAnswer(f"{len(receipts)} receipts were shown, and {len(results)} answered.")
    refused: list[Refused] = []
    failures: list[PenstockError] = []
    for (_, members), result in zip(receipts, results, strict=True):
        if result.error is not None:
            failures.append(error_named(result.error.code, result.error.detail))
        elif result.status not in _DONE:
            refused += _refused(members, result)
    if failures:
        raise failures[0]
    return [each for each in refused if each.fate not in also_fine]


def _refused(messages: Sequence[LeasedMessage], result: _Result) -> list[Refused]:
    """Which of a receipt's messages were not settled; one without parts is about all of them."""
    if not result.parts:
        return [Refused(message, result.status) for message in messages]
    return [
        Refused(message, part.status)
        for part in result.parts
        if part.status not in _DONE
        for message in messages
        if part.first <= message.offset <= part.last
    ]
