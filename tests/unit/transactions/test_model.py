"""Random producers, zombies and faults, and a twin that only remembers what everybody was told.

The twin knows no states and no timers. It has partitions, which are lists of records and markers, and remembers for
each transaction what its producer was told. What must never happen: records of one transaction of which some are
committed and some are not, a decision that was told and did not hold, a late request of an old epoch that touches a
later transaction, an answer to somebody who was fenced before asking, a request answered twice or never, records that
stay undecided for ever, a log that tells another story than memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.transactions.journal import MemoryJournal, MemoryMarkers

from penstock.config.settings import TransactionSettings
from penstock.errors import NotCoordinator, PenstockError
from penstock.features.transactions.coordinator import TransactionShard
from penstock.features.transactions.epochs import EPOCH_MAX
from penstock.features.transactions.markers import EndMarker
from penstock.features.transactions.messages import AddToTransaction, End, Init, Terminate, Verify, Where
from penstock.features.transactions.records import StoredTransaction, TransactionChange, TransactionKey
from penstock.features.transactions.states import DECIDED, TransactionState
from penstock.machines.messages import ProducerIdentity, Rejected, Request
from penstock.partitions.stats import TransactionStats

NAMES = ["x", "y"]
CLIENTS = 4  # two for each id: the first speaks the first protocol, the other one the second
PLACES = [("orders", 0), ("orders", 1), ("bills", 0)]
TIMEOUT_MS = 5_000
TICK_MS = 250

clients = st.integers(0, CLIENTS - 1)
places = st.sampled_from(PLACES)


class Entry(NamedTuple):
    """A record of a transaction (``number``), or a marker."""

    producer: ProducerIdentity
    number: int = -1
    is_commit: bool | None = None


class Partition:
    """What a partition does with transactions: data opens one, a marker ends it, an old epoch is refused."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.epochs: dict[int, int] = {}
        self.open: set[int] = set()

    def lacks(self, producer: ProducerIdentity) -> bool:
        is_open = producer.producer_id in self.open
        return not is_open or self.epochs.get(producer.producer_id) != producer.epoch

    def write(self, producer: ProducerIdentity, number: int) -> None:
        if producer.epoch < self.epochs.get(producer.producer_id, 0):
            return  # fenced
        assert producer.producer_id not in self.open or self.epochs[producer.producer_id] == producer.epoch
        self.epochs[producer.producer_id] = producer.epoch
        self.open.add(producer.producer_id)
        self.entries.append(Entry(producer, number))

    def mark(self, marker: EndMarker) -> None:
        producer_id, epoch = marker.producer
        assert epoch >= self.epochs.get(producer_id, 0), "a marker of an epoch that is over"
        self.epochs[producer_id] = epoch
        self.open.discard(producer_id)
        self.entries.append(Entry(marker.producer, is_commit=marker.is_commit))

    def decisions(self, number: int) -> set[bool | None]:
        """What became of a transaction's records here; None for one that is still open."""
        found: set[bool | None] = set()
        for at, entry in enumerate(self.entries):
            if entry.number == number:
                of_producer = (
                    later.is_commit
                    for later in self.entries[at:]
                    if later.is_commit is not None and later.producer.producer_id == entry.producer.producer_id
                )
                found.add(next(of_producer, None))
        return found


@dataclass
class Client:
    """A producer's memory: who it is, and which transaction it is in."""

    name: str
    bumps: bool  # which protocol it speaks
    producer: ProducerIdentity | None = None
    number: int = 0  # of its transaction
    added: set[Where] = field(default_factory=set)
    ending: bool | None = None  # what it asked for and has no answer to
    start: int = 0  # counts everybody's starts, to tell who came later


