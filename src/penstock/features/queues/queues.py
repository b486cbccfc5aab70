"""Queues as every door sees them: receive, say what became of it, and look after groups; on any node, for any topic.

A group reads all partitions of a topic. It begins when a consumer receives for it, or a client declares it, and is
remembered. Calls go to the leaders of the companions of the partitions that they are about. Acks on their way into a
transaction enter it before anything is written: it hears of the companions' partitions first.

Receiving: partitions have their turn one after the other, so that none is served only when the others are empty. A
consumer that waits stands in line at the partitions led here, and asks other nodes to say when there is something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from penstock.api.limits import ATTEMPT_CHARS_MAX, DEFAULT_WRITER
from penstock.consensus.queue_config import QueueSettings, check_own
from penstock.consensus.records import NO_LEADER
from penstock.errors import (
    GroupNotFound,
    InvalidGroupId,
    InvalidRequest,
    LeaderNotAvailable,
    PenstockError,
    ProducerFenced,
    TransactionEnded,
)
from penstock.features.dead_letters.letters import unpacked
from penstock.features.dead_letters.writer import Breakers, DeadLetterWriters
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.queues.core.messages import Receipt, ReceiptOutcome, ReceiptPart, parse_receipt
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.leading.progress import QueueProgress
from penstock.features.queues.leading.serving import QueueServing, told_start
from penstock.features.queues.leading.shard import AllFigures, QueueCoordinator, QueueShard, Waiter, ensure_companion
from penstock.features.queues.leases import Attempts, PartitionLease, SettledReceipt
from penstock.features.queues.wire import (
    ABANDON,
    AWAIT_READY,
    DESCRIBE,
    ORDER,
    PEEK,
    SETTLE,
    TAKE,
    AbandonAttempt,
    Action,
    AwaitReady,
    BeginGroup,
    DescribeGroups,
    ForgetGroup,
    GroupReport,
    GroupReports,
    GroupStats,
    OrderGroup,
    PauseGroup,
    PeekedRecord,
    PeekedSpan,
    PeekGroup,
    PurgeGroup,
    SeekGroup,
    SettledParts,
    SettleReceipts,
    TakeMessages,
    TakenLeases,
)
from penstock.features.transactions.coordinator import TransactionCoordinator
from penstock.features.transactions.joint.coordinator import JointCoordinator
from penstock.machines.leaders import UNSURE
from penstock.machines.messages import ProducerIdentity
from penstock.machines.ports import Ports
from penstock.model import queue_state_topic
from penstock.network.port import Method, Received
from penstock.partitions.access import Start
from penstock.partitions.beside import beside
from penstock.records import iter_batches

log = logging.getLogger(__name__)


_PATIENCE_SECONDS: Final = 5.0  # with partitions that have no leader now
_PAUSE_SECONDS: Final = 0.05
_NETWORK_SECONDS: Final = 2.0  # beyond the time that a call may take where it is served
# Leaders change and partitions are added, so no consumer waits for longer than this without looking anew.
_LOOK_AGAIN_SECONDS: Final = 5.0
_TURNS_MAX: Final = 10_000
# A call that finds messages waits for nothing, so a consumer that keeps calling would hold up all others.
_CALLS_A_TURN: Final = 16
# A consumer that is told of messages and finds none, again and again, asks less often.
_IN_VAIN_SECONDS: Final = 0.002
_IN_VAIN_SECONDS_MAX: Final = 0.1

# Have a group begin in these partitions.
BeginIn = Callable[[str, str, Sequence[int]], Awaitable[None]]
# Have messages delivered again that no consumer saw.
Release = Callable[[SettleReceipts], Coroutine[Any, Any, None]]

Problems = list[tuple[int, PenstockError]]


class Receiving:
    """Every call that receives on this node."""

    def __init__(self, ports: Ports, serving: QueueServing, begin_in: BeginIn, release: Release) -> None:
        self._ports = ports
        self._serving = serving
        self._begin_in = begin_in
        self._release = release
        self._turns: dict[tuple[str, str], int] = {}  # which partition is next
        self._waiters: dict[Waiter, str] = {}  # all that wait here, and for what topic
        self._attempts = Attempts()  # that were made here
        self._is_stopping = False
        self._calls = 0

    def stop(self) -> None:
        """Answer all consumers that wait, with nothing."""
        self._is_stopping = True
        for waiter in self._waiters:
            waiter.wake()

    def on_opened(self, topic: str) -> None:
        """Queues of a topic are led here now: consumers that wait have to look again."""
        for waiter, waits_for in self._waiters.items():
            if waits_for == topic:
                waiter.wake()

    async def begin_attempt(self, topic: str, group: str, attempt: str, *, is_repeat: bool) -> None:
        """If an attempt was made before, have all leaders give back what it got."""
        is_known = self._attempts.note((topic, group, attempt), [], self._ports.clock.monotonic())
        if is_known or is_repeat:
            await self._abandon(AbandonAttempt(topic, group, attempt))

    async def receive(self, request: TakeMessages, wait_ms: int) -> list[PartitionLease]:
        """Leases from any partitions; ``request`` tells all but which ones."""
        self._calls += 1
        if self._calls % _CALLS_A_TURN == 0:
            await asyncio.sleep(0)
        clock = self._ports.clock
        began = clock.monotonic()
        deadline = began + wait_ms / 1000
        waiter: Waiter | None = None
        in_vain = 0  # how often there should have been something and was not, one time after the other
        try:
            while True:
                if queue_state_topic(request.topic) not in self._ports.metadata.topics:
                    await ensure_companion(self._ports, request.topic)
                order = self._order(request)
                leases, problems = await self._take_round(request, order)
                if leases:
                    self._note_turn(request, leases[0].partition, len(order))
                    return leases
                if self._is_stopping:
                    return []
                now = clock.monotonic()
                if len(problems) == len(order) and now >= max(deadline, began + _PATIENCE_SECONDS):
                    raise problems[0][1]
                if len(problems) == len(order):
                    await asyncio.sleep(_PAUSE_SECONDS)
                elif now >= deadline:
                    return []
                elif waiter is None:  # get in line first and look once more, so that nothing comes in between
                    waiter = Waiter()
                    self._waiters[waiter] = request.topic
                    self._serving.enter_rooms(waiter, request.topic, request.group, order)
                else:
                    seconds = min(deadline - now, _LOOK_AGAIN_SECONDS, *([_PAUSE_SECONDS * 10] if problems else []))
                    await asyncio.sleep(min(in_vain * _IN_VAIN_SECONDS, _IN_VAIN_SECONDS_MAX, seconds))
                    in_vain = in_vain + 1 if await self._wait(waiter, request, order, seconds) else 0
        finally:
            if waiter is not None:
                del self._waiters[waiter]
                waiter.leave_all()

    # -- one round ----------------------------------------------------------------------------------------------------

    def _order(self, request: TakeMessages) -> list[int]:
        count = len(self._ports.metadata.topic(request.topic).partitions)
        first = self._turns.get((request.topic, request.group), 0) % count
        return [*range(first, count), *range(first)]

    def _note_turn(self, request: TakeMessages, served: int, count: int) -> None:
        if count > 1:
            if len(self._turns) >= _TURNS_MAX:
                self._turns.clear()
            self._turns[request.topic, request.group] = (served + 1) % count

    async def _take_round(self, request: TakeMessages, order: list[int]) -> tuple[list[PartitionLease], Problems]:
        """Ask each node for its partitions, until there is enough."""
        leases: list[PartitionLease] = []
        problems: Problems = []
        messages, size = request.max_messages, request.max_bytes
        for node_id, partitions in self._by_leader(request.topic, order).items():
            wanted = TakeMessages(
                request.topic,
                request.group,
                request.consumer,
                tuple(partitions),
                messages,
                size,
                request.visibility_timeout_ms,
                request.attempt,
            )
            try:
                found, missing, failed = await self._take(node_id, wanted)
                if missing:
                    await self._begin_in(request.topic, request.group, missing)
                if missing and not found:
                    found, _, failed = await self._take(node_id, wanted)
            except BaseException:
                self._give_back(request.group, leases)
                raise
            leases += found
            problems += failed
            messages -= sum(delivery.size for lease in found for delivery in lease.deliveries)
            size -= sum(len(lease.batches) for lease in found)
            if messages <= 0 or size <= 0:
                break
        return leases, problems

    def _by_leader(self, topic: str, partitions: Sequence[int]) -> dict[int, list[int]]:
        return self._ports.leaders.by_leader(queue_state_topic(topic), partitions)

    # -- asking leaders -----------------------------------------------------------------------------------------------

    async def _take(self, node_id: int, request: TakeMessages) -> tuple[list[PartitionLease], Sequence[int], Problems]:
        """Lease messages at one node; where the group has to begin, and which partitions could not serve."""
        if node_id == self._ports.node_id:
            return await self._serving.take(request)
        if node_id == NO_LEADER:
            return [], (), [(partition, no_leader(request.topic)) for partition in request.partitions]
        try:
            received = await self._call_take(node_id, request)
        except UNSURE as error:
            return [], (), [(partition, error) for partition in request.partitions]
        taken: TakenLeases = received.reply
        problems = [(each.partition, each.failure.revived()) for each in taken.problems]
        return _leases_of(request.topic, received), taken.missing, problems

    async def _call_take(self, node_id: int, request: TakeMessages) -> Received:
        """Ask another node; if the call is cancelled meanwhile, the messages that come are given back."""
        call = asyncio.ensure_future(self._ports.peers.call(node_id, TAKE, request))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(lambda done: self._on_abandoned(request, done))
            raise

    def _on_abandoned(self, request: TakeMessages, call: asyncio.Future[Received]) -> None:
        if not call.cancelled() and call.exception() is None:
            self._give_back(request.group, _leases_of(request.topic, call.result()))

    def _give_back(self, group: str, leases: Sequence[PartitionLease]) -> None:
        """Have messages that no consumer saw delivered again soon."""
        for lease in leases:
            receipts = tuple(
                Receipt(lease.topic, lease.partition, first, last, count, lease.nonce)
                for first, last, count in lease.deliveries
            )
            self._serving.spawn(self._release(SettleReceipts(lease.topic, lease.partition, group, "release", receipts)))

    async def _abandon(self, request: AbandonAttempt) -> None:
        """Have each leader of a topic's queues give back what an attempt got; one that is not reached keeps it."""
        partitions = list(range(len(self._ports.metadata.topic(request.topic).partitions)))
        nodes = [node_id for node_id in self._by_leader(request.topic, partitions) if node_id != NO_LEADER]
        calls = [self._ports.peers.call(node_id, ABANDON, request) for node_id in nodes]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, PenstockError):
                log.debug("What attempt %s got may wait until its lease ends: %s", request.attempt, answer.message)
            elif isinstance(answer, BaseException):
                raise answer

    async def _await_ready(self, node_id: int, request: AwaitReady) -> None:
        """Return once another node may have something, or after a while."""
        timeout_s = request.wait_ms / 1000 + _NETWORK_SECONDS
        try:
            await self._ports.peers.call(node_id, AWAIT_READY, request, timeout_s=timeout_s)
        except PenstockError:
            await asyncio.sleep(_PAUSE_SECONDS)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self, waiter: Waiter, request: TakeMessages, order: list[int], seconds: float) -> bool:
        """Return once there may be something somewhere, or after a while; whether there may be."""
        self._serving.enter_rooms(waiter, request.topic, request.group, order)
        waiter.pass_on()
        here = self._ports.node_id
        calls = [
            asyncio.ensure_future(
                self._await_ready(
                    node_id,
                    AwaitReady(request.topic, request.group, request.consumer, tuple(partitions), int(seconds * 1000)),
                )
            )
            for node_id, partitions in self._by_leader(request.topic, order).items()
            if node_id not in {here, NO_LEADER}
        ]
        if not calls:
            try:
                async with asyncio.timeout(seconds):
                    await waiter.sleep()
            except TimeoutError:
                return False
            return True
        calls.append(asyncio.ensure_future(waiter.sleep()))
        try:
            done, _ = await asyncio.wait(calls, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        return bool(done)


def no_leader(topic: str) -> LeaderNotAvailable:
    return LeaderNotAvailable(f"Some partitions of {topic} have no leader for their queues now. Try again in a moment.")


def _leases_of(topic: str, received: Received) -> list[PartitionLease]:
    """The leases of another node, with the batches that came behind them."""
    taken: TakenLeases = received.reply
    leases: list[PartitionLease] = []
    at = 0
    for each in taken.leases:
        batches = bytes(received.body[at : at + each.size])
        leases.append(PartitionLease(topic, each.partition, each.nonce, each.until_ms, each.deliveries, batches))
        at += each.size
    return leases


async def enter_acks(
    ports: Ports, joint: JointCoordinator, transaction: str, writer: str, places: Iterable[tuple[str, int]]
) -> ProducerIdentity | None:
    """As whom a writer acks messages of these partitions in a joint transaction; None if there are none."""
    partitions: dict[str, set[int]] = {}
    for topic, partition in places:
        partitions.setdefault(topic, set()).add(partition)
    producer: ProducerIdentity | None = None
    for topic, indexes in sorted(partitions.items()):
        companion = ports.metadata.topics.get(queue_state_topic(topic))
        if companion is None:
            raise GroupNotFound(f"No queue group reads topic {topic!r}.")
        producer = await joint.enter_acks(transaction, writer, companion, frozenset(indexes))
    return producer


RECEIVE_BYTES: Final = 8 * 1024 * 1024
RECEIVE_MESSAGES_MAX: Final = 100_000
_NAME_CHARS_MAX: Final = 255
_PEEK_BYTES: Final = 4 * 1024 * 1024


class Queues:
    """The queues of the cluster."""

    def __init__(
        self,
        ports: Ports,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        joint: JointCoordinator,
        *,
        offsets_retention_ms: int,
    ) -> None:
        """``groups`` learn how far queue groups are; acks enter a transaction by ``joint`` and end with it."""
        self._ports = ports
        self._joint = joint
        self.coordinator = QueueCoordinator(ports)
        transactions.markers.local.queues = self.coordinator
        self._serving = QueueServing(ports, self.coordinator)
        self._receiving = Receiving(ports, self._serving, self._begin_in, self._release)
        self.coordinator.on_ready = self._receiving.on_opened
        self._dead_letters = DeadLetterWriters(ports)
        self.breakers = Breakers(ports.clock, self.pause, ports.supervision)
        self.coordinator.on_changed = self._on_changed
        self._progress = QueueProgress.of(ports, groups, self.coordinator, offsets_retention_ms=offsets_retention_ms)

    def start(self) -> None:
        """Begin to lead queues and to serve other nodes."""
        self.coordinator.start()
        self._ports.partitions.listen(self.coordinator)
        self._serving.serve(self._ports.peers)
        self._dead_letters.serve()
        self._progress.start()

    async def stop(self) -> None:
        """End what waits, and lead nothing any more."""
        self._receiving.stop()
        for part in (self._progress, self.coordinator, self._dead_letters, self.breakers):
            await part.stop()

    def _on_changed(self, shard: QueueShard, queue: Queue) -> None:
        """Do what follows from a queue's decisions and is no part of it: dead letters, floods of failures."""
        self._dead_letters.look(queue, shard.request)
        tally = queue.take_tally()
        if queue.is_paused:
            self.breakers.reset(queue.topic, queue.id)  # so it counts from nothing when the group goes on
        else:
            self.breakers.note(queue.topic, queue.id, queue.settings, tally)

    @property
    def figures(self) -> AllFigures:
        """What went through the queues that are led here."""
        return self.coordinator.figures

    # -- messages -----------------------------------------------------------------------------------------------------

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        consumer: str,
        max_messages: int,
        max_bytes: int = RECEIVE_BYTES,
        wait_ms: int = 0,
        visibility_timeout_ms: int | None = None,
        attempt: str = "",
    ) -> list[PartitionLease]:
        """Lease messages from any partitions, fairly in turn; where there are none, what comes within ``wait_ms``.

        The group begins with its first use, at the log's start. Consumer ``""`` is anonymous: it has no limit in flight
        of its own. Cancelling it while it waits takes no message.
        ``attempt`` is one that `begin_attempt` was told of.
        """
        _check_name("group", group)
        if len(consumer) > _NAME_CHARS_MAX:
            raise InvalidRequest(f"The name of a consumer has at most {_NAME_CHARS_MAX} characters.")
        if not 1 <= max_messages <= RECEIVE_MESSAGES_MAX or max_bytes < 1 or wait_ms < 0:
            raise InvalidRequest(
                f"Ask for 1 to {RECEIVE_MESSAGES_MAX} messages, for at least one byte, and wait 0 ms or longer."
            )
        request = TakeMessages(topic, group, consumer, (), max_messages, max_bytes, visibility_timeout_ms, attempt)
        return await self._receiving.receive(request, wait_ms)

    async def begin_attempt(self, topic: str, group: str, attempt: str, *, is_repeat: bool = False) -> None:
        """A consumer is about to receive, under a name of its own that no other call has.

        If it did so before and the answer was lost, what it got then and did not settle is given back unseen, so that
        it does not count as a try. ``is_repeat`` says that this may have been at another node.
        """
        if not 1 <= len(attempt) <= ATTEMPT_CHARS_MAX:
            raise InvalidRequest(f"The name of an attempt has 1 to {ATTEMPT_CHARS_MAX} characters.")
        self._ports.metadata.topic(topic)
        await self._receiving.begin_attempt(topic, group, attempt, is_repeat=is_repeat)

    async def ack(
        self,
        group: str,
        receipts: Sequence[str],
        *,
        topic: str | None = None,
        transaction: str | None = None,
        writer: str = DEFAULT_WRITER,
    ) -> list[SettledReceipt]:
        """These messages are done with. One verdict for each receipt, in order.

        In a joint transaction they are done with once that is committed, and until it ends no other consumer gets them.
        If one of them is not done, abort the transaction. Acking them in it again is safe.
        """
        ticket = None if transaction is None else (transaction, writer)
        return await self._settle("ack", group, receipts, topic, ticket)

    async def nack(
        self,
        group: str,
        receipts: Sequence[str],
        *,
        topic: str | None = None,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> list[SettledReceipt]:
        """These failed: deliver them again, after a delay of one's own or the group's backoff."""
        return await self._settle("nack", group, receipts, topic, delay_ms=delay_ms, reason=reason)

    async def reject(
        self, group: str, receipts: Sequence[str], *, topic: str | None = None, reason: str = ""
    ) -> list[SettledReceipt]:
        """These can never be processed: they go to the dead letters at once."""
        return await self._settle("reject", group, receipts, topic, reason=reason)

    async def release(self, group: str, receipts: Sequence[str], *, topic: str | None = None) -> list[SettledReceipt]:
        """No consumer has looked at these: they can be delivered again at once, and this delivery did not count."""
        return await self._settle("release", group, receipts, topic)

    async def extend(
        self,
        group: str,
        receipts: Sequence[str],
        *,
        topic: str | None = None,
        visibility_timeout_ms: int | None = None,
    ) -> list[SettledReceipt]:
        """Hold these for so long from now on."""
        return await self._settle("extend", group, receipts, topic, visibility_timeout_ms=visibility_timeout_ms)

    async def _settle(
        self,
        verb: str,
        group: str,
        receipts: Sequence[str],
        topic: str | None,
        ticket: tuple[str, str] | None = None,
        **details: Any,
    ) -> list[SettledReceipt]:
        _check_name("group", group)
        if topic is not None:
            self._ports.metadata.topic(topic)
        verdicts: list[SettledReceipt | None] = [None] * len(receipts)
        found: dict[tuple[str, int], tuple[list[int], list[Receipt]]] = {}
        for at, text in enumerate(receipts):
            receipt = parse_receipt(text)
            if receipt is None:
                verdicts[at] = SettledReceipt(text)
            elif not self._is_known(receipt, topic):
                verdicts[at] = SettledReceipt(text, (ReceiptPart(receipt.first, receipt.last, ReceiptOutcome.FOREIGN),))
            else:
                places = found.setdefault(receipt[:2], ([], []))
                places[0].append(at)
                places[1].append(receipt)
        if ticket is not None:
            details["producer"] = await enter_acks(self._ports, self._joint, *ticket, found)
        calls = [
            self._settle_at(SettleReceipts(*where, group, verb, tuple(brought), **details))
            for where, (_, brought) in found.items()
        ]
        answers = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        missing = [answer for answer in answers if isinstance(answer, GroupNotFound)]
        if missing and len(missing) == len(answers):
            raise missing[0]
        for (positions, _), answer in zip(found.values(), answers, strict=True):
            for nth, at in enumerate(positions):
                if isinstance(answer, PenstockError):
                    verdicts[at] = SettledReceipt(receipts[at], (), answer)
                else:
                    verdicts[at] = SettledReceipt(receipts[at], answer[nth])
        return [verdict for verdict in verdicts if verdict is not None]

    def _is_known(self, receipt: Receipt, topic: str | None) -> bool:
        if topic is not None and receipt.topic != topic:
            return False
        known = self._ports.metadata.topics.get(receipt.topic)
        return known is not None and receipt.partition < len(known.partitions)

    async def _settle_at(self, request: SettleReceipts) -> tuple[tuple[ReceiptPart, ...], ...] | PenstockError:
        if queue_state_topic(request.topic) not in self._ports.metadata.topics:
            return GroupNotFound(f"No queue group {request.group!r} reads topic {request.topic!r}.")
        try:
            settled: SettledParts = (await self._ask(SETTLE, request)).reply
            return settled.receipts
        except InvalidRequest:
            raise
        except ProducerFenced as error:
            return TransactionEnded(f"The transaction ended before the ack was written: {error.message}")
        except PenstockError as error:
            return error

    # -- groups -------------------------------------------------------------------------------------------------------

    async def declare(
        self, topic: str, group: str, *, start: Start = "earliest", settings: Mapping[str, str] | None = None
    ) -> None:
        """Have a group read a topic from a start on, if it does not yet; its own settings go over the topic's."""
        _check_name("group", group)
        check_own(settings or {})
        self._topic_settings(topic).with_values(settings or {})
        await ensure_companion(self._ports, topic)
        action = BeginGroup(**told_start(start), settings=dict(settings or {}))
        await self._order_all(topic, group, action)

    def has_begun_here(self, topic: str, group: str) -> bool:
        """Whether this node leads all partitions of a topic and a group reads each of them."""
        return all(self.coordinator.has_begun(topic, partition, group) for partition in self._partitions(topic))

    async def groups(self, topic: str) -> list[str]:
        """The names of the queue groups that read a topic."""
        reports = await self._look(topic, None)
        return sorted({report.group for report in reports})

    async def stats(self, topic: str, group: str | None = None) -> list[GroupStats]:
        """How it is with a group of a topic, or with each; partitions that cannot be asked now are left out."""
        reports = await self._look(topic, group)
        if group is not None and not reports:
            raise GroupNotFound(f"No queue group {group!r} reads topic {topic!r}.")
        settings = self._topic_settings(topic)
        by_group: dict[str, list[GroupReport]] = {}
        for report in sorted(reports, key=lambda report: (report.group, report.stats.partition)):
            by_group.setdefault(report.group, []).append(report)
        return [_stats_of(topic, name, found, settings) for name, found in by_group.items()]

    async def led_here(self) -> list[tuple[str, GroupReport]]:
        """Every group of every partition whose queues this node leads, with its topic."""
        found: list[tuple[str, GroupReport]] = []
        for shard in self.coordinator:
            looked = await self._serving.look(DescribeGroups(shard.topic, None, (shard.partition,)))
            found += [(shard.topic, report) for report in looked.reports]
        return found

    async def pause(self, topic: str, group: str, reason: str = "") -> None:
        """Hand out nothing; what is in flight can be acked all the same."""
        await self._order_existing(topic, group, PauseGroup(is_paused=True, reason=reason))

    async def resume(self, topic: str, group: str) -> None:
        """Hand out messages again."""
        await self._order_existing(topic, group, PauseGroup(is_paused=False))

    async def purge(self, topic: str, group: str) -> None:
        """Be done with every message that is there now."""
        await self._order_existing(topic, group, PurgeGroup())

    async def seek(self, topic: str, group: str, start: Start) -> None:
        """Go on from another place, as if nothing had been delivered before; every lease ends."""
        await self._order_existing(topic, group, SeekGroup(**told_start(start)))

    async def forget(self, topic: str, group: str) -> None:
        """Have a group read a topic no more; nothing is remembered of it."""
        await self._order_existing(topic, group, ForgetGroup())

    async def peek(self, topic: str, group: str, *, max_messages: int) -> list[PeekedRecord]:
        """The first messages of each partition in turn that a group is not done with, without taking them."""
        if not 1 <= max_messages <= RECEIVE_MESSAGES_MAX:
            raise InvalidRequest(f"Ask for 1 to {RECEIVE_MESSAGES_MAX} messages.")
        self._check_companion(topic, group)
        found: list[PeekedRecord] = []
        for partition in self._partitions(topic):
            if len(found) >= max_messages:
                break
            request = PeekGroup(topic, partition, group, max_messages - len(found), _PEEK_BYTES)
            peeked, batches = await self._ask(PEEK, request)
            found += await beside(batches, partial(_peeked, partition, peeked.spans, memoryview(batches)))
        return found

    # -- asking leaders -----------------------------------------------------------------------------------------------

    async def _ask(self, method: Method[Any, Any], request: SettleReceipts | OrderGroup | PeekGroup) -> Received:
        """Ask the leader of a partition's queues. Receipts tell what was done before, so asking twice does no harm."""
        self._ports.metadata.partition(request.topic, request.partition)  # an error that names it, not its companion
        return await self._ports.leaders.ask((queue_state_topic(request.topic), request.partition), method, request)

    async def _release(self, request: SettleReceipts) -> None:
        try:
            await self._ask(SETTLE, request)
        except PenstockError as error:
            log.debug("What no consumer received waits until its lease ends: %s", error.message)

    async def _look_at(
        self, topic: str, group: str | None, partitions: Sequence[int]
    ) -> tuple[list[GroupReport], Problems]:
        """Reports of groups, by partition, and the partitions whose leaders could not be asked."""
        reports: list[GroupReport] = []
        problems: Problems = []
        for node_id, found in self._ports.leaders.by_leader(queue_state_topic(topic), partitions).items():
            try:
                if node_id == NO_LEADER:
                    raise no_leader(topic)
                looked: GroupReports = (
                    await self._ports.peers.call(node_id, DESCRIBE, DescribeGroups(topic, group, tuple(found)))
                ).reply
            except UNSURE as error:
                problems += [(partition, error) for partition in found]
            else:
                reports += looked.reports
                problems += [(each.partition, each.failure.revived()) for each in looked.problems]
        return reports, problems

    # -- all partitions -----------------------------------------------------------------------------------------------

    def _partitions(self, topic: str) -> list[int]:
        return list(range(len(self._ports.metadata.topic(topic).partitions)))

    def _topic_settings(self, topic: str) -> QueueSettings:
        return self._ports.topics.settings_of(topic).queue

    def _check_companion(self, topic: str, group: str) -> None:
        _check_name("group", group)
        self._ports.metadata.topic(topic)
        if queue_state_topic(topic) not in self._ports.metadata.topics:
            raise GroupNotFound(f"No queue group {group!r} reads topic {topic!r}.")

    async def _look(self, topic: str, group: str | None) -> list[GroupReport]:
        partitions = self._partitions(topic)
        if queue_state_topic(topic) not in self._ports.metadata.topics:
            return []
        reports, problems = await self._look_at(topic, group, partitions)
        if problems and len(problems) == len(partitions):
            raise problems[0][1]
        return reports

    async def _order_all(self, topic: str, group: str, action: Action) -> None:
        await asyncio.gather(
            *(self._ask(ORDER, OrderGroup(topic, partition, group, action)) for partition in self._partitions(topic))
        )

    async def _order_existing(self, topic: str, group: str, action: Action) -> None:
        """The same, for a group that is there; in a new partition it may not be yet."""
        self._check_companion(topic, group)
        partitions = self._partitions(topic)
        answers = await asyncio.gather(
            *(self._ask(ORDER, OrderGroup(topic, partition, group, action)) for partition in partitions),
            return_exceptions=True,
        )
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        others = [error for error in failed if not isinstance(error, GroupNotFound)]
        if others or len(failed) == len(partitions):
            raise (others or failed)[0]

    async def _begin_in(self, topic: str, group: str, partitions: Sequence[int]) -> None:
        """Have a group begin where it has not yet, as it is elsewhere: in all partitions, or in those that are new."""
        reports, _ = await self._look_at(topic, group, self._partitions(topic))
        own = reports[0].own_settings if reports else {}
        for partition in partitions:
            await self._ask(ORDER, OrderGroup(topic, partition, group, BeginGroup(settings=own)))
            if reports and reports[0].is_paused:
                pause = PauseGroup(is_paused=True, reason=reports[0].pause_reason)
                await self._ask(ORDER, OrderGroup(topic, partition, group, pause))


def _peeked(partition: int, spans: Sequence[PeekedSpan], data: memoryview) -> list[PeekedRecord]:
    states = {offset: span for span in spans for offset in range(span.first, span.last + 1)}
    found: list[PeekedRecord] = []
    for position, header in iter_batches(data):
        batch = data[position : position + header.size]
        for record in unpacked(batch, header, header.base_offset, header.last_offset):
            span = states.get(record.offset)
            if span is not None:
                found.append(PeekedRecord(partition, record.offset, span.state, span.delivery_count, record))
    return found


def _check_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= _NAME_CHARS_MAX:
        raise InvalidGroupId(f"The name of a {what} has 1 to {_NAME_CHARS_MAX} characters.")


def _stats_of(topic: str, group: str, reports: Sequence[GroupReport], settings: QueueSettings) -> GroupStats:
    own = reports[0].own_settings
    paused = next((report for report in reports if report.is_paused), None)
    return GroupStats(
        topic=topic,
        group=group,
        settings=settings.with_values(own),
        own_settings=own,
        is_paused=paused is not None,
        pause_reason=paused.pause_reason if paused is not None else "",
        partitions=[report.stats for report in reports],
    )
