"""How far a group got in each partition it reads.

An offset belongs to a topic, not to a topic's name: with a topic that was deleted and made again the old offset would
skip messages, so each is kept with its topic's id, and a reader says which topic is meant.

Offsets that are part of a producer's transaction are *held* until it ends. A commit that was written after them stands,
though the transaction ends later still: the last one in the log is what compaction would keep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from penstock.config.settings import GroupSettings
from penstock.errors import GroupNotEmpty, OffsetMetadataTooLarge, PenstockError
from penstock.features.groups.messages import OffsetCommit, Settled, Where
from penstock.features.groups.records import GroupChange, OffsetKey, StoredOffset
from penstock.machines.messages import Outcome, Reply


class CommittedOffset(NamedTuple):
    """What was committed for a partition, and when.

    Kafka takes negative offsets, too, and some clients commit them to begin anew (kafkajs): no consumer goes on from
    one, so it counts as none.
    """

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str
    committed_ms: int


class _HeldOffset(NamedTuple):
    """What takes effect with a transaction, and when it was written, counted in changes."""

    stored: StoredOffset
    at_ms: int
    turn: int


class CommittedOffsets:
    """The offsets of one group, by topic and partition."""

    def __init__(self, group_id: str, config: GroupSettings) -> None:
        self._group_id = group_id
        self._config = config
        self._kept: dict[Where, CommittedOffset] = {}
        self._held: dict[int, dict[Where, _HeldOffset]] = {}  # by producer id
        self._turn = 0
        self._turns: dict[Where, int] = {}  # of the last change, of places that somebody holds something for

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Where]:
        return iter(self._kept)

    def __contains__(self, where: Where) -> bool:
        return where in self._kept

    def get(self, where: Where) -> CommittedOffset | None:
        return self._kept.get(where)

    def commit(self, commits: Iterable[OffsetCommit], outcome: Outcome[GroupChange]) -> dict[Where, PenstockError]:
        """Remember offsets; those that cannot be are given back with the reason."""
        refused: dict[Where, PenstockError] = {}
        for commit in commits:
            error = self._check(commit)
            if error is not None:
                refused[commit.topic, commit.partition] = error
                continue
            stored = StoredOffset(
                offset=commit.offset,
                topic_id=commit.topic_id,
                leader_epoch=commit.leader_epoch,
                metadata=commit.metadata,
            )
            outcome.changes.append(GroupChange(OffsetKey(self._group_id, commit.topic, commit.partition), stored))
        return refused

    def _check(self, commit: OffsetCommit) -> PenstockError | None:
        limit = self._config.offset_metadata_bytes_max
        # A character takes four bytes at most, so short ones need not be encoded to be counted.
        if len(commit.metadata) * 4 > limit and len(commit.metadata.encode()) > limit:
            return OffsetMetadataTooLarge(f"The metadata of an offset may have {limit} bytes.")
        return None

    def forget(self, places: Iterable[Where], outcome: Outcome[GroupChange]) -> None:
        """Remember some no longer."""
        outcome.changes += [
            GroupChange(OffsetKey(self._group_id, *where), None)
            for where in places
            if where in self._kept or self.is_undecided(where)
        ]

    def older_than(self, before_ms: int) -> list[Where]:
        return [
            where
            for where, kept in self._kept.items()
            if kept.committed_ms < before_ms and not self.is_undecided(where)
        ]

    def apply(self, key: OffsetKey, stored: StoredOffset | None, at_ms: int) -> None:
        """Take over what is in the log now."""
        where = (key.topic, key.partition)
        if self._held:
            self._turn += 1
            self._turns[where] = self._turn
        self._keep(where, stored, at_ms)

    def _keep(self, where: Where, stored: StoredOffset | None, at_ms: int) -> None:
        if stored is None:
            self._kept.pop(where, None)
        else:
            self._kept[where] = CommittedOffset(
                stored.offset, stored.leader_epoch, stored.metadata, stored.topic_id, at_ms
            )

    # -- transactions -------------------------------------------------------------------------------------------------

    @property
    def has_undecided(self) -> bool:
        return bool(self._held)

    def places_undecided(self) -> list[Where]:
        """Where transactions that are still open have committed."""
        return [where for held in self._held.values() for where in held]

    def producers_undecided(self) -> Collection[int]:
        """Whose transactions hold offsets."""
        return self._held.keys()

    def is_undecided(self, where: Where) -> bool:
        """Whether a transaction that is still open has committed here."""
        return any(where in held for held in self._held.values())

    def hold(self, key: OffsetKey, stored: StoredOffset, at_ms: int, producer_id: int) -> None:
        """Take over what is in the log as part of a transaction."""
        self._turn += 1
        self._held.setdefault(producer_id, {})[key.topic, key.partition] = _HeldOffset(stored, at_ms, self._turn)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Take over the end of a transaction."""
        for where, held in self._held.pop(producer_id, {}).items():
            if is_commit and held.turn > self._turns.get(where, 0):
                self._turns[where] = held.turn
                self._keep(where, held.stored, held.at_ms)
        if not self._held:
            self._turns.clear()
            self._turn = 0


class OffsetKeeper(ABC):
    """What groups of both kinds do with their offsets."""

    id: str
    offsets: CommittedOffsets
    _config: GroupSettings

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @property
    @abstractmethod
    def _emptied_ms(self) -> int:
        """When the last member left; 0 if there never was one."""

    @abstractmethod
    def subscribed_topics(self) -> frozenset[str] | None:
        """Every topic that some member wants, None if that cannot be told."""

    def _settled_topics(self) -> frozenset[str] | None:
        """The same, None also while it may change."""
        return self.subscribed_topics()

    @abstractmethod
    def tombstones(self) -> Iterable[GroupChange]:
        """What ends the group: nothing of it but offsets stays in the log."""

    def _delete_offsets(self, places: tuple[Where, ...], reply: Reply, outcome: Outcome[GroupChange]) -> None:
        """Forget offsets, except of topics that members read."""
        refused: dict[Where, PenstockError] = {}
        if not self.is_empty:
            topics = self.subscribed_topics()
            in_use = GroupNotEmpty(f"Members of group {self.id!r} read this topic. Stop them first.")
            refused = {where: in_use for where in places if topics is None or where[0] in topics}
        self._forget([where for where in dict.fromkeys(places) if where not in refused], outcome)
        outcome.reply(reply, Settled(refused))

    def expire_offsets(self, wall_ms: int) -> Outcome[GroupChange]:
        """Forget the offsets that were not needed for long, counted from when the last member left (KIP-211)."""
        outcome: Outcome[GroupChange] = Outcome()
        before_ms = wall_ms - self._config.offsets_retention_ms
        if self.is_empty:
            if self._emptied_ms < before_ms or not self.offsets:
                self._forget(self.offsets.older_than(before_ms), outcome)
        elif (topics := self._settled_topics()) is not None:
            self._forget([where for where in self.offsets.older_than(before_ms) if where[0] not in topics], outcome)
        return outcome

    def _forget(self, places: Iterable[Where], outcome: Outcome[GroupChange]) -> None:
        """Remember some offsets no longer; the group itself goes with the last one, if it is empty."""
        self.offsets.forget(places, outcome)
        is_bare = self.is_empty and not self.offsets.has_undecided
        if is_bare and len(outcome.changes) == len(self.offsets):
            outcome.changes += self.tombstones()
