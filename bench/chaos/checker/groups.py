"""Checks of consumer groups: committed offsets stay committed, and a group gets to see everything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from bench.chaos.checker.account import Account, Place, name_of
from bench.chaos.checker.anomaly import Anomaly


def lost_commits(account: Account) -> Iterator[Anomaly]:
    """A member was told to begin before an offset whose commit had been acknowledged when it asked."""
    acknowledged: dict[tuple[str, Place], list[tuple[float, int]]] = defaultdict(list)
    for commit in account.commits:
        if commit.outcome == "ok":
            acknowledged[commit.group, (commit.topic, commit.partition)].append((commit.at, commit.offset))
    for start in account.starts:
        place = (start.topic, start.partition)
        before = [offset for at, offset in acknowledged[start.group, place] if at < start.asked_at]
        highest = max(before, default=-1)
        if start.offset < highest:
            detail = f"{start.group} had committed {highest}, and {start.session} was given {start.offset}"
            yield Anomaly("lost-commit", name_of(place), detail)


def unseen_by_groups(account: Account) -> Iterator[Anomaly]:
    """Acknowledged, and no member of a group that got to the end was ever given it."""
    done = {each.group for each in account.finished if each.group and each.is_caught_up}
    for group in sorted(done):
        sessions = [session for session in account.sessions.values() if session.group == group]
        seen = {record.id for session in sessions for record in session.records}
        topics = {session.place[0] for session in sessions}
        for message in account.messages.values():
            if message.place[0] in topics and account.is_promised(message) and message.id not in seen:
                yield Anomaly("unseen-by-group", name_of(message.place), f"{group} was never given {message.id}")


def never_caught_up(account: Account) -> Iterator[Anomaly]:
    """A reader or a group that did not get to the end although everything was healed."""
    done = {each.group for each in account.finished if each.group and each.is_caught_up}
    for each in account.finished:
        if not each.is_caught_up and each.group not in done:
            yield Anomaly("never-caught-up", each.group or each.name, "had not read everything when it had to stop")
