"""Scenarios as text: each line an event, and under it, indented, what comes of it.

    join A                           a member without an id; it remembers what it is told
    join A session=10s by=range,sticky wants=orders,bills instance=i1 rebalance=60s version=3
    sync A gives A=0,1 B=2           the leader brings assignments; ``sync B`` asks for one
    beat A · leave A B · leave @i1   heartbeats and leaving; ``@i1`` is a static member by its instance alone
    commit A orders/0=5              with ``metadata=9`` so many bytes of it; ``nobody`` is no member
    fetch orders/0 · delete · delete orders/0 · expire · describe
    pass 3s · work A 6d              time goes by, in ticks of 50 ms; A sends heartbeats all the while
    disk full|fine|slow|sync|broken  what the log does; ``slow`` commits nothing until ``sync``
    restart · resign                 a new process reads the log; or somebody else takes over

``A~1`` speaks with generation 1 instead of the one it was told. Expected text is written by running the tests with
PENSTOCK_REWRITE=1, and then read by a person.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from tests.unit.groups.journal import MemoryJournal

from penstock.config.settings import GroupSettings
from penstock.errors import CoordinationError, NotCoordinator
from penstock.features.groups.coordinator import GroupShard
from penstock.features.groups.messages import (
    CommitOffsets,
    Delete,
    DeleteOffsets,
    JoinedGroup,
    JoinRequest,
    Leave,
    Left,
    MemberIdentity,
    OffsetCommit,
    Promised,
    Settled,
    SyncedGroup,
    SyncGroup,
)
from penstock.features.groups.records import GroupKey, OffsetKey, StoredGroup, StoredOffset, from_record
from penstock.machines.messages import Rejected, Request

GROUP = "g"
TICK_MS = 50
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}


def subscription(*topics: str, owned: bytes = b"") -> bytes:
    """A consumer's metadata: the topics it wants, and what else it says."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", len(owned)) + owned


def milliseconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    assert match, f"not a duration: {text}"
    return int(match[1]) * _UNITS[match[2]]


