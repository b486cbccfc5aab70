"""What workers of queues were handed, asked for and told, and whether that is what a queue promises.

Judged in the moment in which somebody hears of it:

- *acked messages never return*: once an ack was answered with "done", no later lease holds the message;
- *one lease at a time*: nobody is handed a message while another lease on it lasts, as far as its holder can know: it
  lasts at least as long as was asked for, counted from before it was asked for, unless its holder asked to end it;
- *leases last*: no receipt of such a lease is refused as over;
- *tries are counted*: a later delivery of a message has a higher count, unless the earlier one was released.

A queue does not promise a lease against everything, so two cases are left out. A lease is not synced: it may be lost
when as many nodes lose their power as have to have a copy, or when one of them does and leads afterwards, because
nobody else can be reached. And it is measured by the clock of whoever leads: where
clocks have jumped, only leases of one leader are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.leases import PartitionLease
from penstock.model import queue_parent, queue_state_topic
from sim.cluster.history import Place

if TYPE_CHECKING:
    from sim.cluster.simulation import Simulation

_HASH_DIGITS: Final = 16  # of a receipt's nonce; what is before them is the number of the lease
_TICK_S: Final = 0.002  # clocks count whole milliseconds
_OVER: Final = (ReceiptOutcome.LEASE_OVER, ReceiptOutcome.REDELIVERED)
_FORGED: Final = (ReceiptOutcome.UNKNOWN, ReceiptOutcome.FOREIGN, ReceiptOutcome.MALFORMED)


@dataclass(slots=True, eq=False)
class Delivery:
    """A message as one worker got it."""

    group: str
    place: Place
    offset: int
    value: bytes
    receipt: str
    lease: int  # its number: later leases of a queue have higher ones
    count: int
    asked_s: float
    told_s: float
    until_s: float  # it lasts until then at least
    epoch: int  # of the companion's leader when it was asked for
    ended_s: float | None = None  # since when its holder wants it to be over
    is_released: bool = False  # its holder wants that it does not count
    transaction: str | None = None  # in which it was acked


@dataclass(slots=True)
class Account:
    """All that is known of one message in one group."""

    deliveries: list[Delivery] = field(default_factory=list)
    finish_asked_s: float | None = None  # the first ack, reject or commit
    acked: Delivery | None = None  # by which it was acked for certain
    acked_s: float = inf  # since when that is known
    is_ack_unknown: bool = False  # somebody acked it and was not answered
    has_ack_asked: bool = False
    is_reject_asked: bool = False
    transactions: list[str] = field(default_factory=list)  # in which it was acked


class Ledger:
    """Accounts by group, partition and offset."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._history = simulation.history
        self.accounts: dict[tuple[str, Place, int], Account] = {}
        self.in_transaction: dict[str, list[Delivery]] = {}
        self._losses: list[tuple[float, int]] = []  # when which node lost what it had not synced
        self._led_after: dict[Place, float] = {}  # the last loss of anybody who led a place after it

    def now_s(self) -> float:
        return self._simulation.loop.time()

    def epoch(self, place: Place) -> int:
        """Of who leads the queues of a partition, as the latest metadata says."""
        found = self._simulation.oracles.find_assigned((queue_state_topic(place[0]), place[1]))
        return -1 if found is None else found.leader_epoch

    def lose(self, node_id: int) -> None:
        """A node has lost what it had not synced."""
        self._losses.append((self.now_s(), node_id))

    def lead(self, topic: str, partition: int, leader: int) -> None:
        """A partition has a leader, as the metadata says from now on."""
        parent = queue_parent(topic)
        if parent is None:
            return
        for at_s, node_id in self._losses:
            if node_id == leader:
                self._led_after[parent, partition] = at_s

    # -- what workers are told ----------------------------------------------------------------------------------------

    def deliver(
        self,
        group: str,
        leases: Sequence[PartitionLease],
        asked_s: float,
        timeout_ms: int,
        epoch_of: Callable[[Place], int],
    ) -> list[Delivery]:
        """A worker has received something that it asked for at ``asked_s``."""
        found = []
        for lease in leases:
            place = (lease.topic, lease.partition)
            for message in lease.messages():
                delivery = Delivery(
                    group=group,
                    place=place,
                    offset=message.offset,
                    value=message.value or b"",
                    receipt=message.receipt,
                    lease=int(lease.nonce[:-_HASH_DIGITS], 16),
                    count=message.delivery_count,
                    asked_s=asked_s,
                    told_s=self.now_s(),
                    until_s=asked_s + timeout_ms / 1000 - _TICK_S,
                    epoch=epoch_of(place),
                )
                self._history.see(place, message.offset, delivery.value, is_committed_only=True)
                self._check_delivery(delivery)
                self.account(delivery).deliveries.append(delivery)
                found.append(delivery)
        self._history.count("queue deliveries", len(found))
        return found

    def account(self, delivery: Delivery) -> Account:
        return self.accounts.setdefault((delivery.group, delivery.place, delivery.offset), Account())

    def ask(self, verb: str, deliveries: Sequence[Delivery], *, timeout_ms: int = 0) -> None:
        """A worker is about to say what became of messages."""
        now_s = self.now_s()
        for delivery in deliveries:
            account = self.account(delivery)
            if verb == "extend":
                delivery.until_s = min(delivery.until_s, now_s + timeout_ms / 1000 - _TICK_S)
                continue
            delivery.ended_s = now_s if delivery.ended_s is None else delivery.ended_s
            if verb in ("ack", "reject") and account.finish_asked_s is None:
                account.finish_asked_s = now_s
            delivery.is_released |= verb == "release"
            account.is_reject_asked |= verb == "reject"
            account.has_ack_asked |= verb == "ack"

    def enter(self, transaction: str, deliveries: Sequence[Delivery]) -> None:
        """A worker is about to ack messages in a transaction."""
        self.in_transaction.setdefault(transaction, []).extend(deliveries)
        for delivery in deliveries:
            delivery.transaction = transaction
            account = self.account(delivery)
            account.transactions.append(transaction)

    def ask_commit(self, transaction: str) -> None:
        self.ask("commit", self.in_transaction.get(transaction, ()))
        for delivery in self.in_transaction.get(transaction, ()):
            account = self.account(delivery)
            if account.finish_asked_s is None:
                account.finish_asked_s = self.now_s()

    def tell_committed(self, transaction: str) -> None:
        for delivery in self.in_transaction.get(transaction, ()):
            self._note_acked(delivery)

    def tell_nothing(self, verb: str, deliveries: Sequence[Delivery]) -> None:
        """A worker was not answered: what it asked for may be done, now or in a moment."""
        for delivery in deliveries:
            self.account(delivery).is_ack_unknown |= verb == "ack"

    def tell(self, verb: str, delivery: Delivery, fate: ReceiptOutcome, asked_s: float, *, timeout_ms: int = 0) -> None:
        """A worker was told what became of a receipt that it brought at ``asked_s``."""
        account = self.account(delivery)
        if fate is ReceiptOutcome.DONE and verb == "ack":
            self._note_acked(delivery)
        elif fate is ReceiptOutcome.DONE and verb == "extend":
            delivery.until_s = asked_s + timeout_ms / 1000 - _TICK_S
        elif fate in _OVER:
            self._check_over(verb, delivery, fate, asked_s)
        elif fate is ReceiptOutcome.ALREADY_ACKED:
            account.acked_s = min(account.acked_s, self.now_s())
            account.is_ack_unknown |= verb == "ack"  # this very one may have done it, on a way that was tried twice
        elif fate in _FORGED and self._is_kept(delivery) and self.epoch(delivery.place) == 0:
            # A leader that has not heard of its successor does not know the leases of that one.
            self._history.violate("leases last", f"{delivery} is told to be {fate.value}")

    def _note_acked(self, delivery: Delivery) -> None:
        account = self.account(delivery)
        self._history.acked += 1
        self._history.count("queue acks")
        if account.acked is not None and account.acked.lease != delivery.lease:
            self._history.violate("acked messages never return", f"{account.acked} is acked, and then {delivery}")
        account.acked, account.acked_s = delivery, self.now_s()
        for other in account.deliveries:
            if other.lease > delivery.lease and self._is_kept(delivery) and self._is_kept(other):
                self._history.violate("acked messages never return", f"{delivery} is acked while {other} is leased")

    # -- what is judged -----------------------------------------------------------------------------------------------

    def _check_delivery(self, delivery: Delivery) -> None:
        account = self.account(delivery)
        acked = account.acked
        if delivery.asked_s > account.acked_s or (acked is not None and delivery.lease > acked.lease):
            self._history.violate("acked messages never return", f"it was acked {acked}, and then there is {delivery}")
        for other in account.deliveries:
            is_kept = self._is_kept(other) and self._is_kept(delivery)  # a lease that was lost gives its number away
            if other.lease == delivery.lease:
                if is_kept:
                    self._history.violate("one lease at a time", f"{other} is handed out twice: {delivery}")
                continue
            earlier, later = sorted((other, delivery), key=lambda each: each.lease)
            is_ended = earlier.ended_s is not None and earlier.ended_s <= later.told_s
            if later.told_s < earlier.until_s and not is_ended and is_kept:
                self._history.violate("one lease at a time", f"{earlier} lasts, and then there is {later}")
            if later.count <= earlier.count and not earlier.is_released and is_kept:
                self._history.violate("tries are counted", f"{earlier} counted, and then there is {later}")

    def _check_over(self, verb: str, delivery: Delivery, fate: ReceiptOutcome, asked_s: float) -> None:
        """A receipt was refused because its lease is over. Its holder wanted that, or its time has come.

        What ends a lease may have been done and then asked for once more, on the way; an ack and an extend say so.
        """
        is_mine = verb in ("ack", "extend") and (delivery.ended_s is None or delivery.ended_s >= asked_s)
        now_s = self.now_s()
        if is_mine and now_s < delivery.until_s and self._is_kept(delivery):
            self._history.violate("leases last", f"{delivery} is told to be {fate.value} at {now_s:.3f} s")

    def _is_kept(self, delivery: Delivery) -> bool:
        """Whether nothing has happened since that a lease need not survive."""
        shape = self._simulation.shape
        if self._led_after.get(delivery.place, -inf) >= delivery.asked_s:
            return False
        lost = {node_id for at_s, node_id in self._losses if at_s >= delivery.asked_s}
        if len(lost) >= min(shape.min_insync_replicas, shape.replication_factor):
            return False
        return not self._history.faults.get("clock") or self.epoch(delivery.place) == delivery.epoch
