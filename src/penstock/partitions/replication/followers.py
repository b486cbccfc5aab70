"""What a leader knows of its followers: how far each has come, and with that who is in sync and what is committed.

Pure: the time comes in as a parameter. The rules, each of which keeps an acknowledged record from being lost:

- A follower counts with its *stable* end, what it would still have after a crash, never with what it only received.
- The high watermark stays at or below the stable end of the *maximal* in-sync set: what is committed, and what every
  change asked for and not answered for certain would make of it.
- A change whose answer is missing stays pending until metadata with a newer partition epoch tells what became of it.
- A follower joins only at or past the high watermark *and* where this leader's epoch began, and with the epoch of the
  very life in which it fetched (KIP-903).
- A follower that has less than it had said that it keeps goes at once. So does one that says it cannot write, and that
  one, like one that lagged, comes back only by what it reports after that.
- With fewer replicas in sync than the topic asks for the watermark stands still (KIP-966): so the last
  replica to fall out still has everything that was ever committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

NO_LIMIT: Final = 1 << 62
STOPPED: Final = -1
UNKNOWN: Final = -1

# A follower that keeps pace holds the watermark back for this long at most while it is about to join. Without that, one
# that is always a moment behind a busy leader could never join.
JOINING_MAX_S: Final = 0.5


class Follower:
    """One other replica as its leader knows it."""

    __slots__ = (
        "behind_since",
        "end",
        "goal",
        "is_given_up",
        "kept",
        "near_since",
        "node_epoch",
        "node_id",
        "stable",
        "target",
    )

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.node_epoch = UNKNOWN  # of the life in which it fetched last
        self.end = UNKNOWN
        self.stable = UNKNOWN
        self.goal = NO_LIMIT  # where the leader's log ended at its last report: reached by the next, it keeps pace
        self.near_since: float | None = None  # outside of the in-sync set, keeping pace
        self.behind_since: float | None = None  # in the in-sync set, short of ``target``
        self.target = 0
        self.is_given_up = False  # it lags, or cannot write: it has no place in the in-sync set before it reports
        self.kept = UNKNOWN  # the most it ever reported to be stable while it was in sync

    @property
    def must_go(self) -> bool:
        """Whether it cannot stay in the in-sync set: it lags, cannot write, or has lost what it had."""
        return self.is_given_up or self.stable < self.kept

    def __repr__(self) -> str:
        return f"<Follower {self.node_id} to {self.end}, stable to {self.stable}>"


class ReplicaAssignment(NamedTuple):
    """Which replicas a partition has, as of a partition epoch."""

    replicas: Sequence[int]
    in_sync: Sequence[int]
    partition_epoch: int


class Proposal(NamedTuple):
    """A change of the in-sync set: each replica with its node's epoch."""

    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(node_id for node_id, _ in self.in_sync)


