"""A network between simulated processes: connections that keep their order, stall, and break.

A message takes a random time, but never overtakes another one on its connection. Where the way is cut, messages are
held, as a kernel keeps them to send them again; when the way is open again in time they arrive, late and in order, and
otherwise the connection breaks. A message that is lost takes its connection with it. Nothing is delivered twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Protocol

import msgspec

from penstock.network.frames import Frame, FrameKind, encode_head, joined, parse_frame, pieces_bytes
from penstock.network.port import Pieces
from penstock.testing.loop import Life, SimulatedLoop, detached

Address = tuple[str, int]


class Process(Protocol):
    """Whoever sits at an end of a connection."""

    life: Life
    node_id: int
    address: Address
    is_gone: bool


@dataclass(slots=True)
class Weather:
    """How bad it is. Shares are of one; delays are drawn between nothing and the maximum."""

    delay_max_s: float = 0.002
    broken: float = 0.0  # the share of messages that take their connection with them
    late: float = 0.0  # the share of messages that take a second or so
    patience_max_s: float = 4.0  # how long a stalled connection may last


class SimulatedLink:
    """One end of a connection, as `penstock.network.link.Link` is one end of a socket."""

    def __init__(self, network: SimulatedNetwork, owner: Process, name: str) -> None:
        self._network = network
        self.owner = owner
        self.name = name
        self.other: SimulatedLink = self
        self.on_frame: Callable[[Frame], None] = _ignore
        self.on_closed: Callable[[str], None] = _ignore
        self.unsent_bytes = 0
        self.is_closed = False
        self._last_arrival = 0.0  # of what was sent from here
        self._held: list[bytes] = []  # of what was sent from here and cannot arrive

    def __repr__(self) -> str:
        return f"<SimulatedLink of node {self.owner.node_id} to {self.other.owner.node_id}>"

    # -- as a link ----------------------------------------------------------------------------------------------------

    def send(
        self, kind: FrameKind, number: int, method: str, structure: msgspec.Struct | None = None, body: Pieces = ()
    ) -> None:
        if self.is_closed or self.owner.is_gone:
            return
        frame = encode_head(kind, number, method, structure, pieces_bytes(body)) + bytes(joined(body))
        network = self._network
        way = (self.owner.node_id, self.other.owner.node_id)
        if network.swallows is not None and network.swallows(way, method, structure):
            return
        weather = network.weather
        if weather.broken and network.random.random() < weather.broken:
            network.breaks += 1
            self.shatter("a packet was lost")
            return
        self._last_arrival = max(self._last_arrival, network.loop.time() + network.delay())
        network.plan_at(self._last_arrival, self._arrive, frame)

    def hold_back(self) -> None:
        return

    def close(self, reason: str) -> None:
        """Close this end; the other one learns of it when word arrives."""
        if not self.is_closed:
            self._end(reason)
            self._network.plan(self._network.delay(), self._tell_end)

    def close_when_sent(self, reason: str) -> None:
        self.close(reason)

    # -- on the way ---------------------------------------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        other = self.other.owner
        return other.is_gone or other.life.is_paused or not self._network.is_open(self.owner.node_id, other.node_id)

    def _arrive(self, frame: bytes) -> None:
        if self.other.is_closed:
            return
        if self._held or self.is_stuck:
            self._held.append(frame)
            if len(self._held) == 1:
                self._network.plan(self._network.patience(), self._give_up, frame)
            return
        self.other.hear(frame)

    def _give_up(self, first: bytes) -> None:
        """Break if what was held first is held still."""
        if self._held and self._held[0] is first:
            self.shatter("the other end is silent")

    def resume(self) -> None:
        """Ways are open again: let what was held arrive."""
        if self._held and not self.is_stuck:
            frames, self._held = self._held, []
            for frame in frames:
                self.other.hear(frame)

    def hear(self, frame: bytes) -> None:
        if not self.is_closed and not self.owner.is_gone:
            self._network.messages += 1
            if self._network.on_frame is not None:
                self._network.on_frame(self.other.owner.node_id, self.owner.node_id, frame)
            self.owner.life.run(self.on_frame, parse_frame(memoryview(frame)))

    def _tell_end(self) -> None:
        if not self.is_stuck:
            self.other._end("the other end closed it")
        else:
            self._network.plan(self._network.patience(), self.other._end, "the other end is silent")

    def shatter(self, reason: str) -> None:
        """Break. Each end learns of it in its own time."""
        for end in (self, self.other):
            self._network.plan(self._network.delay(), end._end, reason)

    def _end(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._network.links.pop(self, None)
        on_closed, self.on_closed, self.on_frame = self.on_closed, _ignore, _ignore
        if not self.owner.is_gone:
            self.owner.life.run(on_closed, reason)


def _ignore(_: object) -> None:
    """Nobody listens yet, or any more."""


class SimulatedNetwork:
    """Who is where, and which ways are open."""

    def __init__(self, loop: SimulatedLoop, random: Random, weather: Weather | None = None) -> None:
        self.loop = loop
        self.random = random
        self.weather = weather or Weather()
        self.breaks = 0
        self.messages = 0
        self.on_frame: Callable[[int, int, bytes], None] | None = None  # sees every frame that arrives
        # Whether a message from one node to another, of a method and with that content, gets nowhere.
        self.swallows: Callable[[tuple[int, int], str, msgspec.Struct | None], bool] | None = None
        self.links: dict[SimulatedLink, None] = {}
        self._processes: dict[Address, Process] = {}
        self._cut: set[tuple[int, int]] = set()
        self._context = detached()

    # -- processes ----------------------------------------------------------------------------------------------------

    def listen(self, peers: Process) -> None:
        self._processes[peers.address] = peers

    def listening(self, address: Address) -> Process | None:
        return self._processes.get(address)

    def leave(self, peers: Process, *, is_silent: bool) -> None:
        """A process is gone. Its kernel closes its connections, unless that is gone too (``is_silent``)."""
        peers.is_gone = True
        if self._processes.get(peers.address) is peers:
            del self._processes[peers.address]
        for link in [each for each in self.links if peers is each.owner]:
            if is_silent or not self.is_open(peers.node_id, link.other.owner.node_id):
                self.plan(self.patience(), link.shatter, "the other end is silent")
            else:
                link.shatter("the other end closed it")

    # -- ways ---------------------------------------------------------------------------------------------------------

    def is_open(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) not in self._cut

    @property
    def is_whole(self) -> bool:
        return not self._cut

    def cut(self, sender: int, receiver: int) -> None:
        """Carry nothing more in this direction."""
        self._cut.add((sender, receiver))

    def split(self, here: Iterable[int], there: Iterable[int]) -> None:
        for one in here:
            for other in there:
                self.cut(one, other)
                self.cut(other, one)

    def mend(self, one: int, other: int) -> None:
        """Open the way between two nodes."""
        self._cut -= {(one, other), (other, one)}
        self.resume()

    def heal(self) -> None:
        self._cut.clear()
        self.swallows = None
        self.resume()

    def resume(self) -> None:
        """Let everything arrive that can arrive now."""
        for link in tuple(self.links):
            link.resume()

    # -- time ---------------------------------------------------------------------------------------------------------

    def delay(self) -> float:
        random, weather = self.random, self.weather
        if weather.late and random.random() < weather.late:
            return random.uniform(0.2, 2.5)
        return random.random() * weather.delay_max_s

    def patience(self) -> float:
        """How long somebody waits this time before it takes a silent end for dead."""
        return self.random.uniform(0.5, self.weather.patience_max_s)

    def connect(self, near: Process, far: Process) -> tuple[SimulatedLink, SimulatedLink]:
        """The two ends of a new connection."""
        ends = SimulatedLink(self, near, f"node {far.node_id}"), SimulatedLink(self, far, f"node {near.node_id}")
        for end, other in (ends, ends[::-1]):
            end.other = other
            self.links[end] = None
        return ends

    def plan(self, delay_s: float, event: Callable[..., None], *arguments: object) -> None:
        self.loop.call_later(delay_s, event, *arguments, context=self._context)

    def plan_at(self, when_s: float, event: Callable[..., None], *arguments: object) -> None:
        self.loop.call_at(when_s, event, *arguments, context=self._context)
