"""Random consumers, random faults, and a twin that keeps a dict for each message.

After every step the queue must be what the twin says: what is offered, what became of each receipt, what waits for the
dead letters, how far the group is. And at any time the log, read from its beginning or from the last snapshot, must
tell the same story as memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.unit.queues.twin import Twin

from penstock.consensus.queue_config import Lanes, Order, QueueSettings
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.messages import (
    AckDeliveries,
    AssignDeadLetterProducer,
    BeginQueue,
    ConfigureQueue,
    ConfirmDeadLetters,
    ExtendLeases,
    GrantedLease,
    GrantLease,
    JudgedReceipts,
    NackDeliveries,
    OfferedSpan,
    PauseQueue,
    PendingDeadLetter,
    PurgeBefore,
    Receipt,
    ReceiptOutcome,
    RejectDeliveries,
    ReleaseDeliveries,
    SeekQueue,
    SkipGaps,
    TrimBefore,
    parse_receipt,
)
from penstock.features.queues.core.queue import EXPIRED, GAVE_UP, Queue
from penstock.features.queues.core.records import from_record, to_record
from penstock.features.queues.core.shares import LabelRun
from penstock.machines.messages import ProducerIdentity, Request

CONSUMERS = ["ann", "ben", ""]
PRODUCERS = [7, 8, 9]  # those that ack in transactions
SECRET = bytes(range(16))
FORGED = "1" + "0" * 16

consumers = st.sampled_from(CONSUMERS)
picks = st.lists(st.integers(0, 10_000), min_size=1, max_size=8)
reaches = st.integers(0, 12)
keys = st.sampled_from([None, 1, 2, 3, 4, 5])
lanes_of_each = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def expand(offered: list[OfferedSpan]) -> list[tuple[int, int]]:
    return [(offset, each.delivery_count) for each in offered for offset in range(each.first, each.last + 1)]


def dump(queue: Queue) -> Any:
    """All that has to survive."""
    return queue._state.snapshot()


class QueueMachine(RuleBasedStateMachine):
    """Consumers, the shell, the clock and the disk against one queue."""

    @initialize(
        order=st.sampled_from(Order),
        tries=st.sampled_from([0, 1, 2, 3]),
        consumer_max=st.sampled_from([3, 1_000]),
        group_max=st.sampled_from([10, 1_000]),
        keys=st.lists(keys, min_size=20, max_size=60),
        lanes=st.sampled_from(Lanes),
        fair_by=st.sampled_from(["", "", "key"]),
    )
    def start(
        self,
        order: Order,
        tries: int,
        consumer_max: int,
        group_max: int,
        keys: list[int | None],
        lanes: Lanes,
        fair_by: str,
    ) -> None:
        self.topic_settings = QueueSettings(
            order=order,
            lanes=lanes,
            fair_by=fair_by,
            tries=tries,
            in_flight_consumer_max=consumer_max,
            in_flight_group_max=group_max,
        )
        self.now = 1_000_000
        self.moves = 0
        self.producers = 100  # ids of those that write dead letters
        self.twin = Twin(self.topic_settings)
        self.log: list[Any] = []
        self.ends: dict[int, list[tuple[int, bool]]] = {}  # of transactions, by where in the log
        self.holders: dict[int, int] = {}  # producers of records in transactions, by where in the log
        self.snapshot_at = 0  # in the log
        self.letters: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # the message of each sequence of each producer of dead letters
        self.from_begin = self.new_queue()
        self.from_snapshot = self.from_begin
        self.queue = self.new_queue()
        self.receipts: list[Receipt] = []  # all that were ever given out
        self.ask(BeginQueue(0, SECRET))
        self.publish(keys, [0, 4, 2, 1, 3])

    def new_queue(self) -> Queue:
        return Queue("group", "orders", 3, self.topic_settings)

    # -- the shell ----------------------------------------------------------------------------------------------------

    def ask(self, request: Request[Any]) -> Any:
        answers: list[Any] = []
        before = dump(self.queue) if not self.queue.is_forgettable else None
        outcome = self.queue.handle(request, self.now, answers.append)
        if before is not None:
            assert dump(self.queue) == before, "deciding changed something"
        assert len(outcome.changes) <= 1
        self.write(outcome.changes, outcome.producer)
        for reply, what in outcome.replies:
            reply(what)
        (answer,) = answers
        return answer

    def write(self, changes: list[Any], producer: ProducerIdentity | None = None) -> None:
        for change in changes:
            record = to_record(change, len(self.log), self.now)
            self.log.append(record)
            if producer is not None:
                self.holders[record.offset] = producer.producer_id
                self.queue.hold(change, self.now, producer.producer_id)
            else:
                self.queue.apply(change, self.now, self.now)
            for reader in self.readers():
                self.replay(reader, record)

    def readers(self) -> list[Queue]:
        """Those who know nothing but the log."""
        return [self.from_begin] if self.from_snapshot is self.from_begin else [self.from_begin, self.from_snapshot]

    def replay(self, queue: Queue, record: Any) -> None:
        if record.offset in self.holders:
            queue.hold(from_record(record), record.timestamp, self.holders[record.offset])
        else:
            queue.apply(from_record(record), record.timestamp)

    def look(self, limit: int) -> None:
        while (wanted := self.queue.unseen(limit, self.twin.end)) is not None:
            seen = self.twin.messages[wanted.first : wanted.last + 1]
            runs = [LabelRun(1, message["lane"], message["key"]) for message in seen]
            self.queue.see(wanted.first, [message["key"] for message in seen], runs)

    @rule(keys=st.lists(keys, min_size=1, max_size=12), lanes=lanes_of_each)
    def publish(self, keys: list[int | None], lanes: list[int]) -> None:
        for at, key in enumerate(keys):
            self.twin.publish(key, lanes[at % len(lanes)])

    # -- consumers ----------------------------------------------------------------------------------------------------

    @rule(consumer=consumers, limit=st.integers(1, 20), timeout=st.sampled_from([None, 1, 700, 90_000]), fits=reaches)
    def receive(self, consumer: str, limit: int, timeout: int | None, fits: int) -> None:
        self.look(limit)
        offered = self.queue.offer(consumer, limit, self.twin.end, self.now)
        self.twin.check_offer(expand(offered), consumer, limit, self.now)
        assert offered == self.queue.offer(consumer, limit, self.twin.end, self.now)
        kept: list[OfferedSpan] = []
        for each in offered:
            if fits > 0:
                kept.append(each._replace(last=min(each.last, each.first + fits - 1)))
            fits -= each.size
        granted: GrantedLease = self.ask(GrantLease(consumer=consumer, offered=kept, visibility_timeout_ms=timeout))
        assert list(granted.deliveries) == kept
        assert granted.until_ms == self.now + (timeout or 30_000)
        for each in granted.deliveries:
            for offset in range(each.first, each.last + 1):
                self.twin.lease(offset, each.delivery_count, granted.nonce, granted.until_ms, consumer)
            self.receipts.append(Receipt("orders", 3, each.first, each.last, each.delivery_count, granted.nonce))

    @rule(consumer=consumers, limit=st.integers(1, 20))
    def receive_all(self, consumer: str, limit: int) -> None:
        if self.queue.is_paused:
            self.pause(False)
        self.receive(consumer, limit, None, limit)

    @rule(consumer=consumers, limit=st.integers(1, 20))
    def fail_all(self, consumer: str, limit: int) -> None:
        before = len(self.receipts)
        self.receive_all(consumer, limit)
        for offset in self.judge(NackDeliveries(self.receipts[before:], 0)):
            self.twin.fail(offset, self.now, 0, GAVE_UP)

    @rule(consumer=consumers, first=reaches, size=reaches, count=st.integers(1, 3))
    def take_what_was_not_offered(self, consumer: str, first: int, size: int, count: int) -> None:
        """An offer that is long out of date; nothing of it may be given unless it could be offered now."""
        first += self.queue.committed
        last = min(first + size, self.twin.end - 1)
        if first > last:
            return
        self.look(1_000)
        could = dict(self.twin.free(self.now))
        room = self.twin.room(consumer)
        granted: GrantedLease = self.ask(GrantLease(consumer=consumer, offered=[OfferedSpan(first, last, count)] * 2))
        given = expand(list(granted.deliveries))
        assert len(given) <= room
        for offset, number in given:
            assert could[offset] == number
            self.twin.lease(offset, number, granted.nonce, granted.until_ms, consumer)
            self.receipts.append(Receipt("orders", 3, offset, offset, number, granted.nonce))

    def pick(self, picks: list[int], begin: int, reach: int) -> list[Receipt]:
        """Receipts of old and new, some for a part of what they were given for, as they come back over the wire."""
        chosen: list[Receipt] = []
        for pick in picks:
            if not self.receipts:
                break
            receipt = self.receipts[-1 - pick % min(len(self.receipts), 30)]
            first = min(receipt.first + begin, receipt.last)
            part = receipt._replace(first=first, last=min(first + reach, receipt.last))
            again = parse_receipt(str(part))
            assert again == part
            chosen.append(part)
        return chosen

    def judge(self, request: Any) -> list[int]:
        """Ask, compare what became of each message with what should, and return the offsets it was done for."""
        asks_for: int | str | None = "more time" if isinstance(request, ExtendLeases) else None
        if isinstance(request, AckDeliveries) and request.producer is not None:
            asks_for = request.producer.producer_id
        expected = [
            [
                (offset, self.twin.fate(offset, each.delivery_count, each.nonce, each.nonce != FORGED, asks_for))
                for offset in range(each.first, each.last + 1)
            ]
            for each in request.receipts
        ]
        judged: JudgedReceipts = self.ask(request)
        answered = [
            [(offset, part.fate) for part in parts for offset in range(part.first, part.last + 1)]
            for parts in judged.receipts
        ]
        done = [offset for fates in answered for offset, fate in fates if fate is ReceiptOutcome.DONE]
        if asks_for is None:
            assert len(set(done)) == len(done), "what is named twice is done once"
        as_one = [
            [
                (offset, ReceiptOutcome.DONE if fate is ReceiptOutcome.REPEATED and offset in done else fate)
                for offset, fate in fates
            ]
            for fates in answered
        ]
        assert as_one == expected
        return done

    @precondition(lambda self: bool(self.receipts))
    @rule(picks=picks, begin=reaches, reach=reaches)
    def ack(self, picks: list[int], begin: int, reach: int) -> None:
        for offset in self.judge(AckDeliveries(self.pick(picks, begin, reach))):
            self.twin.ack(offset)

    @precondition(lambda self: bool(self.receipts))
    @rule(picks=picks, begin=reaches)
    def ack_one_by_one(self, picks: list[int], begin: int) -> None:
        whole = self.pick(picks, begin, 12)
        single = [each._replace(first=at, last=at) for each in whole for at in range(each.first, each.last + 1)]
        for offset in self.judge(AckDeliveries(single)):
            self.twin.ack(offset)

    @precondition(lambda self: bool(self.receipts))
    @rule(
        picks=picks,
        begin=reaches,
        reach=reaches,
        delay=st.sampled_from([None, 0, 1, 5_000]),
        why=st.sampled_from(["", "no"]),
    )
    def nack(self, picks: list[int], begin: int, reach: int, delay: int | None, why: str) -> None:
        for offset in self.judge(NackDeliveries(self.pick(picks, begin, reach), delay, why)):
            self.twin.fail(offset, self.now, delay, why or GAVE_UP)

    @precondition(lambda self: bool(self.receipts))
    @rule(picks=picks, begin=reaches, reach=reaches)
    def reject(self, picks: list[int], begin: int, reach: int) -> None:
        for offset in self.judge(RejectDeliveries(self.pick(picks, begin, reach), "bad")):
            self.twin.bury(offset, "bad")

    @precondition(lambda self: bool(self.receipts))
    @rule(picks=picks, begin=reaches, reach=reaches)
    def release(self, picks: list[int], begin: int, reach: int) -> None:
        for offset in self.judge(ReleaseDeliveries(self.pick(picks, begin, reach))):
            self.twin.release(offset, self.now)

    # -- transactions -------------------------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.receipts))
    @rule(picks=picks, begin=reaches, reach=reaches, producer=st.sampled_from(PRODUCERS))
    def ack_in_transaction(self, picks: list[int], begin: int, reach: int, producer: int) -> None:
        request = AckDeliveries(self.pick(picks, begin, reach), ProducerIdentity(producer, 0))
        for offset in self.judge(request):
            self.twin.messages[offset]["held"] = producer
        before = len(self.log)
        self.judge(request)
        assert len(self.log) == before, "acking again in the same transaction changes nothing"

    @rule(consumer=consumers, limit=st.integers(1, 20), producer=st.sampled_from(PRODUCERS))
    def work_in_transaction(self, consumer: str, limit: int, producer: int) -> None:
        before = len(self.receipts)
        self.receive_all(consumer, limit)
        for offset in self.judge(AckDeliveries(self.receipts[before:], ProducerIdentity(producer, 0))):
            self.twin.messages[offset]["held"] = producer

    @rule(producer=st.sampled_from(PRODUCERS), is_commit=st.booleans())
    def end_transaction(self, producer: int, is_commit: bool) -> None:
        held = sum(message["held"] == producer for message in self.twin.messages)
        event = self.queue.end_transaction(producer, is_commit=is_commit)
        assert (event is not None) == (is_commit and held > 0)
        assert producer not in self.queue.producers_held()
        self.ends.setdefault(len(self.log), []).append((producer, is_commit))
        for reader in self.readers():
            reader.end_transaction(producer, is_commit=is_commit)
        self.twin.end_transaction(producer, is_commit)

    @precondition(lambda self: bool(self.receipts))
    @rule(picks=picks, begin=reaches, reach=reaches, timeout=st.sampled_from([None, 1, 2_000, 4_000_000]))
    def extend(self, picks: list[int], begin: int, reach: int, timeout: int | None) -> None:
        for offset in self.judge(ExtendLeases(self.pick(picks, begin, reach), timeout)):
            self.twin.messages[offset]["until"] = self.now + (timeout or 30_000)

    @precondition(lambda self: bool(self.receipts))
    @rule(picks=picks, count=st.integers(1, 4))
    def tamper(self, picks: list[int], count: int) -> None:
        honest = self.pick(picks, 0, 12)
        self.judge(AckDeliveries([each._replace(nonce=FORGED) for each in honest]))
        for offset in self.judge(AckDeliveries([each._replace(delivery_count=count) for each in honest])):
            self.twin.ack(offset)  # it was right after all
        judged: JudgedReceipts = self.ask(AckDeliveries([each._replace(partition=4) for each in honest]))
        assert all(part.fate is ReceiptOutcome.FOREIGN for parts in judged.receipts for part in parts)

    # -- time ---------------------------------------------------------------------------------------------------------

    @rule(by=st.sampled_from([1, 500, 1_000, 2_000, 30_000, 90_000, 5_000_000]))
    def wait(self, by: int) -> None:
        self.now += by
        self.tick()

    @rule(by=st.sampled_from([1, 1_000, 30_000]))
    def stall(self, by: int) -> None:
        """Time passes and nobody looks at the clock: leases stay until somebody does."""
        self.now += by

    @rule()
    def tick(self) -> None:
        while changes := self.queue.tick(self.now).changes:
            self.write(changes)
        self.twin.expire(self.now, EXPIRED)
        assert self.queue.wake_ms > self.now
        times = [m["until"] for m in self.twin.all("leased") if m["held"] is None]
        times += [m["due"] for m in self.twin.all("waiting") if m["due"] > self.now]
        assert self.queue.wake_ms <= min(times, default=float("inf"))

    # -- the group ----------------------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 5))
    def write_dead_letters(self, limit: int) -> None:
        work = self.queue.dead_letters(limit)
        for each in work:
            for offset in range(each.first, each.last + 1):
                message = self.twin.messages[offset]
                assert (message["state"], message["count"], message["reason"]) == ("dying", each.tries, each.reason)
        self.check_sequences(work)
        ids = {each.id for each in work}
        everything = self.queue.dead_letters(10_000)
        self.ask(ConfirmDeadLetters([*ids, *ids, 999_999]))
        for each in everything:
            for offset in range(each.first, each.last + 1) if each.id in ids else ():
                self.twin.ack(offset)

    def check_sequences(self, work: list[PendingDeadLetter]) -> None:
        """A sequence names one message for ever, so that what is written twice is recognised; letters come by it."""
        if self.queue.producer is None:
            return
        sequences: list[int] = []
        for each in work:
            for sequence, offset in enumerate(range(each.first, each.last + 1), each.sequence):
                sequences.append(sequence)
                at = (self.queue.producer.producer_id, sequence)
                assert self.letters.setdefault(at, (self.moves, offset)) == (self.moves, offset)
        assert sequences == sorted(set(sequences))

    @rule()
    def assign_producer(self) -> None:
        before = [offset for each in self.queue.dead_letters(10_000) for offset in range(each.first, each.last + 1)]
        self.producers += 1
        self.ask(AssignDeadLetterProducer(ProducerIdentity(self.producers, 0)))
        letters = self.queue.dead_letters(10_000)
        after = [offset for each in letters for offset in range(each.first, each.last + 1)]
        assert sorted(after) == sorted(before)
        assert len({each.id for each in letters}) == len(letters), "no letter comes in pieces"
        next_sequence = 0
        for each in letters:
            assert each.sequence == next_sequence, "no sequence is left out"
            next_sequence += each.last - each.first + 1
        self.check_sequences(letters)

    @rule(chance=st.integers(0, 9), first=reaches, size=reaches)
    def skip(self, chance: int, first: int, size: int) -> None:
        if chance < 5:
            return
        first += max(0, self.queue.committed - 3)
        last = min(first + size, self.twin.end - 1)
        if first <= last:
            self.ask(SkipGaps([Interval(first, last), Interval(first, first)]))
            for offset in range(max(first, self.twin.start), last + 1):
                self.twin.messages[offset].update(state="acked", held=None)

    @rule(chance=st.integers(0, 9), ahead=st.integers(-3, 6))
    def trim(self, chance: int, ahead: int) -> None:
        if chance < 7:
            return
        start = min(max(0, self.queue.committed + ahead), self.twin.end)
        self.ask(TrimBefore(start))
        self.twin.finish_before(start)

    @rule(is_paused=st.booleans(), reason=st.sampled_from(["", "too many failures"]))
    def pause(self, is_paused: bool, reason: str = "") -> None:
        self.ask(PauseQueue(is_paused, reason))
        self.twin.is_paused = is_paused
        self.twin.pause_reason = reason if is_paused else ""

    @rule(
        values=st.fixed_dictionaries(
            {},
            optional={
                "tries": st.sampled_from(["0", "1", "3"]),
                "order": st.sampled_from(["none", "key"]),
                "lanes": st.sampled_from(["off", "on"]),
                "lane.weights": st.sampled_from(["50,25,15,7,3", "1,1,1,1,1"]),
                "fair.by": st.sampled_from(["", "key"]),
                "in.flight.consumer.max": st.sampled_from(["3", "1000"]),
                "retry.base.ms": st.sampled_from(["1", "1000"]),
            },
        )
    )
    def configure_group(self, values: dict[str, str]) -> None:
        self.ask(ConfigureQueue(values))
        assert self.queue.own_settings == values
        self.twin.settings = self.topic_settings.with_values(values)
        assert self.queue.settings == self.twin.settings

    @rule(tries=st.sampled_from([0, 2, 3]))
    def configure_topic(self, tries: int) -> None:
        """The topic's settings are nothing that a queue writes down: every reader is told of them."""
        self.topic_settings = replace(self.topic_settings, tries=tries)
        for queue in (self.queue, *self.readers()):
            queue.configure(self.topic_settings)
        self.twin.settings = self.topic_settings.with_values(self.queue.own_settings)

    @rule(chance=st.integers(0, 9), share=st.floats(0, 1))
    def seek(self, chance: int, share: float) -> None:
        if chance > 6:
            offset = int(self.twin.end * share)
            self.ask(SeekQueue(offset))
            self.twin.seek(offset)
            self.moves += 1

    @rule(chance=st.integers(0, 9))
    def purge(self, chance: int) -> None:
        if chance == 9:
            self.ask(PurgeBefore(self.twin.end))
            self.twin.finish_before(self.twin.end)

    # -- faults -------------------------------------------------------------------------------------------------------

    @rule(picks=picks, by=st.sampled_from([0, 1, 1_000, 30_000]))
    def refuse_to_write(self, picks: list[int], by: int) -> None:
        """The disk is full: what was decided did not happen."""
        self.now += by
        self.queue.handle(NackDeliveries(self.pick(picks, 0, 12)), self.now, lambda _: None)
        self.queue.tick(self.now)
        self.queue.offer("ann", 10, self.twin.end, self.now)

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot_at = len(self.log)
        self.write([self.queue.snapshot()])
        self.from_snapshot = self.read(self.snapshot_at)

    def read(self, begin: int) -> Queue:
        queue = self.new_queue()
        for record in self.log[begin:]:
            for end in self.ends.get(record.offset, ()) if record.offset > begin else ():
                queue.end_transaction(end[0], is_commit=end[1])
            self.replay(queue, record)
        for end in self.ends.get(len(self.log), ()):
            queue.end_transaction(end[0], is_commit=end[1])
        return queue

    @rule(share=st.floats(0, 1))
    def fail_over(self, share: float) -> None:
        """The log may begin anywhere before the last snapshot: others need more of it, and then nobody cuts it."""
        self.queue = self.read(int(self.snapshot_at * share))
        self.queue.resume(self.now)

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def the_log_tells_the_same_story(self) -> None:
        if getattr(self, "queue", None):
            assert dump(self.from_begin) == dump(self.queue)
            assert dump(self.from_snapshot) == dump(self.queue)

    @invariant()
    def the_twin_agrees(self) -> None:
        if not getattr(self, "queue", None):
            return
        stats = self.queue.stats(self.twin.end)
        assert stats.committed == self.twin.committed_or(self.twin.end)
        assert stats.in_flight == len(self.twin.all("leased"))
        assert stats.waiting == len(self.twin.all("waiting"))
        assert stats.dying == len(self.twin.all("dying"))
        assert stats.ready == len(self.twin.all("ready"))
        assert (stats.is_paused, stats.pause_reason) == (self.twin.is_paused, self.twin.pause_reason)
        assert stats.oldest == (stats.committed if stats.committed < self.twin.end else None)
        for name in CONSUMERS:
            assert self.queue.held_by(name) == sum(m["consumer"] == name for m in self.twin.all("leased"))
        offsets = [offset for each in self.queue.dead_letters(10_000) for offset in range(each.first, each.last + 1)]
        assert sorted(offsets) == [m["offset"] for m in self.twin.all("dying")]

    def teardown(self) -> None:
        """Nothing is lost: with patience, every message is acked or becomes a dead letter."""
        if not getattr(self, "queue", None):
            return
        self.pause(False)
        for producer in PRODUCERS:
            self.end_transaction(producer, is_commit=producer == PRODUCERS[0])
        for _ in range(10 * self.twin.end + 10):
            self.write_dead_letters(1_000)
            self.look(1_000)
            offered = self.queue.offer("ann", 1_000, self.twin.end, self.now)
            if offered:
                granted = self.ask(GrantLease(consumer="ann", offered=offered))
                self.ask(AckDeliveries([Receipt("orders", 3, *each, granted.nonce) for each in granted.deliveries]))
            elif self.queue.committed >= self.twin.end:
                break
            else:
                self.now += 100_000
                self.tick()
            for offset, _ in expand(offered):
                self.twin.ack(offset)
        assert self.queue.committed >= self.twin.end, "a message was lost"
        assert self.queue.row_count == 0, "something is remembered of what is done"


QUICK = settings(max_examples=25, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=400, stateful_step_count=250, deadline=None, suppress_health_check=list(HealthCheck))


def test_a_queue_does_as_its_twin() -> None:
    run_state_machine_as_test(QueueMachine, settings=QUICK)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_queue_does_as_its_twin_for_long() -> None:
    run_state_machine_as_test(QueueMachine, settings=LONG)
