"""What a broker stands on: disk, time, chance and the other nodes. A simulation puts its own in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from uuid import UUID, uuid4

from penstock.clock import Clock, SystemClock
from penstock.network.port import Peers
from penstock.network.tcp import TcpPeers
from penstock.storage.commit import GroupCommit
from penstock.storage.files import DiskFiles, Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The real ones by default. ``peers`` has to be started before the broker is."""

    peers: Peers
    files: Files = field(default_factory=DiskFiles)
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    open_commit: Callable[..., GroupCommit] = GroupCommit
    boot_id: str = field(default_factory=lambda: read_boot_id())  # another one after each start of the machine

    def new_id(self) -> UUID:
        """An id that nobody has."""
        return UUID(int=self.random.getrandbits(128), version=4)


def read_boot_id() -> str:
    """What the system calls its present life; one that is never seen again where it does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(uuid4())


def alone(node_id: int) -> Surroundings:
    """Those of a node that is reached by no other and reaches none."""
    clock = SystemClock()
    return Surroundings(peers=TcpPeers(node_id, host="", port=None, token=None, clock=clock), clock=clock)
