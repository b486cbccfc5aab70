"""A crew: everything about one worker that speaks to the cluster. It receives, renews leases and settles outcomes.

It runs in a loop of its own thread. Messages are *held* from when they are received until the queue has heard what
became of them, and as long as they are held their leases are renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.backoff import Backoff
from penstock.client.hands import Hands, Outcome, Verb
from penstock.client.leases import LeasedMessage, Refused
from penstock.client.queue import QueueCalls
from penstock.errors import PenstockError, UnknownTopic

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 2.0  # also how long a stop may have to wait for a receive that is under way
_RENEWALS: Final = 3  # in the time of a lease
_GIVE_BACK_SECONDS: Final = 1.0  # for what was cancelled
_PROGRESS_SECONDS: Final = 30.0
_RECEIVE_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewConfig:
    """How a worker works; see `worker`."""

    concurrency: int
    prefetch: int
    batch: int
    visibility_timeout_s: float
    stop_timeout_s: float

    @property
    def capacity(self) -> int:
        """How many messages to hold at most."""
        return min(self.concurrency * self.batch + self.prefetch, _RECEIVE_MAX)


class Crew:
    """Feeds one worker's hands, and tells the queue what they did."""

    def __init__(self, queue: QueueCalls[LeasedMessage], config: CrewConfig) -> None:
        self._queue = queue
        self._config = config
        self._hands: Hands | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: dict[LeasedMessage, None] = {}
        self._ready: deque[LeasedMessage] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._has_room = asyncio.Event()
        self._has_outcomes = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._is_told_to_stop = False
        self._is_told = False  # the loop will look at the outcomes
        self.done = 0
        self.failed = 0
        self.lost = 0

    def __repr__(self) -> str:
        return f"worker of {self._queue.topic}, group {self._queue.group}"

    # -- the hands' side, in any thread -------------------------------------------------------------------------------

    def take(self) -> Sequence[LeasedMessage]:
        return () if self._is_told_to_stop else self._pop(self._config.batch)

    def report(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        if not self._is_told and self._loop is not None:
            self._is_told = True
            self._loop.call_soon_threadsafe(self._has_outcomes.set)

    def stop(self) -> None:
        """Finish what runs, give back the rest, and end."""
        self._is_told_to_stop = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_stopping.set)

    # -- its own loop -------------------------------------------------------------------------------------------------

    async def run(self, hands: Hands) -> None:
        """Work until `stop` is called, or the cluster refuses for good."""
        self._hands = hands
        self._loop = asyncio.get_running_loop()
        if self._is_told_to_stop:
            self._is_stopping.set()
        log.info("%s started: %d at a time.", self, self._config.concurrency)
        helpers = [asyncio.create_task(work) for work in (self._settle(), self._renew(), self._tell())]
        try:
            await self._receive()
            await self._finish()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            log.info("%s stopped: %d done, %d failed.", self, self.done, self.failed)

    async def _receive(self) -> None:
        backoff = Backoff()
        config = self._config
        while not self._is_stopping.is_set():
            room = config.capacity - len(self._held)
            # A receive for a few when much is left to do would only cost time.
            if room < max(config.capacity // 2, 1) and (self._ready or room < 1):
                self._has_room.clear()
                await self._first_of(self._has_room, self._is_stopping)
                continue
            try:
                messages = await self._queue.receive(
                    room, wait=_POLL_SECONDS, visibility_timeout=config.visibility_timeout_s
                )
            except PenstockError as error:
                if not error.retriable and not isinstance(error, UnknownTopic):
                    raise
                log.warning("%s cannot receive: %s", self, error.message)
                await self._first_of(self._is_stopping, timeout_s=backoff.next())
                continue
            backoff.reset()
            if messages:
                self._held.update(dict.fromkeys(messages))
                self._ready.extend(messages)
                assert self._hands is not None
                self._hands.wake()

    async def _finish(self) -> None:
        """Give back what nobody has begun, and wait for what runs."""
        unseen = self._pop(self._config.capacity)
        if unseen:
            self.report(Outcome(unseen, "release"))
        assert self._hands is not None
        try:
            async with asyncio.timeout(self._config.stop_timeout_s):
                await self._empty()
        except TimeoutError:
            log.warning("%s: handlers of %d messages did not end in time.", self, len(self._held))
            self._hands.abandon()
            try:
                async with asyncio.timeout(_GIVE_BACK_SECONDS):
                    await self._empty()
            except TimeoutError:
                log.warning("%s leaves %d messages to be delivered again.", self, len(self._held))

    def _pop(self, count: int) -> list[LeasedMessage]:
        """Messages that nobody has begun; the hands' threads and the loop may both ask."""
        taken: list[LeasedMessage] = []
        try:
            while len(taken) < count:
                message = self._ready.popleft()
                if message in self._held:  # else its lease was lost while it waited
                    taken.append(message)
        except IndexError:
            pass
        return taken

    async def _empty(self) -> None:
        while self._held:
            self._has_room.clear()
            await self._has_room.wait()

    async def _settle(self) -> None:
        """Tell the queue of outcomes; what comes while it is told goes together next time."""
        backoff = Backoff()
        while True:
            await self._has_outcomes.wait()
            self._has_outcomes.clear()
            self._is_told = False
            outcomes = [self._outcomes.popleft() for _ in range(len(self._outcomes))]
            alike: dict[tuple[Verb, float | None, str], list[LeasedMessage]] = {}
            for messages, verb, delay, reason in outcomes:
                alike.setdefault((verb, delay, reason), []).extend(messages)
            for (verb, delay, reason), members in alike.items():
                try:
                    refused = await self._call(verb, members, delay, reason)
                except PenstockError as error:
                    log.warning("%s cannot %s %d messages yet: %s", self, verb, len(members), error.message)
                    self._outcomes.append(Outcome(members, verb, delay, reason))
                    await asyncio.sleep(backoff.next())
                    self._has_outcomes.set()
                    continue
                backoff.reset()
                self._count(verb, len(members), refused)
                self._let_go(members)

    async def _call(
        self, verb: Verb, messages: Sequence[LeasedMessage], delay: float | None, reason: str
    ) -> Sequence[Refused]:
        held = [message for message in messages if message in self._held]
        if verb == "ack":
            return await self._queue.ack(messages)
        if verb == "nack":
            return await self._queue.nack(held, delay=delay, reason=reason)
        if verb == "reject":
            return await self._queue.reject(held, reason=reason)
        return await self._queue.release(held)

    def _count(self, verb: str, count: int, refused: Sequence[Refused]) -> None:
        if verb == "ack":
            self.done += count - len(refused)
        elif verb in {"nack", "reject"}:
            self.failed += count
        for message, fate in refused:
            self.lost += 1
            log.warning("%s was too late with %s of %r: %s.", self, verb, message, fate)

    async def _renew(self) -> None:
        """Keep every lease going until its message is settled, whatever its handler does."""
        config = self._config
        while True:
            await asyncio.sleep(config.visibility_timeout_s / _RENEWALS)
            held = list(self._held)
            if not held:
                continue
            try:
                refused = await self._queue.extend(held, config.visibility_timeout_s)
            except PenstockError as error:
                log.warning("%s cannot renew %d leases: %s", self, len(held), error.message)
                continue
            over = [each for each in refused if each.message in self._held and each.fate != "already_acked"]
            for message, fate in over:
                log.warning("%s has lost the lease of %r: %s.", self, message, fate)
            self._let_go([message for message, _ in refused])

    async def _tell(self) -> None:
        told = 0
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            if self.done + self.failed != told:
                told = self.done + self.failed
                log.info("%s: %d done, %d failed, %d held.", self, self.done, self.failed, len(self._held))

    def _let_go(self, messages: Sequence[LeasedMessage]) -> None:
        for message in messages:
            self._held.pop(message, None)
        self._has_room.set()

    async def _first_of(self, *events: asyncio.Event, timeout_s: float | None = None) -> None:
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
