"""Asking a transaction's coordinator on another node whether a producer may write to partitions of this one.

The answer is on its way for a while, and so may be the marker of an end that was decided after it: if the marker is
here first, the answer no longer holds, and what was to be written would begin a transaction that nobody ends. So every
question remembers the partitions as they were, and one that a marker or a new leadership has overtaken is refused
(KIP-890 guards verification in the same way). Whoever asked may ask again.

A node can believe for a moment that it still coordinates. What it says then is recognised by its epoch, if whoever
coordinates now has ended a transaction of the producer here; and if not, what is written now comes before that end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec

from penstock.errors import ConcurrentTransactions, NotCoordinator, PeerUnavailable, PenstockError
from penstock.features.transactions.messages import Where
from penstock.machines.leaders import Leaders
from penstock.machines.messages import ProducerIdentity, Rejected
from penstock.network.port import Method
from penstock.partitions.partition import Partition

# What is told of partitions: those that are not in the transaction, or that it is refused.
Verdict = Callable[[frozenset[Where] | Rejected], None]

_TIMEOUT_SECONDS: Final = 3.0  # a node that fell silent coordinates nothing any more by then


class Admit(msgspec.Struct, frozen=True):
    """May this producer write to these partitions? If it ``adds``, they are taken into its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    places: tuple[Where, ...]
    adds: bool


class Admitted(msgspec.Struct, frozen=True):
    """Those of the places that are not in the transaction, as of a coordinator's epoch."""

    missing: tuple[Where, ...]
    coordinator_epoch: int


ADMIT: Final = Method("transactions.admit", Admit, Admitted)


class _Question:
    """What was asked, and the partitions as they were when it was."""

    def __init__(self, producer: ProducerIdentity, epochs: dict[Where, int]) -> None:
        self.producer = producer
        self.epochs = epochs  # of leadership, by partition
        self.is_overtaken = False


class Admissions:
    """Questions to coordinators elsewhere that are not answered yet."""

    def __init__(
        self,
        leaders: Leaders,
        find: Callable[[str, int], Partition],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._leaders = leaders
        self._find = find
        self._spawn = spawn
        self._open: dict[tuple[Where, int], list[_Question]] = {}

    def ask(
        self,
        node_id: int,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[Where],
        reply: Verdict,
        *,
        adds: bool,
    ) -> None:
        """Ask a node; ``reply`` is called in a turn in which the answer holds for partitions of this node."""
        places = tuple(sorted(partitions))
        request = Admit(transactional_id, *producer, places, adds)
        question = _Question(producer, {where: self._find(*where).leader_epoch for where in places})
        self._spawn(self._ask(node_id, request, question, reply))

    async def _ask(self, node_id: int, request: Admit, question: _Question, reply: Verdict) -> None:
        answer: frozenset[Where] | Rejected
        for where in question.epochs:
            self._open.setdefault((where, question.producer.producer_id), []).append(question)
        try:
            received = await self._leaders.peers.call(node_id, ADMIT, request, timeout_s=_TIMEOUT_SECONDS)
            admitted: Admitted = received.reply
            check_coordinator(self._find, question.producer, question.epochs, admitted.coordinator_epoch)
            answer = frozenset(admitted.missing)
        except PeerUnavailable as error:
            answer = Rejected(NotCoordinator(error.message))
        except PenstockError as error:
            answer = Rejected(error)
        except asyncio.CancelledError:
            reply(Rejected(NotCoordinator("This node is stopping.")))
            raise
        finally:
            self._forget(question)
        if not isinstance(answer, Rejected) and self._is_overtaken(question):
            answer = Rejected(
                ConcurrentTransactions(f"A transaction of {request.transactional_id!r} ended while it was asked about.")
            )
        reply(answer)

    def on_marker(self, where: Where, producer_id: int) -> None:
        """The end of a transaction was written to a partition: answers that are on their way are too old for it."""
        for question in self._open.get((where, producer_id), ()):
            question.is_overtaken = True

    def _is_overtaken(self, question: _Question) -> bool:
        if question.is_overtaken:
            return True
        for where, epoch in question.epochs.items():
            try:
                partition = self._find(*where)
            except PenstockError:
                continue  # it is gone, and whoever writes to it will hear so
            if partition.is_leader and partition.leader_epoch != epoch:
                return True  # somebody else led meanwhile, and may have written a marker
        return False

    def _forget(self, question: _Question) -> None:
        for where in question.epochs:
            at = (where, question.producer.producer_id)
            questions = self._open[at]
            questions.remove(question)
            if not questions:
                del self._open[at]


def check_coordinator(
    find: Callable[[str, int], Partition], producer: ProducerIdentity, places: Iterable[Where], epoch: int
) -> None:
    """Refuse the word of a coordinator if a later one has ended a transaction of the producer in these partitions."""
    for where in places:
        try:
            known = find(*where).log.producers.coordinator_epoch_of(producer.producer_id)
        except PenstockError:
            continue  # it is gone, and whoever writes to it will hear so
        if known > epoch:
            raise NotCoordinator(
                f"Coordinator epoch {epoch} is over: epoch {known} has ended a transaction in {where[0]}-{where[1]}."
            )