@settings(
    max_examples=int(os.environ.get("PENSTOCK_EXAMPLES", "50")),
    phases=[Phase.generate],  # shrinking takes minutes; the seed that is printed replays a failure
    print_blob=True,
    report_multiple_bugs=False,
    stateful_step_count=70,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
class TransactionMachine(RuleBasedStateMachine):
    """Plays producers, partitions, the clock and the disk against one shard."""

    @initialize(first_epoch=st.sampled_from([0, EPOCH_MAX - 3]))
    def start(self, first_epoch: int) -> None:
        self.config = TransactionSettings()
        self.journal = MemoryJournal()
        self.now_ms = 0
        self.partitions = {where: Partition() for where in PLACES}
        self.clients = [Client(NAMES[at % 2], bumps=at >= 2) for at in range(CLIENTS)]
        self.unanswered: dict[int, Request[Any]] = {}
        self.asked = self.fresh = self.numbers = self.starts = 0
        self.newest: dict[str, int] = {}  # by id, the last start that was told
        self.told: dict[int, bool] = {}  # by transaction, what its producer was told
        self.late: list[tuple[str, ProducerIdentity, int, Where]] = []  # batches that the network may still deliver
        self.old_ends: list[tuple[str, ProducerIdentity, bool]] = []
        if first_epoch:  # so that epochs run out in some of the runs
            self.fresh = len(NAMES)
            for number, name in enumerate(NAMES):
                aged = StoredTransaction(
                    state=TransactionState.EMPTY,
                    producer_id=number + 1,
                    producer_epoch=first_epoch,
                    timeout_ms=TIMEOUT_MS,
                )
                self.journal.append([TransactionChange(TransactionKey(name), aged)], 0)
        self.open_shard()

    def open_shard(self) -> None:
        stuck = self.markers.stuck if hasattr(self, "markers") else set()
        self.markers = MemoryMarkers(lambda where, marker: self.partitions[where].mark(marker))
        self.markers.stuck = stuck
        self.shard = TransactionShard(
            self.journal,
            self.config,
            self.markers,
            TransactionStats(),
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda work: work(),
            epoch=1,
        )
        self.shard.open(self.shard.read_log())

    def ask(
        self,
        name: str,
        request: Request[Any],
        on_answer: Callable[[Any], None],
        on_error: Callable[[PenstockError], None] = lambda _: None,
    ) -> None:
        self.asked += 1
        number = self.asked
        self.unanswered[number] = request
        shard = self.shard

        def reply(answer: Any) -> None:
            assert shard is self.shard, "an answer came out of a process that is dead"
            assert number in self.unanswered, f"{request} was answered twice"
            del self.unanswered[number]
            if isinstance(answer, Rejected):
                on_error(answer.error)
            else:
                on_answer(answer)

        try:
            self.shard.ask(name, request, reply)
        except PenstockError as error:
            assert number in self.unanswered, "refused and answered"
            del self.unanswered[number]
            on_error(error)

    # -- producers ----------------------------------------------------------------------------------------------------

    @rule(at=clients, goes_on=st.booleans(), is_lost=st.booleans())
    def init(self, at: int, goes_on: bool, is_lost: bool) -> None:
        client = self.clients[at]
        expected = client.producer if goes_on else None
        self.fresh += 1
        self.starts += 1
        start = self.starts
        self.leave_transaction(client)

        def started(producer: ProducerIdentity) -> None:
            self.newest[client.name] = max(start, self.newest.get(client.name, 0))
            if not is_lost:
                client.producer, client.start = producer, start

        request = Init(timeout_ms=TIMEOUT_MS, fresh_producer_id=self.fresh, expected=expected)
        self.ask(client.name, request, started)

    def leave_transaction(self, client: Client) -> None:
        """Whatever was open is somebody else's business now."""
        client.number, client.ending, client.added = 0, None, set()

    def give_up(self, client: Client) -> Callable[[PenstockError], None]:
        def react(error: PenstockError) -> None:
            if not error.retriable:
                self.leave_transaction(client)
                client.producer = None

        return react

    @rule(at=clients, where=places, is_delayed=st.booleans())
    @precondition(lambda self: any(client.producer for client in self.clients))
    def produce(self, at: int, where: Where, is_delayed: bool) -> None:
        """Write to a partition. A batch that is delayed may arrive much later, or never."""
        client = self.clients[at]
        producer = client.producer
        if producer is None or client.ending is not None:
            return
        if not client.number:
            self.numbers += 1
            client.number = self.numbers
        number = client.number
        if client.bumps:
            client.added.add(where)  # as far as it knows: it has sent something there
            self.late.append((client.name, producer, number, where))
            if not is_delayed:
                self.deliver(len(self.late) - 1)
            return

        def added(_: None) -> None:
            if client.producer == producer and client.number == number:
                client.added.add(where)
                self.send(client.name, producer, number, where, adds=False)

        request = AddToTransaction(producer, frozenset({where}))
        self.ask(client.name, request, added, self.give_up(client))

    @rule(
        at=clients,
        wheres=st.lists(places, min_size=1, max_size=3),
        delays=st.integers(0, 3),
        is_commit=st.booleans(),
        is_lost=st.booleans(),
    )
    def work(self, at: int, wheres: list[Where], delays: int, is_commit: bool, is_lost: bool) -> None:
        """A whole transaction, so that there are many of them in one run."""
        if self.clients[at].producer is None:
            self.init(at, goes_on=False, is_lost=False)
        for number, where in enumerate(wheres):
            self.produce(at, where, is_delayed=number == delays)
        self.end(at, is_commit, is_lost)

    @rule(which=st.integers(0, 50))
    @precondition(lambda self: bool(self.late))
    def deliver(self, which: int) -> None:
        name, producer, number, where = self.late.pop(which % len(self.late))
        self.send(name, producer, number, where, adds=True)

    def send(self, name: str, producer: ProducerIdentity, number: int, where: Where, *, adds: bool) -> None:
        """What a partition does with a batch: the coordinator is asked where no transaction is open (KIP-890)."""
        partition = self.partitions[where]
        if not partition.lacks(producer):
            partition.write(producer, number)
            return

        def admitted(missing: frozenset[Where] | None) -> None:
            if not missing:
                partition.write(producer, number)

        places = frozenset({where})
        self.ask(name, AddToTransaction(producer, places) if adds else Verify(producer, places), admitted)

    @rule(at=clients, is_commit=st.booleans(), is_lost=st.booleans())
    def end(self, at: int, is_commit: bool, is_lost: bool) -> None:
        """Commit or abort; whoever got no answer repeats what it asked for."""
        client = self.clients[at]
        producer, number = client.producer, client.number
        if producer is None or not number:
            return
        if client.ending is None:
            client.ending = is_commit
        is_commit = client.ending
        is_zombie = client.start < self.newest.get(client.name, 0)
        if client.bumps:
            self.old_ends.append((client.name, producer, is_commit))

        def ended(successor: ProducerIdentity) -> None:
            assert not is_zombie or not is_commit, "a producer that was fenced has committed"
            if is_lost or client.number != number or client.producer != producer:
                return
            assert self.told.setdefault(number, is_commit) == is_commit
            assert client.bumps or successor == producer
            self.leave_transaction(client)
            client.producer = successor

        self.fresh += 1
        request = End(producer=producer, is_commit=is_commit, bumps=client.bumps, fresh_producer_id=self.fresh)
        self.ask(client.name, request, ended, self.give_up(client))

    @rule(which=st.integers(0, 50))
    @precondition(lambda self: bool(self.old_ends))
    def repeat_an_old_end(self, which: int) -> None:
        """The network delivers an end once more, however late."""
        name, producer, is_commit = self.old_ends[which % len(self.old_ends)]
        machine = self.shard.machines.get(name)
        was_open = machine is not None and machine.state is TransactionState.ONGOING
        is_current = (
            was_open and machine is not None and machine.stored is not None and machine.stored.producer == producer
        )
        self.fresh += 1
        request = End(producer=producer, is_commit=is_commit, bumps=True, fresh_producer_id=self.fresh)
        if is_current:
            return  # the producer itself is about to ask for this
        before = machine.stored if machine is not None else None
        self.ask(name, request, lambda _: None)
        if was_open:
            assert machine is not None
            assert machine.stored == before, "a late end has touched a later transaction"

    @rule(at=st.integers(0, 1))
    def terminate(self, at: int) -> None:
        self.ask(NAMES[at], Terminate(), lambda _: None)

    # -- time and faults ----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 3, 6]))
    def wait(self, seconds: int) -> None:
        end_ms = self.now_ms + seconds * 1_000
        while self.now_ms < end_ms:
            self.now_ms += TICK_MS
            self.shard.tick()

    @rule(where=places)
    def stick(self, where: Where) -> None:
        self.markers.stuck.add(where)

    @rule()
    def free(self) -> None:
        self.markers.stuck.clear()
        self.markers.go_on()

    @rule(is_slow=st.booleans())
    def make_slow(self, is_slow: bool) -> None:
        self.journal.is_slow = is_slow

    @rule()
    def sync_disk(self) -> None:
        if self.journal.failure is None:
            self.journal.commit()

    @rule(is_full=st.booleans())
    def fill_disk(self, is_full: bool) -> None:
        self.journal.is_full = is_full

    @rule()
    @precondition(lambda self: self.journal.is_slow and self.journal.end_offset > self.journal.committed)
    def break_disk(self) -> None:
        self.journal.fail()
        assert not self.unanswered, "the shard closed and left somebody waiting"
        assert not self.shard.is_ready

    @rule()
    def crash(self) -> None:
        self.journal.crash()
        self.unanswered.clear()  # the connections are gone
        self.open_shard()

    @rule()
    def hand_over(self) -> None:
        self.shard.close(NotCoordinator("Somebody else leads."))
        waits_for_disk = self.journal.end_offset > self.journal.committed
        assert waits_for_disk or not self.unanswered, "the shard closed and left somebody waiting"
        self.crash()

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def the_log_tells_the_same_story(self) -> None:
        if not getattr(self, "shard", None) or not self.shard.is_ready:
            return
        twin = {name: machine.stored for name, machine in self.shard.read_log().items()}
        assert twin == {name: machine.stored for name, machine in self.shard.machines.items()}

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if not getattr(self, "shard", None) or not self.shard.is_ready:
            return
        if self.journal.committed == self.journal.end_offset and self.unanswered:
            assert any(machine.state in DECIDED for machine in self.shard.machines.values()), self.unanswered

    @invariant()
    def decisions_hold(self) -> None:
        """Told is told, and no transaction is half committed."""
        for number in range(1, getattr(self, "numbers", 0) + 1):
            found = {each for partition in self.partitions.values() for each in partition.decisions(number)}
            assert not {True, False} <= found, "a transaction is half committed"
            if number in self.told:
                assert found <= {self.told[number], None}, "a producer was told something else"

    def teardown(self) -> None:
        """With a working disk everything is decided before long, and stays so."""
        if not getattr(self, "shard", None):
            return
        self.free()
        self.journal.is_full = False
        self.crash()
        self.wait(TIMEOUT_MS // 1_000 + 2)
        self.decisions_hold()
        assert not self.unanswered
        for where, partition in self.partitions.items():
            assert not partition.open, f"{where} has records that nobody will decide on"
        for machine in self.shard.machines.values():
            assert not machine.is_open


TestTransactions = TransactionMachine.TestCase
