"""How far a group got in each partition it reads.

An offset belongs to a topic, not to a topic's name: with a topic that was deleted and made again the old offset would
skip messages, so each is kept with its topic's id, and whoever asks says which topic is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.broker.groups.config import GroupConfig
from penstock.broker.groups.messages import OffsetCommit, Outcome, Where
from penstock.broker.groups.records import Change, OffsetKey, StoredOffset
from penstock.errors import OffsetMetadataTooLarge, OffsetOutOfRange, PenstockError


class CommittedOffset(NamedTuple):
    """What was committed for a partition, and when."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str
    committed_ms: int


class CommittedOffsets:
    """The offsets of one group, by topic and partition."""

    def __init__(self, group_id: str, config: GroupConfig) -> None:
        self._group_id = group_id
        self._config = config
        self._kept: dict[Where, CommittedOffset] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Where]:
        return iter(self._kept)

    def __contains__(self, where: Where) -> bool:
        return where in self._kept

    def get(self, where: Where) -> CommittedOffset | None:
        return self._kept.get(where)

    def commit(self, commits: Iterable[OffsetCommit], outcome: Outcome) -> dict[Where, PenstockError]:
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
            outcome.changes.append(Change(OffsetKey(self._group_id, commit.topic, commit.partition), stored))
        return refused

    def _check(self, commit: OffsetCommit) -> PenstockError | None:
        limit = self._config.offset_metadata_bytes_max
        # A character takes four bytes at most, so short ones need not be encoded to be counted.
        if len(commit.metadata) * 4 > limit and len(commit.metadata.encode()) > limit:
            return OffsetMetadataTooLarge(f"The metadata of an offset may have {limit} bytes.")
        if commit.offset < 0:
            return OffsetOutOfRange(f"Offset {commit.offset} cannot be committed; offsets begin at 0.")
        return None

    def forget(self, places: Iterable[Where], outcome: Outcome) -> None:
        """Remember some no longer."""
        outcome.changes += [Change(OffsetKey(self._group_id, *where), None) for where in places if where in self._kept]

    def older_than(self, before_ms: int) -> list[Where]:
        return [where for where, kept in self._kept.items() if kept.committed_ms < before_ms]

    def apply(self, key: OffsetKey, stored: StoredOffset | None, at_ms: int) -> None:
        """Take over what is in the log now."""
        where = (key.topic, key.partition)
        if stored is None:
            self._kept.pop(where, None)
        else:
            self._kept[where] = CommittedOffset(
                stored.offset, stored.leader_epoch, stored.metadata, stored.topic_id, at_ms
            )
