"""How far a group got in each partition it reads.

An offset belongs to a topic, not to a topic's name: with a topic that was deleted and made again the old offset would
skip messages, so each is kept with its topic's id, and whoever asks says which topic is meant.

Offsets that are part of a producer's transaction are *held* until it ends. A commit that was written after them stands,
though the transaction ends later still: the last one in the log is what compaction would keep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from penstock.config.settings import GroupSettings
from penstock.errors import OffsetMetadataTooLarge, PenstockError
from penstock.features.groups.messages import OffsetCommit, Where
from penstock.features.groups.records import GroupChange, OffsetKey, StoredOffset
from penstock.machines.messages import Outcome


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


class _Held(NamedTuple):
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
        self._held: dict[int, dict[Where, _Held]] = {}  # by producer id
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
        self._held.setdefault(producer_id, {})[key.topic, key.partition] = _Held(stored, at_ms, self._turn)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Take over the end of a transaction."""
        for where, held in self._held.pop(producer_id, {}).items():
            if is_commit and held.turn > self._turns.get(where, 0):
                self._turns[where] = held.turn
                self._keep(where, held.stored, held.at_ms)
        if not self._held:
            self._turns.clear()
            self._turn = 0
