"""What has to be true of queues when all is calm and every group has been worked off.

- *no queued message is lost*: whatever a reader of committed data can see was acked or is a dead letter, in each group;
- *dead letters are written once*: and only of messages that were rejected, or delivered as often as they may be;
- *acked messages never return*, not as dead letters either;
- *priorities are kept*: a dead letter has that of its message;
- *ack and publish are one*: a message that was acked in a transaction has the result of that one, and of no other;
- *keys keep their order*: nobody was handed a message before all earlier ones of its key were done with, as far as the
  workers can know: somebody had asked for that, or it is a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.features.dead_letters.letters import DeadLetterOrigin, origin_of
from penstock.partitions.partition import Partition
from penstock.priorities import priority_of
from penstock.records import decode_records, parse_header
from sim.cluster.history import Place
from sim.cluster.ledger import Account
from sim.cluster.queue_shape import KEYED

if TYPE_CHECKING:
    from sim.cluster.simulation import Simulation


class Kept(NamedTuple):
    """A message in a log."""

    key: bytes | None
    value: bytes
    origin: DeadLetterOrigin
    priority: str


class QueueOracles:
    """Looks at the logs and at the workers' ledger, at the end."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._history = simulation.history
        self._ledger = simulation.ledger

    def check(self) -> None:
        shape = self._simulation.shape
        if shape.queue is None:
            return
        visible = self._simulation.visible_values()
        letters = self._dead_letters()
        self._history.count("histories with queues")
        self._history.count("histories with lanes", int(shape.queue.has_lanes))
        self._history.count("dead letters", sum(map(len, letters.values())))
        for group in shape.queue.groups:
            for place in shape.places:
                messages = {at: kept for at, kept in self._contents(place) if kept.value in visible}
                self._check_messages(group, place, messages, letters)
                if group == KEYED:
                    self._check_keys(group, place, messages, letters)
        for (group, place, offset), found in letters.items():
            if len(found) > 1:
                self._violate("dead letters are written once", group, place, offset, f"is there {len(found)} times")

    def _violate(self, invariant: str, group: str, place: Place, offset: int, what: str) -> None:
        account = self._ledger.accounts.get((group, place, offset))
        self._history.violate(invariant, f"{place} {offset} of group {group} {what}; known is {account}")

    # -- each message -------------------------------------------------------------------------------------------------

    def _check_messages(
        self, group: str, place: Place, messages: dict[int, Kept], letters: dict[tuple[str, Place, int], list[Kept]]
    ) -> None:
        for offset, kept in messages.items():
            account = self._ledger.accounts.get((group, place, offset), Account())
            dead = letters.get((group, place, offset), [])
            results = [name for name in account.transactions if self._has_result(name)]
            is_acked = account.acked is not None and account.acked.transaction not in results
            if dead:
                self._check_dead(group, place, offset, account, dead[0], kept)
            if not dead and not is_acked and not account.is_ack_unknown and not results:
                is_half = bool(account.transactions) and account.finish_asked_s is not None
                self._violate(
                    "ack and publish are one" if is_half else "no queued message is lost",
                    *(group, place, offset),
                    f"{kept.value!r} is neither acked nor a dead letter",
                )
            if len(results) > 1 or (results and (is_acked or dead)):
                self._violate("ack and publish are one", group, place, offset, f"has results of {results}, and more")
            last = max((each.lease for each in account.deliveries if each.transaction in results), default=None)
            if last is not None and any(each.lease > last for each in account.deliveries):
                self._violate("ack and publish are one", group, place, offset, f"came again after {results}")

    def _has_result(self, transaction: str) -> bool:
        """Whether what was published in a transaction can be seen."""
        fate = self._history.transactions.get(transaction)
        visible = self._simulation.visible_values()
        return fate is not None and any(value in visible for value in fate.values)

    def _check_dead(self, group: str, place: Place, offset: int, account: Account, dead: Kept, message: Kept) -> None:
        queue = self._simulation.shape.queue
        assert queue is not None
        if account.acked is not None:
            self._violate("acked messages never return", group, place, offset, "was acked and is a dead letter")
        if (dead.key, dead.value) != (message.key, message.value):
            self._violate("dead letters are written once", group, place, offset, f"{message} is {dead}")
        if dead.priority != message.priority:
            self._violate("priorities are kept", group, place, offset, f"{message} is {dead}")
        if not account.is_reject_asked and (dead.origin.tries or 0) < queue.tries:
            self._violate("dead letters are written once", group, place, offset, f"had more tries than {dead.origin}")

    # -- order --------------------------------------------------------------------------------------------------------

    def _check_keys(
        self, group: str, place: Place, messages: dict[int, Kept], letters: dict[tuple[str, Place, int], list[Kept]]
    ) -> None:
        done_s: dict[bytes, float] = {}  # when the last message of a key was done with, at the earliest
        for offset, kept in sorted(messages.items()):
            account = self._ledger.accounts.get((group, place, offset))
            if kept.key is None or account is None:
                continue
            told_s = min((each.told_s for each in account.deliveries), default=None)
            before_s = done_s.get(kept.key, 0.0)
            if told_s is not None and told_s < before_s:
                what = f"was delivered at {told_s:.3f} s, and one before it with its key ended at {before_s:.3f} s"
                self._violate("keys keep their order", group, place, offset, what)
            is_dead_by_tries = (group, place, offset) in letters and not account.is_reject_asked
            ended_s = account.finish_asked_s if account.acked is None else account.acked.ended_s
            if not is_dead_by_tries and ended_s is not None:
                done_s[kept.key] = max(before_s, ended_s)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def _dead_letters(self) -> dict[tuple[str, Place, int], list[Kept]]:
        found: dict[tuple[str, Place, int], list[Kept]] = {}
        for topic in dict.fromkeys(topic for topic, _ in self._simulation.shape.places):
            for place in self._simulation.all_places():
                if place[0] != f"{topic}.dlq":
                    continue
                for _, kept in self._contents(place):
                    origin = kept.origin
                    where = (origin.topic or "", origin.partition or 0)
                    found.setdefault((origin.group or "", where, origin.offset or 0), []).append(kept)
        return found

    def _contents(self, place: Place) -> Iterator[tuple[int, Kept]]:
        for _, broker in self._simulation.members():
            if broker.replicas.has(*place) and broker.replicas.get(*place).is_leader:
                yield from _records(broker.replicas.get(*place))
                return


def _records(partition: Partition) -> Iterator[tuple[int, Kept]]:
    log = partition.log
    for piece in log.good_batches(log.start_offset):
        data = piece.read()
        if not parse_header(data).is_control:
            for record in decode_records(data):
                priority = priority_of(record.headers)
                yield record.offset, Kept(record.key, record.value or b"", origin_of(record.headers), priority)