class Client:
    """What a member remembers between its requests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = ""
        self.generation = -1
        self.instance: str | None = None
        self.joins = 0

    def identity(self, generation: str | None = None) -> MemberIdentity:
        spoken = self.generation if generation is None else int(generation)
        return MemberIdentity(member_id=self.id, instance_id=self.instance, generation=spoken)


class Transcript:
    """Plays a scenario line by line."""

    def __init__(self) -> None:
        self.config = GroupSettings()
        self.journal = MemoryJournal()
        self.now_ms = 0
        self.clients: dict[str, Client] = {}
        self.out: list[str] = []
        self._seen = 0
        self._fresh = 0
        self.shard = self._start()

    def play(self, line: str) -> list[str]:
        """Do what a line says, and return what came of it."""
        self.out = []
        verb, *words = line.split()
        try:
            getattr(self, f"do_{verb}")(*words)
        except CoordinationError as error:
            self.out.append(f"refused: {error.code}")
        self._note_records()
        return self.out

    def _start(self) -> GroupShard:
        shard = GroupShard(self.journal, self.config, lambda: self.now_ms, lambda: self.now_ms, lambda work: work())
        shard.open(shard.read_log())
        return shard

    def _client(self, word: str) -> tuple[Client, str | None]:
        name, _, generation = word.partition("~")
        return self.clients.setdefault(name, Client(name)), generation or None

    def _ask(self, who: str, request: Request[Any], told: Callable[[Any], str]) -> None:
        def reply(answer: Any) -> None:
            self._note_records()
            text = f"refused: {answer.error.code}" if isinstance(answer, Rejected) else told(answer)
            self.out.append(f"{who}: {text}")

        try:
            self.shard.ask(GROUP, request, reply)
        except CoordinationError as error:
            self.out.append(f"{who}: refused: {error.code}")

    # -- members ------------------------------------------------------------------------------------------------------

    def do_join(self, word: str, *options: str) -> None:
        client, _ = self._client(word)
        chosen = dict(option.split("=", 1) for option in options)
        client.instance = chosen.get("instance", client.instance)
        if "id" in chosen:
            client.id = chosen["id"].strip("-")
        client.joins += 1
        self._fresh += not client.id
        version = int(chosen.get("version", 9))
        metadata = self._metadata(client, chosen)
        session_ms = milliseconds(chosen.get("session", "45s"))
        request = JoinRequest(
            member_id=client.id,
            instance_id=client.instance,
            client_id=client.name,
            client_host="/here",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=milliseconds(chosen.get("rebalance", "60s")),
            protocol_type=chosen.get("type", "consumer"),
            protocols=tuple((name, metadata) for name in chosen.get("by", "range").split(",")),
            fresh_id=f"{client.name.lower()}{self._fresh}",
            takes_id_first=version >= 4,
            can_skip_assignment=version >= 9,
        )

        def told(answer: JoinedGroup | Promised) -> str:
            client.id = answer.member_id
            if isinstance(answer, Promised):
                return f"has to come back as {answer.member_id}"
            client.generation = answer.generation
            leads = answer.leader_id == answer.member_id
            role = f"leads {' '.join(each[0] for each in answer.members)}" if leads else f"follows {answer.leader_id}"
            skips = ", nothing to assign" if answer.skips_assignment else ""
            return f"is {answer.member_id} in generation {answer.generation} by {answer.protocol}, {role}{skips}"

        self._ask(client.name, request, told)

    def _metadata(self, _client: Client, chosen: dict[str, str]) -> bytes:
        return subscription(*chosen.get("wants", "orders").split(","), owned=chosen.get("owns", "").encode())

    def _topic_id(self, _topic: str) -> str:
        return "id"

    def do_sync(self, word: str, *words: str) -> None:
        client, generation = self._client(word)
        given = [pair.split("=") for pair in words if pair != "gives"]
        request = SyncGroup(
            identity=client.identity(generation),
            protocol_type="consumer",
            protocol=None,
            assignments=tuple((self._client(name)[0].id, what.encode()) for name, what in given),
        )

        def told(answer: SyncedGroup) -> str:
            return f"gets {answer.assignment.decode() or 'nothing'}"

        self._ask(client.name, request, told)

    def do_beat(self, word: str) -> None:
        client, generation = self._client(word)
        try:
            self.shard.heartbeat(GROUP, client.identity(generation))
        except CoordinationError as error:
            self.out.append(f"{client.name}: refused: {error.code}")
        else:
            self.out.append(f"{client.name}: fine")

    def do_leave(self, *words: str) -> None:
        def identity(word: str) -> MemberIdentity:
            if word.startswith("@"):
                return MemberIdentity(member_id="", instance_id=word[1:])
            return self._client(word)[0].identity()

        def told(answer: Left) -> str:
            return ", ".join("gone" if error is None else f"refused: {error.code}" for error in answer.errors)

        self._ask(" ".join(words), Leave(tuple(identity(word) for word in words)), told)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def do_commit(self, word: str, *words: str) -> None:
        client, generation = self._client(word)
        if client.name == "nobody":
            client = Client("nobody")
        metadata = "m" * next((int(each.split("=")[1]) for each in words if each.startswith("metadata=")), 0)
        rows = [re.fullmatch(r"(\w+)/(\d+)=(-?\d+)", each) for each in words if not each.startswith("metadata=")]
        offsets = tuple(
            OffsetCommit(row[1], int(row[2]), int(row[3]), -1, metadata, self._topic_id(row[1])) for row in rows if row
        )

        def told(answer: Settled) -> str:
            refused = [f"{topic}/{at} refused: {why.code}" for (topic, at), why in answer.refused.items()]
            return ", ".join(refused) or "committed"

        self._ask(client.name, CommitOffsets(client.identity(generation), offsets), told)

    def do_fetch(self, place: str) -> None:
        self.shard.check()
        group = self.shard.machines.get(GROUP)
        topic, at = place.split("/")
        kept = group.offsets.get((topic, int(at))) if group else None

        def show(error: object) -> None:
            self.out.append(f"{place} is at {'refused' if error else kept.offset if kept else 'nothing'}")

        self.shard.when_settled(show)

    def do_delete(self, *places: str) -> None:
        if not places:
            self._ask("group", Delete(), lambda _: "deleted")
            return
        wheres = tuple((place.split("/")[0], int(place.split("/")[1])) for place in places)

        def told(answer: Settled) -> str:
            return ", ".join(f"{topic}/{at} in use" for topic, at in answer.refused) or "deleted"

        self._ask("offsets", DeleteOffsets(wheres), told)

    def do_expire(self) -> None:
        self.shard.expire()

    def do_describe(self) -> None:
        group = self.shard.machines.get(GROUP)
        self.out.append("no such group" if group is None else repr(group)[1:-1])

    # -- time and faults ----------------------------------------------------------------------------------------------

    def do_pass(self, duration: str) -> None:
        end_ms = self.now_ms + milliseconds(duration)
        step_ms = TICK_MS if milliseconds(duration) <= _UNITS["h"] else _UNITS["h"]
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + step_ms, end_ms)
            before = len(self.out)
            self.shard.tick()
            self._note_records()
            if len(self.out) > before:
                self.out[before:] = [f"{line}, at {self.now_ms / 1000:g} s" for line in self.out[before:]]

    def do_work(self, word: str, duration: str) -> None:
        client, _ = self._client(word)
        for _ in range(milliseconds(duration) // milliseconds("20m")):
            self.now_ms += milliseconds("20m")
            self.shard.heartbeat(GROUP, client.identity())
            self.shard.tick()

    def do_disk(self, what: str) -> None:
        self.journal.is_full = what == "full"
        if what == "slow":
            self.journal.is_slow = True
        elif what == "sync":
            self.journal.commit()
        elif what == "broken":
            self.journal.fail()
        elif what == "fine":
            self.journal.is_slow = False

    def do_restart(self) -> None:
        self.journal.crash()
        self._seen = len(self.journal.records)
        self.shard = self._start()
        self.do_describe()

    def do_resign(self) -> None:
        self.shard.close(NotCoordinator("Somebody else leads."))

    # -- what came out ------------------------------------------------------------------------------------------------

    def _note_records(self) -> None:
        self._seen = min(self._seen, len(self.journal.records))
        for record in self.journal.records[self._seen :]:
            change = from_record(record)
            self.out.append(f"log: {self._describe(change.key, change.value)}")
        self._seen = len(self.journal.records)

    def _describe(self, key: GroupKey | OffsetKey, value: StoredGroup | StoredOffset | None) -> str:
        if isinstance(key, OffsetKey):
            place = f"{key.topic}/{key.partition}"
            return f"{place} = {value.offset}" if isinstance(value, StoredOffset) else f"{place} is gone"
        if not isinstance(value, StoredGroup):
            return "the group is gone"
        members = " ".join(f"{each.member_id}={each.assignment.decode()}" for each in value.members)
        return f"generation {value.generation}, {members or 'empty'}"
