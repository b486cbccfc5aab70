"""Scenarios as text: each line an event, and under it, indented, what comes of it.

    open · open timeout=5s           somebody opens the transaction
    enter A orders/0 orders/1        writer A is about to write there
    call A 0 orders 0,1,0            A's messages from number 0 on go to these partitions; ``says=x`` are other messages
    extend · extend 5s               its time starts anew, or becomes another
    commit · commit key=k A B        all writers, or these, with or without an idempotency key
    abort · result · expire · describe
    pass 3s                          time goes by, in ticks of 50 ms
    stick orders/0 · free            a partition takes no markers; all do again
    delete orders                    the topic is deleted
    disk full|fine|slow|sync|broken  what the log does; ``slow`` commits nothing until ``sync``
    restart · resign                 a new process reads the log; or somebody else takes over
    reread                           a new leader reads the log as it is, though not all of it is committed

Expected text is written by running the tests with PENSTOCK_REWRITE=1, and then read by a person.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.joint.journal import JointJournal
from tests.unit.transactions.journal import MemoryMarkers
from tests.unit.transactions.transcript import milliseconds, place

from penstock.config.settings import TransactionSettings
from penstock.errors import NotCoordinator, PenstockError
from penstock.features.transactions.joint.messages import (
    AbortJoint,
    AwaitEnd,
    CommitJoint,
    Enter,
    Entered,
    ExtendJoint,
    JointEnd,
    Open,
    Opened,
)
from penstock.features.transactions.joint.records import JointKey, StoredCall, StoredJoint, StoredWriter, from_record
from penstock.features.transactions.joint.shard import JointShard
from penstock.features.transactions.markers import EndMarker
from penstock.features.transactions.messages import Where
from penstock.machines.messages import Rejected, Request
from penstock.partitions.stats import TransactionStats

NAME = "t"
TICK_MS = 50


def topic_id(topic: str) -> str:
    return f"id-of-{topic}"


class Transcript:
    """Plays a scenario line by line."""

    def __init__(self) -> None:
        self.config = TransactionSettings(joint_writers_max=3)
        self.journal = JointJournal()
        self.stats = TransactionStats()
        self.now_ms = 0
        self.deleted: set[str] = set()
        self.out: list[str] = []
        self._seen = 0
        self._fresh = 0
        self._epoch = 0
        self.shard = self._start()

    def play(self, line: str) -> list[str]:
        """Do what a line says, and return what came of it."""
        self.out = []
        verb, *words = line.split()
        getattr(self, f"do_{verb}")(*words)
        self._note_records()
        return self.out

    def _start(self) -> JointShard:
        self.markers = MemoryMarkers(self._on_marker)
        self._epoch += 1
        shard = JointShard(
            self.journal,
            self.config,
            self.markers,
            lambda at: at.topic not in self.deleted,
            self.stats,
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda work: work(),
            epoch=self._epoch,
        )
        shard.open(shard.read_log())
        return shard

    def _on_marker(self, where: Where, marker: EndMarker) -> None:
        self._note_records()
        kind = "commit" if marker.is_commit else "abort"
        producer_id, epoch = marker.producer
        self.out.append(f"marker: {where[0]}/{where[1]} {kind} {producer_id}/{epoch}")

    def _ask(self, request: Request[Any], told: Callable[[Any], str]) -> None:
        def reply(answer: Any) -> None:
            self._note_records()
            self.out.append(f"refused: {answer.error.code}" if isinstance(answer, Rejected) else told(answer))

        try:
            self.shard.ask(NAME, request, reply)
        except PenstockError as error:
            self.out.append(f"refused: {error.code}: {error.message}")

    # -- what somebody asks for ---------------------------------------------------------------------------------------

    def do_open(self, *options: str) -> None:
        chosen = dict(option.split("=", 1) for option in options)
        self._ask(Open(milliseconds(chosen.get("timeout", "60s")), self.now_ms), self._until)

    def do_extend(self, timeout: str | None = None) -> None:
        self._ask(ExtendJoint(None if timeout is None else milliseconds(timeout)), self._until)

    def _until(self, opened: Opened) -> str:
        return f"open until {opened.deadline_ms / 1000:g} s"

    def do_enter(self, writer: str, *places: str) -> None:
        found = [place(text) for text in places]
        (topic,) = {topic for topic, _ in found}
        self._enter(writer, topic, frozenset(index for _, index in found), None)

    def do_call(self, writer: str, sequence: str, topic: str, spread: str, says: str = "says=this") -> None:
        partitions = tuple(map(int, spread.split(",")))
        call = StoredCall(
            sequence=int(sequence),
            topic_id=topic_id(topic),
            digest=sum(says.encode()),
            spread=partitions,
            starts=dict.fromkeys(partitions, 0),
        )
        self._enter(writer, topic, frozenset(partitions), call)

    def _enter(self, writer: str, topic: str, partitions: frozenset[int], call: StoredCall | None) -> None:
        self._fresh += 1

        def told(entered: Entered) -> str:
            found = entered.writer
            if found.call is None:
                return f"{writer}: may write as {found.producer_id}"
            bases = ", ".join(f"{index} from {found.base_sequence(index)}" for index in sorted(set(found.call.spread)))
            again = "again, " if entered.is_repeat else ""
            return f"{writer}: may write {again}as {found.producer_id}: {bases}"

        request = Enter(
            writer=writer,
            fresh_producer_id=self._fresh,
            topic=topic,
            topic_id=topic_id(topic),
            partitions=partitions,
            call=call,
        )
        self._ask(request, told)

    def do_commit(self, *words: str) -> None:
        keys = [word.removeprefix("key=") for word in words if word.startswith("key=")]
        writers = tuple(word for word in words if not word.startswith("key="))
        self._ask(CommitJoint(keys[0] if keys else None, writers or None), lambda _: "commit is decided")

    def do_abort(self) -> None:
        self._ask(AbortJoint(), lambda _: "abort is decided")

    def do_result(self) -> None:
        def told(ended: JointEnd) -> str:
            reason = "" if ended.reason is None else f" ({ended.reason.value})"
            return f"{ended.state.value}{reason}: {_names(ended.committed)} in, {_names(ended.aborted)} out"

        self._ask(AwaitEnd(), told)

    def do_expire(self) -> None:
        self.shard.expire()

    def do_describe(self) -> None:
        found = self.shard.machines.get(NAME)
        if found is None:
            self.out.append("no such transaction")
        else:
            self.out.append(f"{found.state.value}, writers {_names(tuple(found.writers))}")

    # -- what else happens --------------------------------------------------------------------------------------------

    def do_pass(self, span: str) -> None:
        for _ in range(milliseconds(span) // TICK_MS):
            self.now_ms += TICK_MS
            before = len(self.out)
            self.shard.tick()
            self._note_records()
            if len(self.out) > before:
                self.out.insert(before, f"at {self.now_ms / 1000:g} s")

    def do_leap(self, span: str) -> None:
        """Time goes by at once, as while nobody looks."""
        self.now_ms += milliseconds(span)

    def do_stick(self, *places: str) -> None:
        self.markers.stuck |= set(map(place, places))

    def do_free(self) -> None:
        self.markers.stuck.clear()
        self.markers.go_on()

    def do_delete(self, topic: str) -> None:
        self.deleted.add(topic)

    def do_disk(self, how: str) -> None:
        if how == "sync":
            self.journal.commit()
        elif how == "broken":
            self.journal.fail()
        else:
            self.journal.is_full = how == "full"
            self.journal.is_slow = how == "slow"

    def do_restart(self) -> None:
        self.journal.crash()
        self._seen = min(self._seen, self.journal.end_offset)
        self.shard = self._start()
        self.do_describe()

    def do_reread(self) -> None:
        self.do_resign()
        self.out.clear()
        self.shard = self._start()
        self.do_describe()

    def do_resign(self) -> None:
        self.shard.close(NotCoordinator("Another node leads now."))

    def _note_records(self) -> None:
        while self._seen < len(self.journal.records):
            change = from_record(self.journal.records[self._seen])
            self._seen += 1
            assert change is not None
            self.out.append(f"log: {_described(change.key, change.value)}")


def _described(key: Any, value: Any) -> str:
    if value is None:
        return "forgotten" if isinstance(key, JointKey) else f"{key.writer} is gone"
    if isinstance(value, StoredJoint):
        return value.state.value
    assert isinstance(value, StoredWriter)
    places = " ".join(f"{at.topic}/{at.partition}{f'={at.sent}' if at.sent else ''}" for at in value.places)
    return f"{key.writer} is {value.producer_id}, {places}"


def _names(names: tuple[str, ...]) -> str:
    return " ".join(names) or "nobody"
