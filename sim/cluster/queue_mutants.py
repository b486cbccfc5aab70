"""Known bugs of queues. The seeds and the stories have to catch them."""

from __future__ import annotations

from typing import Final

from sim.planting import Mutant

_BURIAL: Final = "penstock.features.dead_letters.writer"
_CLAIMS: Final = "penstock.features.queues.core.queue"
_COORDINATOR: Final = "penstock.features.queues.leading.shard"
_DELIVERIES: Final = "penstock.features.queues.core.deliveries"
_DELIVERING: Final = "penstock.features.queues.leading.serving"
_JOURNAL: Final = "penstock.features.queues.leading.shard"
_QUEUE: Final = "penstock.features.queues.core.queue"
_SHARD: Final = "penstock.machines.shard"
_SNAPSHOTS: Final = "penstock.features.queues.core.state"
_SOURCES: Final = "penstock.features.queues.leading.sources"
_STEADY: Final = "penstock.machines.clocks"
_UNDECIDED: Final = "penstock.machines.shard"
_UPKEEP: Final = "penstock.features.queues.leading.shard"

LEASES: Final = (
    Mutant(
        "a lease is told before it is committed",
        _DELIVERING,
        "        granted = await shard.request(group, grant, lambda unseen: take_back(shard, group, unseen))\n",
        "        _, outcome = shard.decide(group, grant, lambda _: None)\n"
        "        granted = outcome.replies[0][1]\n"
        "        shard.perform([(queue, outcome)])\n",
    ),
    Mutant(
        "an ack is told before it is committed",
        _SHARD,
        "            until = max(self.written_to(machine) for machine, _ in decisions)\n",
        "            until = 0\n",
    ),
    Mutant(
        "acks are not synced",
        _JOURNAL,
        "        return event.cause is EndCause.EXPIRY and not event.dying",
        "        return True",
    ),
    Mutant(
        "acks are forgotten by a new leader",
        _UNDECIDED,
        "            if entry.producer_id < 0:\n",
        '            if getattr(getattr(entry.change, "event", None), "acked", None) and len(machines) > 0:\n'
        "                continue\n"
        "            if entry.producer_id < 0:\n",
    ),
    Mutant(
        "leases are forgotten by a new leader",
        _UNDECIDED,
        "            if entry.producer_id < 0:\n",
        '            if type(getattr(entry.change, "event", None)).__name__ == "LeaseGranted":\n'
        "                continue\n"
        "            if entry.producer_id < 0:\n",
    ),
    Mutant(
        "expiry ignores an extension",
        _DELIVERIES,
        "            facts = facts_of(LEASED, row.deliveries, row.number, until_ms, row.consumer)\n",
        "            facts = facts_of(LEASED, row.deliveries, row.number, row.time_ms, row.consumer)\n",
    ),
    Mutant(
        "leases are measured by a clock that jumps",
        _STEADY,
        "return self._began_ms + int((self._clock.monotonic() - self._began) * 1000)",
        "return self._clock.now_ms()",
    ),
    Mutant(
        "any receipt of a message will do",
        _CLAIMS,
        "if row.kind == LEASED and row.number == lease and row.deliveries == receipt.delivery_count:",
        "if row.kind == LEASED:",
    ),
    Mutant(
        "what is leased may be leased again",
        _DELIVERIES,
        "            self.supply.on_leased(first, last)\n",
        "            self.supply.on_leased(first, last)\n            self.supply.on_due(first, last)\n",
    ),
    Mutant(
        "open transactions are handed out",
        _SOURCES,
        "        return Reach(self.partition.log.start_offset, self.partition.last_stable_offset)\n\n"
        "    async def read(self, offset: int, max_bytes: int) -> StoredBatches | None:\n"
        "        partition = self.partition\n"
        "        kept = self._kept.at(offset)\n"
        "        if kept is not None and partition.is_leader:\n"
        "            return StoredBatches(kept, [])\n"
        "        found = partition.read(offset, max_bytes, is_committed_only=True)\n",
        "        return Reach(self.partition.log.start_offset, self.partition.high_watermark)\n\n"
        "    async def read(self, offset: int, max_bytes: int) -> StoredBatches | None:\n"
        "        partition = self.partition\n"
        "        kept = self._kept.at(offset)\n"
        "        if kept is not None and partition.is_leader:\n"
        "            return StoredBatches(kept, [])\n"
        "        found = partition.read(offset, max_bytes, is_committed_only=False)\n",
    ),
)

