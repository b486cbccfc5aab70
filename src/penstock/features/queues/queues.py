"""Acks on their way into a transaction: it hears of the companions' partitions before anything is written there.

What follows from a queue's decisions and is no part of it: dead letters are buried, floods of failures counted.

Queues as every door sees them: receive, say what became of it, and look after groups; on any node, for any topic.

A group reads all partitions of a topic. It begins when a consumer receives for it, or a client declares it, and is
remembered. Calls go to the leaders of the companions of the partitions that they are about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.api.limits import ATTEMPT_CHARS_MAX, DEFAULT_WRITER
from penstock.consensus.queue_config import QueueSettings, check_own
from penstock.consensus.records import NO_LEADER
from penstock.errors import (
    GroupNotFound,
    InvalidGroupId,
    InvalidRequest,
    PenstockError,
    ProducerFenced,
    TransactionEnded,
)
from penstock.features.dead_letters.breaker import Breakers
from penstock.features.dead_letters.letters import unpacked
from penstock.features.dead_letters.writer import DeadLetterWriters
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.queues.core.messages import ReceiptOutcome, ReceiptPart
from penstock.features.queues.core.receipts import Receipt, parse_receipt
from penstock.features.queues.leading.coordinator import QueueCoordinator, ensure_companion
from penstock.features.queues.leading.figures import AllFigures
from penstock.features.queues.leading.progress import QueueProgress
from penstock.features.queues.leading.serving import QueueServing, told_start
from penstock.features.queues.leases import PartitionLease, SettledReceipt
from penstock.features.queues.receiving import Problems, Receiving, no_leader
from penstock.features.queues.wire import (
    DESCRIBE,
    ORDER,
    PEEK,
    SETTLE,
    Action,
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

if TYPE_CHECKING:
    from penstock.features.queues.core.queue import Queue
    from penstock.features.queues.leading.shard import QueueShard


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


class AfterApply:
    """Looks at a queue whenever something about it has changed."""

    def __init__(self, burials: DeadLetterWriters, breakers: Breakers) -> None:
        self.burials = burials
        self.breakers = breakers

    def on_changed(self, shard: QueueShard, queue: Queue) -> None:
        """Something about a queue was written and applied just now."""
        self.burials.look(queue, shard.request)
        tally = queue.take_tally()
        if queue.is_paused:
            self.breakers.reset(queue.topic, queue.id)  # so it counts from nothing when the group goes on
        else:
            self.breakers.note(queue.topic, queue.id, queue.settings, tally)

    def start(self) -> None:
        self.burials.serve()

    async def stop(self) -> None:
        await self.burials.stop()
        await self.breakers.stop()


log = logging.getLogger(__name__)

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
        self.aftermath = AfterApply(DeadLetterWriters(ports), Breakers(ports.clock, self.pause, ports.supervision))
        self.coordinator.aftermath = self.aftermath
        self._progress = QueueProgress.of(ports, groups, self.coordinator, offsets_retention_ms=offsets_retention_ms)

    def start(self) -> None:
        """Begin to lead queues and to serve other nodes."""
        self.coordinator.start()
        self._ports.partitions.listen(self.coordinator)
        self._serving.serve(self._ports.peers)
        self.aftermath.start()
        self._progress.start()

    async def stop(self) -> None:
        """End what waits, and lead nothing any more."""
        self._receiving.stop()
        for part in (self._progress, self.coordinator, self.aftermath):
            await part.stop()

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
