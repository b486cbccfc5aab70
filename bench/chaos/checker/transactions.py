"""Checks of transactions: all or nothing, nothing before its time, and effects exactly once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from bench.chaos.checker.account import Account, Fate, Place, Transaction, name_of
from bench.chaos.checker.anomaly import Anomaly


def aborted_reads(account: Account) -> Iterator[Anomaly]:
    """A reader of committed messages was given one of a transaction that was aborted, or never asked to commit."""
    for place, message_id, who, _ in _committed_views(account):
        transaction = _transaction_of(account, message_id)
        if transaction is None:
            continue
        if transaction.fate is Fate.ABORTED:
            yield Anomaly("aborted-read", name_of(place), f"{who} read {message_id} of aborted {transaction.id}")
        elif transaction.commit_asked_at is None:
            detail = f"{who} read {message_id} of {transaction.id}, which nobody asked to commit"
            yield Anomaly("aborted-read", name_of(place), detail)


def precommitted_reads(account: Account) -> Iterator[Anomaly]:
    """A reader of committed messages was given one before its client asked for the commit."""
    for place, message_id, who, at in _committed_views(account):
        transaction = _transaction_of(account, message_id)
        if transaction is None or transaction.commit_asked_at is None or at is None:
            continue
        if at < transaction.commit_asked_at:
            early_ms = (transaction.commit_asked_at - at) * 1000
            detail = f"{who} read {message_id} {early_ms:.1f} ms before the commit of {transaction.id} was asked for"
            yield Anomaly("precommitted-read", name_of(place), detail)


def half_visible(account: Account) -> Iterator[Anomaly]:
    """At the end some messages of a transaction are visible and others are not, whatever its client was told."""
    visible: dict[Place, set[str]] = {
        place: {message_id for _, message_id in drain.rows} for place, drain in account.final_reads("committed").items()
    }
    for transaction in account.transactions.values():
        read = [message for message in transaction.messages if message.place in visible]
        shown = [message.id in visible[message.place] for message in read]
        if any(shown) and not all(shown):
            there = [message.id for message, is_shown in zip(read, shown, strict=True) if is_shown]
            gone = [message.id for message, is_shown in zip(read, shown, strict=True) if not is_shown]
            detail = f"{transaction.id} ({transaction.fate.value}): {', '.join(there)} visible, {', '.join(gone)} not"
            yield Anomaly("half-visible", name_of(read[0].place), detail)


def duplicated_effects(account: Account) -> Iterator[Anomaly]:
    """Two visible results of one source record."""
    for sink, sources in _effects(account).items():
        for source, ids in sources.items():
            if len(ids) > 1:
                yield Anomaly("effect-duplicate", sink, f"source {source[0]}@{source[1]} has results {', '.join(ids)}")


def lost_effects(account: Account) -> Iterator[Anomaly]:
    """A source record without a result, although a later one of its partition has one."""
    for sink, sources in _effects(account).items():
        last: dict[int, int] = defaultdict(lambda: -1)
        for partition, offset in sources:
            last[partition] = max(last[partition], offset)
        for (_topic, partition), drain in _sources_of(account, sink):
            missing = [
                offset for offset, _ in drain if offset <= last[partition] and (partition, offset) not in sources
            ]
            if missing:
                detail = f"{len(missing)} records of source partition {partition} without a result, first {missing[0]}"
                yield Anomaly("effect-lost", sink, detail)


def _committed_views(account: Account) -> Iterator[tuple[Place, str, str, float | None]]:
    """Place, id, who read it and when, of all that was shown as committed."""
    for session in account.sessions.values():
        if session.isolation == "committed":
            for seen in session.records:
                yield session.place, seen.id, session.name, seen.at
    for place, drain in account.final_reads("committed").items():
        for _, message_id in drain.rows:
            yield place, message_id, "the final read", None


def _transaction_of(account: Account, message_id: str) -> Transaction | None:
    message = account.messages.get(message_id)
    return account.transactions[message.transaction] if message is not None and message.transaction else None


def _effects(account: Account) -> dict[str, dict[tuple[int, int], list[str]]]:
    """Sink topic to source partition and offset to the ids of the results."""
    found: dict[str, dict[tuple[int, int], list[str]]] = {}
    for (topic, _), drain in account.final_reads("committed").items():
        for _, message_id in drain.rows:
            _, slash, source = message_id.partition("/")
            if slash:
                partition, offset = source.split(".")
                found.setdefault(topic, defaultdict(list))[int(partition), int(offset)].append(message_id)
    return found


def _sources_of(account: Account, sink: str) -> Iterator[tuple[Place, list[tuple[int, str]]]]:
    """The final reads of the topic that the results of `sink` come from: its name is the sink's before the last dot."""
    source = sink.rpartition(".")[0]
    for place, drain in account.final_reads("committed").items():
        if place[0] == source:
            yield place, drain.rows
