"""Checks of each partition as a log: nothing acknowledged is lost, nothing twice, one order for everybody."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from bench.chaos.checker.account import Account, Drained, Message, Place, Session, name_of
from bench.chaos.checker.anomaly import Anomaly


def lost_writes(account: Account) -> Iterator[Anomaly]:
    """Acknowledged, absent from a complete final read, and others were seen at its offset or after it."""
    for message, drain, is_overtaken in _missing(account):
        if is_overtaken:
            yield Anomaly("lost-write", name_of(message.place), _describe(message, drain))


def unseen(account: Account) -> Iterator[Anomaly]:
    """Acknowledged, and absent from a final read that ends before it or was not completed."""
    for message, drain, is_overtaken in _missing(account):
        if not is_overtaken:
            yield Anomaly("unseen", name_of(message.place), _describe(message, drain))
    read = {place for isolation in ("uncommitted", "committed") for place in account.final_reads(isolation)}
    for place in sorted({message.place for message in account.messages.values()} - read):
        yield Anomaly("unseen", name_of(place), "the partition could not be read at the end")


def _describe(message: Message, drain: Drained) -> str:
    how = f"on the disk of {drain.replica}" if drain.replica else f"in the final {drain.isolation} read"
    return f"{message.id} acknowledged at offset {message.offset} is not {how}, which ends at {drain.end}"


def _missing(account: Account) -> Iterator[tuple[Message, Drained, bool]]:
    promised: dict[Place, list[Message]] = defaultdict(list)
    for message in account.messages.values():
        if account.is_promised(message):
            promised[message.place].append(message)
    highest: dict[Place, int] = defaultdict(lambda: -1)
    for session in account.sessions.values():
        highest[session.place] = max([highest[session.place], *(seen.offset for seen in session.records)])
    for drain in account.drains:
        place = (drain.topic, drain.partition)
        present = {message_id for _, message_id in drain.rows}
        top = max([highest[place], *(offset for offset, _ in drain.rows)])
        for message in promised[place]:
            if message.id not in present:
                yield message, drain, drain.is_complete and message.offset <= max(top, drain.end - 1)


def duplicates(account: Account) -> Iterator[Anomaly]:
    """One message at two offsets. Every producer here is idempotent."""
    for place, offsets in account.witnesses.items():
        found: dict[str, dict[int, str]] = defaultdict(dict)
        for offset, ids in offsets.items():
            for message_id, who in ids.items():
                found[message_id][offset] = who
        for message_id, places in found.items():
            if len(places) > 1:
                story = ", ".join(f"{offset} ({who})" for offset, who in sorted(places.items()))
                yield Anomaly("duplicate", name_of(place), f"{message_id} is at offsets {story}")


def inconsistent_offsets(account: Account) -> Iterator[Anomaly]:
    """One offset, two messages: said by readers, by answers to producers, or found on replicas."""
    for place, offsets in account.witnesses.items():
        for offset, ids in sorted(offsets.items()):
            if len(ids) > 1:
                story = ", ".join(f"{message_id} ({who})" for message_id, who in sorted(ids.items()))
                yield Anomaly("inconsistent-offsets", name_of(place), f"offset {offset} holds {story}")


def phantoms(account: Account) -> Iterator[Anomaly]:
    """A message that nobody sent there, or that came damaged; or one whose sending failed for certain."""
    for place, offsets in account.witnesses.items():
        for offset, ids in sorted(offsets.items()):
            for message_id, who in ids.items():
                message = account.messages.get(message_id)
                if message is None or message.place != place:
                    yield Anomaly("phantom", name_of(place), f"{message_id} at {offset} ({who}) was never sent there")
                elif message.outcome == "fail":
                    yield Anomaly("phantom", name_of(place), f"{message_id} at {offset} ({who}), whose sending failed")


def non_monotonic_sends(account: Account) -> Iterator[Anomaly]:
    """What one producer sent to one partition lies there in another order."""
    where = {
        (place, message_id): offset
        for place, offsets in account.witnesses.items()
        for offset, ids in offsets.items()
        for message_id in ids
    }
    last: dict[tuple[str, Place], tuple[int, str]] = {}
    for message in sorted(account.messages.values(), key=lambda message: message.at):
        offset = where.get((message.place, message.id))
        if offset is None:
            continue
        key = (message.client, message.place)
        before = last.get(key)
        if before is not None and before[0] > offset:
            detail = f"{before[1]} was sent before {message.id}, but has offset {before[0]} and not one below {offset}"
            yield Anomaly("non-monotonic-send", name_of(message.place), detail)
        last[key] = (offset, message.id)


def non_monotonic_polls(account: Account) -> Iterator[Anomaly]:
    """A reader that did not seek was given an offset again, or an earlier one."""
    for session in account.sessions.values():
        for before, after in pairwise(session.records):
            if after.offset <= before.offset:
                detail = f"{session.name} read {before.offset} and then {after.offset}"
                yield Anomaly("non-monotonic-poll", name_of(session.place), detail)


def poll_skips(account: Account) -> Iterator[Anomaly]:
    """A reader was led past records that are there."""
    visible = {
        (isolation, place): sorted(offset for offset, _ in drain.rows)
        for isolation in ("uncommitted", "committed")
        for place, drain in account.final_reads(isolation).items()
    }
    for session in account.sessions.values():
        there = visible.get((session.isolation, session.place), [])
        for before, after in _steps(session):
            skipped = there[bisect_right(there, before) : bisect_left(there, after)]
            if skipped:
                detail = f"{session.name} went from {before} to {after}, past {len(skipped)} from {skipped[0]} on"
                yield Anomaly("poll-skip", name_of(session.place), detail)


def _steps(session: Session) -> Iterator[tuple[int, int]]:
    offsets = [seen.offset for seen in session.records]
    if session.start is not None:
        offsets.insert(0, session.start - 1)
    yield from pairwise(offsets)