class Followers:
    """All other replicas of one partition, for one leader epoch."""

    __slots__ = (
        "_is_eligible",
        "_is_uncertain",
        "_lag_s",
        "_min_in_sync",
        "_others",
        "_pending",
        "_sent",
        "epoch_start",
        "in_sync",
        "limit",
        "maximal",
        "node_id",
        "partition_epoch",
        "replicas",
    )

    def __init__(
        self,
        node_id: int,
        assigned: ReplicaAssignment,
        is_eligible: Callable[[int, int], bool],
        *,
        min_in_sync: int,
        epoch_start: int,
        lag_s: float,
        now: float,
    ) -> None:
        self.node_id = node_id
        self._is_eligible = is_eligible  # whether a node's life, by its epoch, is one that may be in sync
        self.epoch_start = epoch_start
        self._lag_s = lag_s
        self._min_in_sync = min_in_sync
        self._others: dict[int, Follower] = {}
        self._pending: list[Proposal] = []
        self._sent: Proposal | None = None  # the one of the pending whose answer may still come
        self._is_uncertain = False  # an answer is missing for good, so only metadata can tell
        self.partition_epoch = UNKNOWN
        self.replicas: tuple[int, ...] = ()
        self.in_sync: tuple[int, ...] = ()
        self.maximal: tuple[int, ...] = ()  # who is in sync, or would be by a change that may have happened
        self.limit = STOPPED  # the watermark does not pass this, whatever the leader itself has
        self.assign(assigned, now)

    def __repr__(self) -> str:
        return f"<Followers {list(self._others.values())}, in sync {self.in_sync}, limit {self.limit}>"

    # -- what is decided elsewhere ------------------------------------------------------------------------------------

    def assign(self, assigned: ReplicaAssignment, now: float) -> None:
        """Take over what was committed; anything older than what is known changes nothing."""
        if assigned.partition_epoch <= self.partition_epoch:
            return
        # Every pending change was asked for at an older partition epoch: it is this one, or it can never happen.
        self._pending.clear()
        self._sent = None
        self._is_uncertain = False
        self.partition_epoch = assigned.partition_epoch
        self.replicas = tuple(assigned.replicas)
        joined = [node_id for node_id in assigned.in_sync if node_id not in self.in_sync]
        self.in_sync = tuple(assigned.in_sync)
        self._others = {
            node_id: self._others.get(node_id) or Follower(node_id)
            for node_id in self.replicas
            if node_id != self.node_id
        }
        for each in self._others.values():
            if each.node_id not in self.in_sync:
                each.kept = UNKNOWN
        for node_id in joined:
            follower = self._others.get(node_id)
            if follower is not None:
                follower.near_since = None
                follower.kept = follower.stable
                follower.behind_since, follower.target = now, follower.goal
        self._recount()

    def require(self, min_in_sync: int) -> None:
        """The topic asks for another number of replicas in sync."""
        self._min_in_sync = min_in_sync
        self._refresh()

    def may_have(self, next_offset: int) -> bool:
        """Whether another replica may have everything before an offset: it said so, or has not been heard yet."""
        return any(each.end == UNKNOWN or each.end >= next_offset for each in self._others.values())

    @property
    def is_short(self) -> bool:
        """Whether too few are in sync for anything to be committed. A topic cannot ask for more than it has."""
        return len(self.in_sync) < min(self._min_in_sync, len(self.replicas))

    def _recount(self) -> None:
        """Find the maximal in-sync set anew, and with it the limit."""
        named = dict.fromkeys(self.in_sync)
        for proposal in self._pending:
            named.update(dict.fromkeys(proposal.node_ids))
        self.maximal = tuple(named)
        self._refresh()

    def _refresh(self) -> None:
        if self.is_short:
            self.limit = STOPPED
            return
        maximal = self.maximal
        limit = NO_LIMIT
        for follower in self._others.values():
            if follower.stable < limit and (follower.node_id in maximal or follower.near_since is not None):
                limit = follower.stable
        # A replica in sync of which nothing is known, as when one is named that is not assigned here.
        if any(node_id not in self._others and node_id != self.node_id for node_id in maximal):
            limit = STOPPED
        self.limit = limit

    # -- what followers tell ------------------------------------------------------------------------------------------

    def has(self, node_id: int) -> bool:
        """Whether a node is a replica, as far as is known here."""
        return node_id in self._others

    def report(self, node_id: int, node_epoch: int, end: int, stable: int, leader_end: int, now: float) -> bool:
        """A follower has everything before ``end`` and keeps what is before ``stable``; whether it was believed.

        The caller has made sure that its history is the leader's.
        """
        follower = self._others.get(node_id)
        if follower is None or node_epoch < follower.node_epoch:
            return False
        if node_epoch > follower.node_epoch:
            follower.near_since = None
            follower.goal = NO_LIMIT
        follower.is_given_up = False
        follower.node_epoch = node_epoch
        follower.end = end
        follower.stable = min(stable, end)
        if node_id in self.in_sync:
            follower.kept = max(follower.kept, follower.stable)
        if follower.stable >= follower.goal or follower.stable >= leader_end:
            if follower.near_since is None and node_id not in self.maximal and self._is_eligible(node_id, node_epoch):
                follower.near_since = now
        elif follower.near_since is not None and now - follower.near_since > JOINING_MAX_S:
            follower.near_since = None
        follower.goal = leader_end
        self._refresh()
        return True

    def report_stable(self, node_id: int, node_epoch: int, stable: int, leader_end: int, now: float) -> bool:
        """A follower tells between two fetches how much it keeps by now: of what it fetched from, never more.

        A fetch says where it has come to and is compared with our history. This is not, so it proves nothing else.
        """
        follower = self._others.get(node_id)
        if follower is None or node_epoch != follower.node_epoch or min(stable, follower.end) <= follower.stable:
            return False
        return self.report(node_id, node_epoch, follower.end, stable, leader_end, now)

    def give_up(self, node_id: int, node_epoch: int) -> bool:
        """A follower says that it cannot write; whether it was believed."""
        follower = self._others.get(node_id)
        if follower is None or node_epoch < follower.node_epoch:
            return False
        follower.is_given_up = True
        follower.near_since = None
        self._refresh()
        return True

    def lags(self, leader_end: int) -> dict[int, int]:
        """How many offsets each follower is behind."""
        return {node_id: max(leader_end - max(each.end, 0), 0) for node_id, each in self._others.items()}

    @property
    def is_joining(self) -> bool:
        """Whether the watermark waits for a follower that is about to join."""
        return any(follower.near_since is not None for follower in self._others.values())

    # -- who is in sync -----------------------------------------------------------------------------------------------

    def wants_change(self, high_watermark: int) -> bool:
        """Whether a follower may join, or has to go: a cheap question, asked at every report."""
        return any(
            follower.must_go
            if follower.node_id in self.in_sync
            else follower.near_since is not None or self._can_join(follower, high_watermark)
            for follower in self._others.values()
        )

    def _can_join(self, follower: Follower, high_watermark: int) -> bool:
        is_far_enough = follower.stable >= max(high_watermark, self.epoch_start)
        return is_far_enough and follower.node_epoch >= 0 and not follower.is_given_up

    def check_lag(self, leader_end: int, high_watermark: int, now: float) -> bool:
        """Note who falls behind, as of now; whether there is something to propose or to ask again."""
        has_change = self._is_uncertain and self._sent is None
        for follower in self._others.values():
            if follower.near_since is not None and now - follower.near_since > JOINING_MAX_S:
                follower.near_since = None
                self._refresh()
            if follower.must_go and follower.node_id in self.in_sync:
                has_change = True
            elif follower.node_id not in self.in_sync or follower.stable >= leader_end:
                follower.behind_since = None
            elif follower.behind_since is None or follower.stable >= follower.target:
                follower.behind_since, follower.target = now, leader_end
            elif now - follower.behind_since >= self._lag_s:
                has_change = follower.is_given_up = True
            # A follower may have become eligible since its last report.
            if follower.node_id not in self.in_sync and self._can_join(follower, high_watermark):
                has_change = has_change or self._is_eligible(follower.node_id, follower.node_epoch)
        return has_change

    def propose(self, own_epoch: int, high_watermark: int, now: float) -> Proposal | None:
        """The change to ask for now, if any; it is pending from this moment on.

        Where an earlier one may or may not have happened, what is wanted is asked for again, even if that is what is
        known already: whatever is committed at this partition epoch settles all the others.
        """
        if self._sent is not None:
            return None
        wanted = self._wanted(high_watermark, now)
        if wanted == self.in_sync and not self._is_uncertain:
            return None
        epochs = {self.node_id: own_epoch} | {each.node_id: each.node_epoch for each in self._others.values()}
        proposal = Proposal(self.partition_epoch, tuple((node_id, epochs[node_id]) for node_id in wanted))
        self._pending.append(proposal)
        self._sent = proposal
        self._recount()
        return proposal

    def _wanted(self, high_watermark: int, now: float) -> tuple[int, ...]:
        wanted = []
        for node_id in self.replicas:
            follower = self._others.get(node_id)
            if follower is None:
                is_wanted = True  # the leader itself
            elif node_id in self.in_sync:
                since = follower.behind_since
                is_wanted = not follower.must_go and (since is None or now - since < self._lag_s)
            else:
                is_wanted = self._can_join(follower, high_watermark) and self._is_eligible(node_id, follower.node_epoch)
            if is_wanted:
                wanted.append(node_id)
        if set(wanted) == set(self.in_sync):
            return self.in_sync
        return tuple(wanted)

    def grant(self, proposal: Proposal, assigned: ReplicaAssignment, now: float) -> None:
        """The controller granted it, and the partition is now as it says."""
        self.assign(assigned, now)
        self.refuse(proposal)  # if nothing changed, then because there was nothing to change

    def refuse(self, proposal: Proposal) -> None:
        """The controller refused: nothing came of it. Unless an earlier copy may have: then only metadata tells."""
        if proposal is not self._sent:
            return
        self._sent = None
        if not self._is_uncertain:
            self._pending.clear()
            self._recount()

    def lose(self, proposal: Proposal) -> None:
        """The answer is missing: the change stays pending, because it may have happened or may happen yet."""
        if proposal is self._sent:
            self._sent = None
            self._is_uncertain = True
