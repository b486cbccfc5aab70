"""The groups of one partition of the offsets topic: what they decide is written, applied, and only then told.

Changes are applied as they are written, so memory is always what reading the log would give. Replies wait until all
that was written before them is committed, so nobody hears of what could still be lost. If a write is refused nothing
was applied, and the member may try again. If a write that was applied fails later, memory is ahead of the log for good:
the shard closes, and whoever leads the partition next, here or elsewhere, reads the log anew.

Offset commits come in crowds, so those of one turn of the event loop are written as one batch. Nothing else is decided
before they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from penstock.broker.groups.config import GroupConfig
from penstock.broker.groups.group import Group
from penstock.broker.groups.journal import Journal
from penstock.broker.groups.messages import (
    Commit,
    Delete,
    DeleteOffsets,
    MemberIdentity,
    Outcome,
    Rejected,
    Reply,
    Request,
)
from penstock.broker.groups.records import StoredGroup
from penstock.errors import (
    CoordinatorLoading,
    GroupError,
    GroupNotFound,
    MessageTooLarge,
    NotCoordinator,
    PenstockError,
)

log = logging.getLogger(__name__)

Replies = list[tuple[Reply, object]]
Decisions = Sequence[tuple[Group, Outcome]]
Defer = Callable[[Callable[[], None]], object]

_PENDING_MAX: Final = 500


class GroupShard:
    """Groups by id. ``now_ms`` measures sessions and rounds, ``wall_ms`` stamps records, ``defer`` runs work soon."""

    def __init__(
        self,
        journal: Journal,
        config: GroupConfig,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        defer: Defer,
    ) -> None:
        self._journal = journal
        self._config = config
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._defer = defer
        self._pending: list[tuple[Group, Outcome]] = []  # commits to be written together
        self._end = journal.end_offset
        self._is_refused = False  # the last write was
        self._refusal: GroupError | None = CoordinatorLoading()
        self.groups: dict[str, Group] = {}

    @property
    def is_ready(self) -> bool:
        return self._refusal is None

    @property
    def is_loading(self) -> bool:
        return isinstance(self._refusal, CoordinatorLoading)

    def check(self) -> None:
        """Refuse unless the log has been read and can be written."""
        if self._refusal is not None:
            raise self._refusal

    # -- life ---------------------------------------------------------------------------------------------------------

    def read_log(self) -> dict[str, Group]:
        """Every group, rebuilt from the log. Runs in any thread; it changes nothing here."""
        groups: dict[str, Group] = {}
        for change, at_ms in self._journal.replay():
            group_id = change.key.group
            group = groups.get(group_id)
            if group is None:
                group = groups[group_id] = Group(group_id, self._config)
            group.apply(change, at_ms)
        return {group.id: group for group in groups.values() if not group.is_forgettable}

    def open(self, groups: dict[str, Group]) -> None:
        """Begin to coordinate what `read_log` found, unless it is too late for that."""
        if not self.is_loading:
            return
        for group in groups.values():
            group.resume(self._now_ms())
        self.groups = groups
        self._refusal = None

    def close(self, error: PenstockError) -> None:
        """Stop for good; everybody who waits is sent to look for another coordinator."""
        self.flush()
        self._refusal = _as_group_error(error)
        groups, self.groups = self.groups, {}
        for group in groups.values():
            _send(group.dismiss_all(self._refusal).replies)

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, group_id: str, request: Request[Any], reply: Reply) -> None:
        """Have a group decide on a request; it is replied to unless this raises a `GroupError`."""
        self.check()
        if not isinstance(request, Commit):
            self.flush()
        group = self.groups.get(group_id)
        if group is None:
            if isinstance(request, (Delete, DeleteOffsets)):
                raise GroupNotFound(f"There is no group {group_id!r}.")
            group = Group(group_id, self._config)
        outcome = group.handle(request, self._now_ms(), reply)
        if outcome.changes or not group.is_forgettable:
            self.groups[group_id] = group
        if isinstance(request, Commit):
            self._collect(group, outcome)
        else:
            self._perform([(group, outcome)])

    def _collect(self, group: Group, outcome: Outcome) -> None:
        self._pending.append((group, outcome))
        if len(self._pending) == 1:
            self._defer(self.flush)
        elif len(self._pending) >= _PENDING_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the commits that were put off."""
        if self._pending:
            pending, self._pending = self._pending, []
            self._perform(pending)

    def heartbeat(self, group_id: str, identity: MemberIdentity) -> None:
        self.check()
        group = self.groups.get(group_id) or Group(group_id, self._config)  # an empty one knows no member
        group.heartbeat(identity, self._now_ms())

    def when_settled(self, done: Callable[[PenstockError | None], None]) -> None:
        """Call ``done`` once all that can be seen in the groups now is committed."""
        self.flush()
        self._journal.when_committed(self._end, done)

    def tick(self) -> None:
        """Let time pass for every group that it matters to."""
        self.flush()
        now_ms = self._now_ms()
        for group in [group for group in self.groups.values() if group.wake_ms <= now_ms]:
            if group.id in self.groups:  # the shard may have been closed meanwhile
                self._perform([(group, group.tick(now_ms))])

    def expire(self) -> None:
        """Forget offsets that nobody needs any more, and groups that never came to anything."""
        self.flush()
        wall_ms = self._wall_ms()
        for group in tuple(self.groups.values()):
            if group.id in self.groups:
                self._perform([(group, group.expire_offsets(wall_ms))])

    def _perform(self, decisions: Decisions) -> None:
        """Write, apply and reply, in this order."""
        changes = [change for _, outcome in decisions for change in outcome.changes]
        replies = [reply for _, outcome in decisions for reply in outcome.replies]
        if changes:
            at_ms = self._wall_ms()
            try:
                self._end = self._journal.append(changes, at_ms)
            except PenstockError as error:
                self._on_refused(decisions, replies, error)
                return
            if self._is_refused:
                log.warning("Groups can be stored again.")
                self._is_refused = False
            self._apply(decisions, at_ms)
        for group, _ in decisions:
            if group.is_forgettable:
                self.groups.pop(group.id, None)
        if changes or replies:
            self._journal.when_committed(self._end, partial(self._on_committed, replies))

    def _apply(self, decisions: Decisions, at_ms: int) -> None:
        now_ms = self._now_ms()
        for group, outcome in decisions:
            for change in outcome.changes:
                group.apply(change, at_ms, now_ms)
                if isinstance(change.value, StoredGroup):
                    log.info(
                        "Group %s: %s, generation %d, %d members.",
                        group.id,
                        group.state.value,
                        group.generation,
                        len(group.members),
                    )

    def _on_refused(self, decisions: Decisions, replies: Replies, error: PenstockError) -> None:
        if isinstance(error, MessageTooLarge) and len(decisions) > 1:
            for decision in decisions:  # too much for one batch, so each for itself
                self._perform([decision])
            return
        if not self._is_refused:
            log.warning("Groups cannot be stored at the moment: %s", error.message)
        self._is_refused = True
        _reject(replies, error)

    def _on_committed(self, replies: Replies, error: PenstockError | None) -> None:
        if error is None:
            _send(replies)
        else:
            _reject(replies, error)
            self.close(error)


def _send(replies: Replies) -> None:
    for reply, what in replies:
        reply(what)


def _reject(replies: Replies, error: PenstockError) -> None:
    rejected = Rejected(error if isinstance(error, MessageTooLarge) else _as_group_error(error))
    for reply, _ in replies:
        reply(rejected)


def _as_group_error(error: PenstockError) -> GroupError:
    """Whatever keeps us from writing, a member can only look for a coordinator that can."""
    return error if isinstance(error, GroupError) else NotCoordinator(error.message)
