"""The groups of one partition of the offsets topic.

Offset commits come in crowds, so those of one turn of the event loop are written as one batch. Nothing else is decided
before they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.config.settings import GroupSettings
from penstock.errors import GroupNotFound
from penstock.features.groups.config import MemberTimes, MemberTimesOf
from penstock.features.groups.consumer.records import StoredConsumerGroup
from penstock.features.groups.consumer.topics import NoTopics, Topics
from penstock.features.groups.group import Group
from penstock.features.groups.messages import Commit, Delete, DeleteOffsets, MemberIdentity
from penstock.features.groups.records import Change, StoredGroup
from penstock.features.groups.slot import GroupSlot
from penstock.machines.journal import Journal
from penstock.machines.messages import Outcome, Reply, Request
from penstock.machines.shard import Defer, TransactionalShard

log = logging.getLogger(__name__)

_PENDING_MAX: Final = 500


class GroupShard(TransactionalShard[GroupSlot, Change]):
    """Groups by id."""

    def __init__(
        self,
        journal: Journal[Change],
        config: GroupSettings,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        defer: Defer,
        topics: Topics | None = None,
        on_round: Callable[[int], None] | None = None,
        times_of: MemberTimesOf | None = None,
    ) -> None:
        """``on_round`` hears how many milliseconds each round of a classic group took.

        ``times_of`` tells what members of a group are held to; without it, all groups have what ``config`` says.
        """
        super().__init__(journal, now_ms, wall_ms, defer)
        self._config = config
        self._topics: Topics = topics or NoTopics()
        self._on_round = on_round
        self._times_of: MemberTimesOf = times_of or (lambda _: MemberTimes.of(config))
        self._pending: list[tuple[GroupSlot, Outcome[Change]]] = []  # commits to be written together

    def make(self, name: str) -> GroupSlot:
        return GroupSlot(name, self._config, self._topics, self._times_of)

    def name_of(self, change: Change) -> str:
        return change.key.group

    def on_applied(self, group: GroupSlot, change: Change) -> None:
        if isinstance(change.value, (StoredGroup, StoredConsumerGroup)):
            found = group.group
            log.info(
                "Group %s: %s, generation %d, %d members.",
                group.id,
                found.state.value,
                found.generation,
                found.member_count,
            )

    def perform(self, decisions: Sequence[tuple[GroupSlot, Outcome[Change]]]) -> None:
        super().perform(decisions)
        if self._on_round is not None:
            for group, _ in decisions:
                if isinstance(group.group, Group):
                    took_ms = group.group.take_round_duration(self._now_ms())
                    if took_ms is not None:
                        self._on_round(took_ms)

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, name: str, request: Request[Any], reply: Reply) -> None:
        """Have a group decide on a request; it is replied to unless this raises a `GroupError`."""
        if isinstance(request, Commit):
            self.check()
            self._collect(*self.decide(name, request, reply))
        elif isinstance(request, (Delete, DeleteOffsets)) and self.is_ready and name not in self.machines:
            raise GroupNotFound(f"There is no group {name!r}.")
        else:
            super().ask(name, request, reply)

    def _collect(self, group: GroupSlot, outcome: Outcome[Change]) -> None:
        self._pending.append((group, outcome))
        if len(self._pending) == 1:
            self._defer(self.flush)
        elif len(self._pending) >= _PENDING_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the commits that were put off."""
        if self._pending:
            pending, self._pending = self._pending, []
            self.perform(pending)

    def heartbeat(self, group_id: str, identity: MemberIdentity) -> None:
        self.check()
        group = self.machines.get(group_id) or self.make(group_id)  # an empty one knows no member
        try:
            group.heartbeat(identity, self._now_ms())
        finally:
            if group_id in self.machines:
                self.note_deadline(group)

    def expire(self) -> None:
        """Forget offsets that nobody needs any more, and groups that never came to anything."""
        self.flush()
        wall_ms = self._wall_ms()
        for group in tuple(self.machines.values()):
            if group.id in self.machines:
                self.perform([(group, group.expire_offsets(wall_ms))])
