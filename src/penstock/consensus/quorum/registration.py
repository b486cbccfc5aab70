"""This node's standing in the cluster: it registers, says that it lives, and asks before it leaves.

A node that gets no answer for a whole session has lost the quorum: others may lead what it led, so it must not
acknowledge anything that they would have to know of. `Registration.has_quorum` tells, and so does ``on_quorum``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.clock import Clock
from penstock.consensus.commands import Admitted, DoubtedReplica, Heard, Heartbeat, RegisterNode
from penstock.consensus.quorum.client import ControllerClient
from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.records import Endpoint
from penstock.errors import (
    ControllerUnavailable,
    DuplicateNode,
    NodeNotFound,
    PenstockError,
    StaleNodeEpoch,
)
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.2
_LEAVING_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """Who this node is."""

    node_id: int
    directory_id: str
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None


class DiskReport(Protocol):
    """What a node has to tell about its disk."""

    @property
    def has_lost_writes(self) -> bool:
        """Whether anything that was acknowledged may be missing."""

    @property
    def is_unable(self) -> bool:
        """Whether it takes no writes at present."""

    @property
    def doubtful(self) -> tuple[DoubtedReplica, ...]:
        """Replicas that may lack something, and that the controller does not know of yet."""

    def on_reported(self, doubtful: tuple[DoubtedReplica, ...]) -> None:
        """The controller knows of these now."""


class SoundDisk:
    """Nothing is wrong with it."""

    has_lost_writes = False
    is_unable = False
    doubtful: tuple[DoubtedReplica, ...] = ()

    def on_reported(self, doubtful: tuple[DoubtedReplica, ...]) -> None:
        assert not doubtful


def _ignore(_: bool) -> None:
    """The default of a listener."""


class Registration:
    """One life of a node in the cluster."""

    def __init__(
        self,
        identity: NodeDescription,
        quorum: Quorum,
        controller: ControllerClient,
        clock: Clock,
        *,
        session_ms: int = 2_000,
        heartbeat_ms: int = 500,
        supervision: Supervision,
        disk: DiskReport | None = None,
        on_admitted: Callable[[int], None] = lambda _: None,
        on_quorum: Callable[[bool], None] = _ignore,
    ) -> None:
        self.identity = identity
        self.epoch = -1
        self.has_quorum = False
        self.is_fenced = True
        self.is_removed = False
        self._quorum = quorum
        self._controller = controller
        self._clock = clock
        self._session_s = session_ms / 1000
        self._heartbeat_s = heartbeat_ms / 1000
        self._on_quorum = on_quorum
        self._supervision = supervision
        self._disk = disk or SoundDisk()
        self._is_loss_told = False
        self._on_admitted = on_admitted
        self._answered_at = 0.0
        self._is_leaving = False
        self._may_leave = False
        self._changed = asyncio.Event()
        self._beats: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register; returns when this node is let in. Waits for a quorum as long as it takes."""
        await self._register()
        self._beats = self._supervision.start("heartbeats", self._beat_on)
        while self.is_fenced:
            self._changed.clear()
            await asyncio.wait(
                (self._beats, changed := asyncio.ensure_future(self._changed.wait())),
                return_when=asyncio.FIRST_COMPLETED,
            )
            changed.cancel()
            if self._beats.done():
                self._beats.result()
                raise NodeNotFound(f"Node {self.identity.node_id} was removed from the cluster.")

    async def leave(self, timeout_s: float = _LEAVING_S) -> None:
        """Ask to stop: returns when others lead what this node led, or can't, or after a few seconds."""
        self._is_leaving = True
        if self._beats is None or self._beats.done():
            return
        await self._stop_beats()
        until = self._clock.monotonic() + timeout_s
        while not self._may_leave and (left := until - self._clock.monotonic()) > 0:
            try:
                heard = await self._controller.submit(self._heartbeat(), timeout_s=left)
            except PenstockError as error:
                log.info("This node leaves without being told that it may: %s", error.message)
                return
            assert isinstance(heard, Heard)
            self._may_leave = heard.may_leave
            if not self._may_leave:
                await asyncio.sleep(min(self._heartbeat_s, _AGAIN_S))

    async def stop(self) -> None:
        """Say nothing more. Unless `leave` came first, the others wait for a session before they give this node up."""
        await self._stop_beats()
        self._set_quorum(has_quorum=False)

    async def _stop_beats(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)

    # -- registering --------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        identity = self.identity
        patience_until: float | None = None
        while True:
            doubtful = self._disk.doubtful
            command = RegisterNode(
                node_id=identity.node_id,
                directory_id=identity.directory_id,
                endpoints=identity.endpoints,
                rack=identity.rack,
                has_lost_writes=not self._is_loss_told and self._disk.has_lost_writes,
                doubtful=doubtful,
            )
            try:
                admitted = await self._controller.submit(command)
                break
            except ControllerUnavailable:
                log.info("Waiting for a quorum to register with.")
            except DuplicateNode:
                # A node that was wiped and came back at once: its earlier life is over when a session is.
                now = self._clock.monotonic()
                patience_until = patience_until or now + 3 * self._session_s
                if now >= patience_until:
                    raise
                await asyncio.sleep(_AGAIN_S)
        assert isinstance(admitted, Admitted)
        self.epoch = admitted.epoch
        self.is_fenced = True
        self._is_loss_told = True
        self._disk.on_reported(doubtful)
        self._answered_at = self._clock.monotonic()
        self._on_admitted(self.epoch)
        self._set_quorum(has_quorum=True)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            node_id=self.identity.node_id,
            epoch=self.epoch,
            applied_index=self._quorum.applied_index,
            is_leaving=self._is_leaving,
            is_unable=self._disk.is_unable,
        )

    async def _beat_on(self) -> None:
        while True:
            sent_at = self._clock.monotonic()
            watch = asyncio.get_running_loop().call_later(self._until_lost(), self._check_quorum)
            try:
                await self._beat(sent_at)
            except NodeNotFound:
                self.is_removed = True
                self._set_quorum(has_quorum=False)
                log.error("Node %d was removed from the cluster. It takes no part until it is restarted.", self._id)
                return
            finally:
                watch.cancel()
            self._check_quorum()
            # One that waits to be let in asks more often: it only has to apply a few entries.
            interval_s = min(self._heartbeat_s, 0.05) if self.is_fenced else self._heartbeat_s
            await asyncio.sleep(max(0.0, sent_at + interval_s - self._clock.monotonic()))

    async def _beat(self, sent_at: float) -> None:
        try:
            heard = await self._controller.submit(self._heartbeat(), timeout_s=self._session_s)
        except StaleNodeEpoch:
            log.warning("Node %d was registered anew elsewhere; it registers again.", self._id)
            await self._register()
            return
        except NodeNotFound:
            raise
        except PenstockError as error:
            log.info("No answer to a heartbeat of node %d: %s", self._id, error.message)
            return
        assert isinstance(heard, Heard)
        # The controller gave this node a session when it heard it: not before it was sent.
        self._answered_at = sent_at
        if heard.is_fenced != self.is_fenced:
            self.is_fenced = heard.is_fenced
            log.info("Node %d is %s.", self._id, "fenced" if heard.is_fenced else "let in")
        self._set_quorum(has_quorum=True)
        self._changed.set()

    @property
    def _id(self) -> int:
        return self.identity.node_id

    def _until_lost(self) -> float:
        return max(0.0, self._answered_at + self._session_s - self._clock.monotonic())

    def _check_quorum(self) -> None:
        if self._until_lost() <= 0 and not self._quorum.is_alone:
            self._set_quorum(has_quorum=False)

    def _set_quorum(self, *, has_quorum: bool) -> None:
        if has_quorum != self.has_quorum:
            self.has_quorum = has_quorum
            self._on_quorum(has_quorum)
