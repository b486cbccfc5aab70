"""The faults, by name: what each needs of the machine, how long it is held, and whether it wants a whole cluster."""

from __future__ import annotations

from bench.chaos.faults import clocks, disks, membership, network, processes
from bench.chaos.faults.fault import Arena, Fault, Kind

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*processes.KINDS, *network.KINDS, *disks.KINDS, *clocks.KINDS, *membership.KINDS)
}

__all__ = ["KINDS", "Arena", "Fault", "Kind"]
