"""The groups of one partition of the offsets topic.

Offset commits come in crowds, so those of one turn of the event loop are written as one batch. Nothing else is decided
before they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.broker.coordination.journal import Decided, Journal
from penstock.broker.coordination.messages import Outcome, Reply, Request
from penstock.broker.coordination.shard import Defer, Shard
from penstock.broker.groups.config import GroupConfig, MemberTimesOf
from penstock.broker.groups.consumer.records import StoredConsumerGroup
from penstock.broker.groups.consumer.topics import NoTopics, Topics
from penstock.broker.groups.either import EitherGroup
from penstock.broker.groups.group import Group
from penstock.broker.groups.messages import Commit, Delete, DeleteOffsets, MemberIdentity
from penstock.broker.groups.records import Change, StoredGroup
from penstock.errors import GroupNotFound

log = logging.getLogger(__name__)

_PENDING_MAX: Final = 500


class GroupShard(Shard[EitherGroup, Change]):
    """Groups by id."""

    def __init__(
        self,
        journal: Journal[Change],
        config: GroupConfig,
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
        self._times_of: MemberTimesOf = times_of or (lambda _: config.member_times)
        self._pending: list[tuple[EitherGroup, Outcome[Change]]] = []  # commits to be written together
        self._holders = _Holders()
        self._ended_while_loading: list[Decided] = []

    def make(self, name: str) -> EitherGroup:
        return EitherGroup(name, self._config, self._topics, self._times_of)

    def name_of(self, change: Change) -> str:
        return change.key.group

    def on_applied(self, group: EitherGroup, change: Change) -> None:
        if isinstance(change.value, (StoredGroup, StoredConsumerGroup)):
            found = group.group
            log.info(
                "Group %s: %s, generation %d, %d members.",
                group.id,
                found.state.value,
                found.generation,
                found.member_count,
            )

    def perform(self, decisions: Sequence[tuple[EitherGroup, Outcome[Change]]]) -> None:
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

    def _collect(self, group: EitherGroup, outcome: Outcome[Change]) -> None:
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
        group.heartbeat(identity, self._now_ms())

    def expire(self) -> None:
        """Forget offsets that nobody needs any more, and groups that never came to anything."""
        self.flush()
        wall_ms = self._wall_ms()
        for group in tuple(self.machines.values()):
            if group.id in self.machines:
                self.perform([(group, group.expire_offsets(wall_ms))])

    # -- transactions -------------------------------------------------------------------------------------------------

    def read_log(self) -> dict[str, EitherGroup]:
        groups: dict[str, EitherGroup] = {}
        holders = _Holders()
        for entry in self._journal.replay():
            if isinstance(entry, Decided):
                holders.end(entry, groups)
                continue
            group = self.machine_of(entry.change, groups)
            if entry.producer_id < 0:
                group.apply(entry.change, entry.at_ms)
            else:
                group.hold(entry.change, entry.at_ms, entry.producer_id)
                holders.add(entry.producer_id, group.id)
        return {group.id: group for group in groups.values() if not group.is_forgettable}

    def open(self, machines: dict[str, EitherGroup]) -> None:
        is_wanted = self.is_loading
        super().open(machines)
        if is_wanted:
            for group in machines.values():
                for producer_id in group.offsets.producers_undecided():
                    self._holders.add(producer_id, group.id)
            for end in self._ended_while_loading:
                self._holders.end(end, self.machines)

    def _apply(self, decisions: Sequence[tuple[EitherGroup, Outcome[Change]]], at_ms: int) -> None:
        group, outcome = decisions[0]
        if outcome.producer is None:
            super()._apply(decisions, at_ms)
            return
        for change in outcome.changes:
            group.hold(change, at_ms, outcome.producer.producer_id)
        self._holders.add(outcome.producer.producer_id, group.id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """The end of a transaction has just been written to this partition."""
        end = Decided(producer_id, is_commit)
        if self.is_loading:
            self._ended_while_loading.append(end)  # whoever reads the log may have been past its end
            return
        self._holders.end(end, self.machines)
        self._end = self._journal.end_offset


class _Holders:
    """Which groups hold offsets for a producer's open transaction."""

    def __init__(self) -> None:
        self._groups: dict[int, set[str]] = {}

    def add(self, producer_id: int, group_id: str) -> None:
        self._groups.setdefault(producer_id, set()).add(group_id)

    def end(self, end: Decided, groups: dict[str, EitherGroup]) -> None:
        for group_id in self._groups.pop(end.producer_id, ()):
            group = groups.get(group_id)
            if group is None:
                continue  # it was deleted meanwhile
            group.end_transaction(end.producer_id, is_commit=end.is_commit)
            if group.is_forgettable:
                del groups[group_id]
