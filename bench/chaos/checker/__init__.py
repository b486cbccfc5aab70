"""The checker: from a history to a verdict, in the style of Jepsen's workload for Kafka. Pure.

It trusts nobody: what a broker acknowledged, what readers were given and what is found at the end have to be one story.
An operation whose outcome nobody knows may have happened or not, but not half, and not twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bench.chaos.checker import groups, logs, transactions
from bench.chaos.checker.account import Account
from bench.chaos.checker.anomaly import Anomaly
from bench.chaos.history import Event

CHECKS: dict[str, Callable[[Account], Iterator[Anomaly]]] = {
    "lost-write": logs.lost_writes,
    "unseen": logs.unseen,
    "duplicate": logs.duplicates,
    "inconsistent-offsets": logs.inconsistent_offsets,
    "phantom": logs.phantoms,
    "non-monotonic-send": logs.non_monotonic_sends,
    "non-monotonic-poll": logs.non_monotonic_polls,
    "poll-skip": logs.poll_skips,
    "aborted-read": transactions.aborted_reads,
    "precommitted-read": transactions.precommitted_reads,
    "half-visible": transactions.half_visible,
    "effect-duplicate": transactions.duplicated_effects,
    "effect-lost": transactions.lost_effects,
    "lost-commit": groups.lost_commits,
    "unseen-by-group": groups.unseen_by_groups,
    "never-caught-up": groups.never_caught_up,
}


def check(events: Iterable[Event]) -> list[Anomaly]:
    """Everything that is wrong with a history."""
    account = Account(events)
    return [anomaly for find in CHECKS.values() for anomaly in find(account)]
