"""A stage for stories: a quorum in which nothing happens by itself.

Messages lie in the post until the story delivers, drops or keeps them; time passes and nodes look at the clock only
when the story says so; disks write at once unless they are held. The oracles watch as they do in a swarm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.consensus.raft.core import Raft
from penstock.consensus.raft.leading import RaftTiming
from penstock.consensus.raft.messages import Members, RaftMessage, Snapshot
from sim.oracles import Violation
from sim.quorum import Node, Quorum, tell

PIECE_BYTES: Final = 24
_MESSAGES_MAX: Final = 1_000


class Actor(Node):
    """A node that does only what the story says."""

    is_disk_held = False

    @property
    def core(self) -> Raft:
        assert self.raft is not None, f"{self} is down"
        return self.raft

    def restart(self) -> None:
        self.crash()
        self.is_disk_held = False
        self.start()

    def hold_disk(self) -> None:
        """From now on nothing reaches the disk."""
        self.is_disk_held = True

    def release_disk(self) -> None:
        self.is_disk_held = False
        if self._waiting:
            self._write_next()

    def propose(self, data: bytes) -> None:
        self.act(partial(Raft.propose, data=data))

    def read(self, token: int) -> None:
        self.quorum.oracles.on_read_asked(token)
        self.act(partial(Raft.read, token=token))

    def change(self, members: Members) -> None:
        self.act(partial(Raft.change_members, members=members))

    def install(self, snapshot: Snapshot) -> None:
        """Let a snapshot stand for what is applied here, whatever its bytes."""
        self.disk.compact(snapshot)
        self.core.compact(snapshot)

    def _plan_tick(self) -> None:
        pass

    def _write_next(self) -> None:
        if not self.is_disk_held:
            batch, self._waiting = self._waiting, []
            self._written(self.lives, batch)


class Stage(Quorum):
    """Actors and the post between them."""

    def __init__(self, nodes: int, *, voters: int | None = None, entries_at_once: int = 512) -> None:
        self.post: list[RaftMessage] = []
        self.actors: dict[int, Actor] = {}
        super().__init__(0, nodes, voters=voters, is_kept=True)
        self.pace = RaftTiming(entries_at_once=entries_at_once, piece_bytes=PIECE_BYTES)
        for actor in self.actors.values():
            actor.restart()

    def make_node(self, node_id: int) -> Node:
        actor = self.actors[node_id] = Actor(self, node_id, self.first_members)
        return actor

    def __getitem__(self, node_id: int) -> Actor:
        return self.actors[node_id]

    def carry(self, message: RaftMessage) -> None:
        self.watch(message)
        self.post.append(message)

    # -- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, duration_ms: int) -> None:
        self.events.now_ms += duration_ms

    def tick(self, node_id: int) -> None:
        self[node_id].tick()

    # -- the post -----------------------------------------------------------------------------------------------------

    def deliver(self, *nodes: int) -> None:
        """Deliver what these nodes have for each other, and what follows from it. For others it stays in the post."""
        for _ in range(_MESSAGES_MAX):
            message = self._next(lambda message: {message.sender.node_id, message.to} <= {*nodes})
            if message is None:
                return
            self.hand(message)
        raise Violation("quiet: they answer each other for ever")

    def hand(self, message: RaftMessage) -> None:
        """Deliver one message, maybe not for the first time."""
        self.actors[message.to].receive(message)

    def drop(self) -> None:
        """What is in the post is lost."""
        for message in self.post:
            self.note(f"lost for node {message.to}: {tell(message)}")
        self.post.clear()

    def keep(self, kind: type[RaftMessage], sender: int, to: int) -> list[RaftMessage]:
        """Take messages out of the post, to hand them over later."""
        kept = []
        while (
            message := self._next(
                lambda message: isinstance(message, kind) and (message.sender.node_id, message.to) == (sender, to)
            )
        ) is not None:
            kept.append(message)
        return kept

    def _next(self, is_wanted: Callable[[RaftMessage], bool]) -> RaftMessage | None:
        for at, message in enumerate(self.post):
            if is_wanted(message):
                return self.post.pop(at)
        return None

    # -- what stories are made of -------------------------------------------------------------------------------------

    def stand(self, node_id: int) -> None:
        """Everybody has lost patience, and this node is the first to ask. What was in the post is lost."""
        self.drop()
        core = self[node_id].core
        before = core.term
        for _ in range(2):  # a leader of old first has to see that it is none
            if not self.post and core.term == before:
                self.pass_time(2 * self.pace.election_ms)
                self.tick(node_id)

    def campaign(self, node_id: int, *with_nodes: int, is_heard: bool = True, tries: int = 3) -> bool:
        """Stand until these nodes' votes elect it, if ever; terms differ, so the first try may be in vain.

        If it is heard as a leader too, it goes on until all is said. What is in the post after that is lost.
        """
        return any(self._campaign_once(node_id, with_nodes, is_heard=is_heard) for _ in range(tries))

    def _campaign_once(self, node_id: int, with_nodes: tuple[int, ...], *, is_heard: bool) -> bool:
        self.stand(node_id)
        wanted = {node_id, *with_nodes}
        while not self[node_id].core.is_leader:
            message = self._next(lambda message: {message.sender.node_id, message.to} <= wanted)
            if message is None:
                return False
            self.hand(message)
        if is_heard:
            self.deliver(*wanted)
        self.drop()
        return True

    def elect(self, node_id: int, *with_nodes: int, is_heard: bool = True) -> None:
        assert self.campaign(node_id, *with_nodes, is_heard=is_heard), f"{with_nodes} did not elect {self[node_id]}"

    def beat(self, node_id: int, *with_nodes: int) -> None:
        """A leader's heartbeat and all that follows from it, among these."""
        self.pass_time(self.pace.heartbeat_ms)
        self.tick(node_id)
        self.deliver(node_id, *with_nodes)