LOGS: Final = (
    Mutant(
        "a snapshot leaves out what waits",
        _SNAPSHOTS,
        "        deliveries.load(row, snapshot.consumers[place] if row.kind == LEASED else None)\n",
        "        if row.kind != 1:\n"
        "            deliveries.load(row, snapshot.consumers[place] if row.kind == LEASED else None)\n",
    ),
    Mutant(
        "a snapshot leaves out what was acked ahead",
        _SNAPSHOTS,
        "        deliveries.load(row, snapshot.consumers[place] if row.kind == LEASED else None)\n",
        "        if row.kind != 3:\n"
        "            deliveries.load(row, snapshot.consumers[place] if row.kind == LEASED else None)\n",
    ),
    Mutant(
        "a companion is cut before its last record",
        _JOURNAL,
        "            self.needed.setdefault(change.group, offset)\n",
        "            self.needed[change.group] = offset\n",
    ),
    Mutant(
        "a companion is cut where only the busiest group can spare it",
        _UPKEEP,
        "needed = min(shard.journal.needed.values(), default=log.end_offset)",
        "needed = max(shard.journal.needed.values(), default=log.end_offset)",
    ),
    Mutant(
        "a snapshot of an open transaction forgets its acks",
        _SNAPSHOTS,
        "    for hold in snapshot.holds:\n        deliveries.holds.add(*hold)",
        "    return",
    ),
)

ORDER: Final = (
    Mutant(
        "a message that failed lets its key go",
        _DELIVERIES,
        "        self._mark_due(due_ms, first, last)\n\n    def bury",
        "        self._mark_due(due_ms, first, last)\n        self.supply.on_done(first, last)\n\n    def bury",
    ),
)

DEAD_LETTERS: Final = (
    Mutant(
        "a dead letter is confirmed before it is written",
        _BURIAL,
        "        for at, letter in enumerate(letters):\n            offset = letter.first\n",
        "        await self._ask(queue.id, ConfirmDeadLetters(ids))\n"
        "        for at, letter in enumerate(letters):\n            offset = letter.first\n",
    ),
    Mutant(
        "dead letters are written without numbers",
        _BURIAL,
        "        producer_id=producer.producer_id,\n        producer_epoch=producer.epoch,\n"
        "        base_sequence=base,\n",
        "",
    ),
    Mutant(
        "a message dies one try early",
        _QUEUE,
        "return Failures(self._settings, self._state.last_dead_letter, cause, reason)",
        "from dataclasses import replace\n"
        "        fewer = replace(self._settings, tries=max(1, self._settings.tries - 1))\n"
        "        return Failures(fewer, self._state.last_dead_letter, cause, reason)",
    ),
)

ACKS_IN_TRANSACTIONS: Final = (
    Mutant(
        "an abort acks",
        _DELIVERIES,
        "            if is_commit:\n                self.finish(*interval)\n",
        "            if True:\n                self.finish(*interval)\n",
    ),
    Mutant(
        "an ack in a transaction counts at once",
        _UNDECIDED,
        "        if outcome.producer is None:\n",
        "        if True:\n",
    ),
    Mutant(
        "a lease ends while its ack is in a transaction",
        _DELIVERIES,
        "return self.holds.free_parts(row) if self.holds else (row,)",
        "return (row,)",
    ),
    Mutant(
        "a queue does not hear of the end of transactions",
        _COORDINATOR,
        "        if shard is not None:\n            shard.end_transaction(producer_id, is_commit=is_commit)\n",
        "        return\n",
    ),
)

QUEUES: Final[tuple[Mutant, ...]] = LEASES + LOGS + ORDER + DEAD_LETTERS + ACKS_IN_TRANSACTIONS
