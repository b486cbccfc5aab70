"""How a node comes to be a member of a quorum: as one of the first, or by being taken in.

The first nodes are named to each of them (``--peers``). The one with the lowest id is the *founder*: it alone decides
who the first members are, so there is one place where that is decided. It does so once all the others have told it, in
one round and each with the same names, that they belong to no quorum. Every other node waits until it meets one that
belongs to one. If the members there name it with the disk it has, it begins as one of them, having said nothing yet.
Otherwise it asks the leader to be taken in: so does a node that comes later (``--join``), and one that has lost its
disk, which takes the place of its former self as a learner.

A founder that loses its disk in the middle is another founder. So a node that has told a new founder that it belongs
nowhere does not begin on the word of the old one any more.

A node whose metadata is damaged was a member and is none any more: it begins nothing, answers no greeting, and only a
leader that has taken it in as another member makes it one (docs/decisions/0030).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from penstock.clock import Clock
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.quorum.wire import GREET, JOIN, Address, Greet, Greeting, Join, Joined
from penstock.consensus.raft.messages import Entry, EntryKind, Member, Members
from penstock.consensus.records import MetadataRecord, NodeRegistered, decode_records
from penstock.errors import ControllerUnavailable, InvalidRequest, NotController, PenstockError
from penstock.network.port import Peers, check_sender
from penstock.supervision import Supervision


def internal_address(node: NodeRegistered) -> Address | None:
    """Where other nodes reach a node, by its registration."""
    return next(((door.host, door.port) for door in node.endpoints if door.door == "internal"), None)


class Addresses:
    """The addresses of nodes; whatever is new goes to the peers. A node knows its own address best."""

    def __init__(self, peers: Peers, me: int, mine: Address | None) -> None:
        self._peers = peers
        self._me = me
        self._known: dict[int, Address] = {}
        if mine is not None:
            self._known[me] = mine

    def node_ids(self) -> list[int]:
        return sorted(self._known)

    def learn(self, node_id: int, address: Address | None) -> None:
        """From the node itself, or from its registration. A node that was removed may be back: the peers forgot it."""
        if address is not None and node_id != self._me:
            self._known[node_id] = address
            self._peers.introduce(node_id, *address)

    def learn_unknown(self, addresses: Mapping[int, Address]) -> None:
        """From others, who may know less than we do."""
        for node_id, address in sorted(addresses.items()):
            if node_id not in self._known:
                self.learn(node_id, address)

    def read(self, records: Iterable[MetadataRecord]) -> None:
        """From metadata records."""
        for record in records:
            if isinstance(record, NodeRegistered):
                self.learn(record.node_id, internal_address(record))

    def read_entries(self, entries: Iterable[Entry]) -> None:
        """From entries that may not be committed: to look somewhere in vain does no harm."""
        for entry in entries:
            if entry.kind is EntryKind.COMMAND and b"NodeRegistered" in entry.data:
                self.read(decode_records(entry.data))

    def all(self, metadata: ClusterMetadata) -> dict[int, Address]:
        registered = {node_id: internal_address(node) for node_id, node in metadata.nodes.items()}
        return {node_id: address for node_id, address in registered.items() if address is not None} | self._known


log = logging.getLogger(__name__)

_CALL_TIMEOUT_S: Final = 2.0
_PAUSE_S: Final = 0.2
_SETTLING_PAUSE_S: Final = 0.5
_HEALING_WAIT_S: Final = 60.0  # for a leader, with damaged metadata


@dataclass(frozen=True, slots=True)
class FormationPlan:
    """What a node was told of the others. Neither first nodes nor one to join: it is a quorum of one."""

    first: Mapping[int, Address] = field(default_factory=dict)  # this node among them
    join: Address | None = None
    address: Address | None = None  # where others reach this node

    def has_others(self, node_id: int) -> bool:
        """Whether any other node is named."""
        return self.join is not None or any(other != node_id for other in self.first)


class Formation:
    """Brings a node's member into a quorum, and others into the quorum of this one."""

    def __init__(
        self, quorum: Quorum, peers: Peers, plan: FormationPlan, random: Random, clock: Clock, supervision: Supervision
    ) -> None:
        self._quorum = quorum
        self._store = quorum.store
        self._me = quorum.me
        self._peers = peers
        self._plan = plan
        self._random = random
        self._clock = clock
        self._supervision = supervision
        self._first = tuple(sorted(plan.first)) or (() if plan.join else (self._me.node_id,))
        self._founder = self._first[0] if self._first else None
        self._founder_heard: str | None = None  # the disk of the founder that was told that we belong nowhere
        self._beginning: Members | None = None  # being written
        self._settling: asyncio.Task[None] | None = None
        self._last_said = ""
        self._addresses = Addresses(peers, self._me.node_id, plan.address)
        for node_id, address in sorted(plan.first.items()):
            self._addresses.learn(node_id, address)
        self._addresses.read_entries(self._store.entries)
        quorum.listen(self._on_applied, self._on_reset, _ignore_lead)
        peers.serve(GREET, self._on_greet)
        peers.serve(JOIN, self._on_join)

    async def begin(self) -> None:
        """Return when this node's member has begun to take part, however long the others let it wait."""
        waiting_until = self._clock.monotonic() + _HEALING_WAIT_S
        while not self._store.is_formed:
            await self._try_to_form()
            if self._store.damage is not None and self._clock.monotonic() >= waiting_until:
                raise self._store.damage
            if not self._store.is_formed:
                await asyncio.sleep(_PAUSE_S * (1 + self._random.random()))
        self._quorum.start()
        self._settling = self._supervision.start("settling in the quorum", self._settle)

    async def stop(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)

    # -- forming ------------------------------------------------------------------------------------------------------

    async def _try_to_form(self) -> None:
        greetings = await self._greet_all()
        formed = [greeting for greeting in greetings if greeting.members is not None]
        if (damage := self._store.damage) is not None:
            leaders = [greeting for greeting in formed if greeting.leader_id == greeting.node_id]
            if not leaders or not await self._ask_in(leaders):
                self._log_once(f"{damage.message} Waiting for a leader of the others.")
            return
        for greeting in formed:
            assert greeting.members is not None
            if greeting.members.knows(self._me) and not self._is_outdated(greeting):
                await self._begin_with(greeting.members)
                return
        if formed:
            await self._ask_in(formed)
        elif self._founder == self._me.node_id:
            await self._found(greetings)
        else:
            self._log_once("Waiting for the other nodes of the cluster.")

    async def _found(self, greetings: Sequence[Greeting]) -> None:
        # A node that wants to join is answered as well, and has no say in which the first nodes are.
        others = {greeting.node_id: greeting for greeting in greetings if greeting.node_id in self._first}
        missing = [node_id for node_id in self._first if node_id != self._me.node_id and node_id not in others]
        if missing:
            self._log_once(f"Waiting for {_nodes(missing)} to form the cluster.")
            return
        at_odds = [node_id for node_id, greeting in others.items() if greeting.first != self._first]
        if at_odds:
            self._log_once(
                f"The first nodes are {self._first} here, but not on {_nodes(at_odds)}: give all the same --peers."
            )
            return
        disks = {node_id: greeting.directory_id for node_id, greeting in others.items()}
        disks[self._me.node_id] = self._me.directory_id
        await self._begin_with(Members({node_id: disks[node_id] for node_id in self._first}))

    def _is_outdated(self, greeting: Greeting) -> bool:
        """Whether the founder says so, but has another disk than the one that we last told that we belong nowhere."""
        return greeting.node_id == self._founder and self._founder_heard not in {None, greeting.directory_id}

    async def _begin_with(self, members: Members, reach: int = 0) -> None:
        self._beginning = members
        await asyncio.to_thread(self._store.form, members, reach)
        log.info("Node %d begins in a quorum with voters %s.", self._me.node_id, sorted(members.voters))

    async def _ask_in(self, formed: Sequence[Greeting]) -> bool:
        """Ask the leader, or a node that may know it, to be taken in; whether that is done."""
        leaders = [greeting.leader_id for greeting in formed if greeting.leader_id is not None]
        to_ask = list(dict.fromkeys([*leaders, *(greeting.node_id for greeting in formed)]))
        asked: list[int] = []
        request = Join(node_id=self._me.node_id, directory_id=self._me.directory_id, address=self._plan.address)
        while to_ask:
            node_id = to_ask.pop(0)
            if node_id in asked:
                continue
            asked.append(node_id)
            try:
                received = await self._peers.call(node_id, JOIN, request)
            except PenstockError as error:
                self._log_once(f"Node {node_id} did not take this node in. {error.message}")
                continue
            joined: Joined = received.reply
            self._addresses.learn_unknown(joined.addresses)
            if joined.members is not None:
                if not self._store.is_formed:
                    await self._begin_with(joined.members, joined.index)
                return True
            if joined.leader_id is not None:
                to_ask.insert(0, joined.leader_id)
            self._log_once(f"Node {node_id} did not take this node in yet. {joined.reason}")
        return False

    async def _settle(self) -> None:
        """Say where this node is, and see that a leader knows it: it may have been replaced while it was away."""
        if self._quorum.members.voters == {self._me.node_id: self._me.directory_id}:
            return
        while True:
            greetings = await self._greet_all()
            quorum = self._quorum
            if quorum.leader_id is not None and quorum.members.knows(self._me):
                return
            strange = [
                greeting
                for greeting in greetings
                if greeting.leader_id == greeting.node_id
                and greeting.members is not None
                and not greeting.members.knows(self._me)
            ]
            if strange:
                await self._ask_in(strange)
            await asyncio.sleep(_SETTLING_PAUSE_S * (1 + self._random.random()))

    # -- greeting -----------------------------------------------------------------------------------------------------

    async def _greet_all(self) -> list[Greeting]:
        """The greetings of all who answer, this round."""
        members = self._quorum.members
        node_ids = {*self._first, *self._addresses.node_ids(), *members.voters, *members.learners} - {self._me.node_id}
        calls = [self._greet(node_id) for node_id in sorted(node_ids)]
        if self._plan.join is not None:
            calls.append(self._greet_address(self._plan.join))
        found = await asyncio.gather(*calls)
        greetings = [greeting for greeting in found if greeting is not None]
        for greeting in greetings:
            self._addresses.learn_unknown(greeting.addresses)
        return greetings

    def _greet_request(self) -> Greet:
        return Greet(
            node_id=self._me.node_id,
            directory_id=self._me.directory_id,
            address=self._plan.address,
            first=self._first,
        )

    async def _greet(self, node_id: int) -> Greeting | None:
        try:
            received = await self._peers.call(node_id, GREET, self._greet_request(), timeout_s=_CALL_TIMEOUT_S)
        except PenstockError as error:
            log.debug("Node %d does not answer: %s", node_id, error.message)
            return None
        greeting: Greeting = received.reply
        return greeting

    async def _greet_address(self, address: Address) -> Greeting | None:
        try:
            received = await self._peers.call_address(*address, GREET, self._greet_request(), timeout_s=_CALL_TIMEOUT_S)
        except PenstockError as error:
            self._log_once(f"No node answers at {address[0]}:{address[1]}. {error.message}")
            return None
        greeting: Greeting = received.reply
        if greeting.node_id == self._me.node_id:
            self._log_once(f"The node at {address[0]}:{address[1]} has this node's id, {self._me.node_id}.")
            return None
        self._addresses.learn_unknown({greeting.node_id: address})
        return greeting

    def _on_greet(self, sender: int, greet: Greet, body: memoryview) -> Greeting:
        del body
        check_sender(sender, greet.node_id)
        if self._store.damage is not None:
            raise ControllerUnavailable(f"The metadata of node {self._me.node_id} is damaged.")
        if not self._peers.is_connected(greet.node_id):  # one that is reached has no other address
            self._addresses.learn(greet.node_id, greet.address)
        members = self._quorum.members if self._store.is_formed else self._beginning
        if members is None and greet.node_id == self._founder:
            self._founder_heard = greet.directory_id
        return Greeting(
            node_id=self._me.node_id,
            directory_id=self._me.directory_id,
            first=self._first,
            members=members,
            leader_id=self._quorum.leader_id,
            addresses=self._addresses.all(self._quorum.metadata),
        )

    # -- taking others in ---------------------------------------------------------------------------------------------

    async def _on_join(self, sender: int, join: Join, body: memoryview) -> Joined:
        del body
        check_sender(sender, join.node_id)
        member = Member(join.node_id, join.directory_id)
        reason = self._why_not(member)
        if not reason:
            self._addresses.learn(join.node_id, join.address)
            try:
                await self._take_in(member)
            except (NotController, ControllerUnavailable, InvalidRequest) as error:
                reason = error.message
        return Joined(
            members=None if reason else self._quorum.members,
            leader_id=self._quorum.leader_id,
            addresses=self._addresses.all(self._quorum.metadata),
            reason=reason,
            index=self._quorum.commit_index,
        )

    def _why_not(self, member: Member) -> str:
        quorum = self._quorum
        if not quorum.is_leader:
            return f"Node {self._me.node_id} does not lead the quorum."
        if member.node_id == self._me.node_id and member != self._me:
            return f"Node {member.node_id} is the leader's own id. Give each node an id of its own."
        silent_ms = quorum.silent_ms(member.node_id)
        if silent_ms is not None and silent_ms < 2 * quorum.pace.election_ms and not quorum.members.knows(member):
            return f"A node with the id {member.node_id} and another disk was here a moment ago."
        return ""

    async def _take_in(self, member: Member) -> None:
        members = self._quorum.members
        if members.knows(member):
            if not self._quorum.has_settled_members:
                raise NotController("A change of members is not settled yet.")
            return
        log.info("Taking in node %d as a learner.", member.node_id)
        await self._quorum.change_members(members.without(member.node_id).with_learner(member))

    # -- what is learned by the way -----------------------------------------------------------------------------------

    def _on_applied(self, index: int, records: Sequence[MetadataRecord]) -> None:
        del index
        self._addresses.read(records)

    def _on_reset(self) -> None:
        self._addresses.read(self._quorum.metadata.nodes.values())

    def _log_once(self, text: str) -> None:
        """Log, but not the same again in every round."""
        if text != self._last_said:
            self._last_said = text
            log.info("%s", text)


def _ignore_lead(is_leading: bool) -> None:
    del is_leading


def _nodes(node_ids: Sequence[int]) -> str:
    names = ", ".join(str(node_id) for node_id in node_ids)
    return f"node {names}" if len(node_ids) == 1 else f"nodes {names}"
