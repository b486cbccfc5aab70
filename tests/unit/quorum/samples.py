"""What the tests of the quorum share."""

from __future__ import annotations

from pathlib import Path

from penstock.clock import SystemClock
from penstock.consensus.quorum.store import QuorumStore
from penstock.consensus.raft.core import Effects
from penstock.consensus.raft.messages import Entry, EntryKind, HardState, Member, Members, Snapshot
from penstock.consensus.records import ClusterCreated, ProducerIdsReserved, encode_records
from penstock.testing.files import MemoryFiles

DIRECTORY = Path("/data/metadata")
ME = Member(1, "disk-1")
TRIO = Members({1: "disk-1", 2: "disk-2", 3: "disk-3"})


def open_store(files: MemoryFiles, member: Member = ME) -> QuorumStore:
    return QuorumStore.open(files, DIRECTORY, member, SystemClock())


def command(index: int, term: int = 1, text: str = "") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, encode_records([ClusterCreated(cluster_id=text or f"{term}/{index}")]))


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    return [command(index, term) for index in range(first, last + 1)]


def work(
    *kept: Entry, hard_state: HardState | None = None, installed: Snapshot | None = None, term: int | None = None
) -> Effects:
    """Effects as a core gives them: its term is never behind that of its entries."""
    if term is not None:
        hard_state = HardState(term, None)
    return Effects(hard_state=hard_state, installed=installed, entries=list(kept))


def snapshot(index: int, term: int = 1, members: Members = TRIO) -> Snapshot:
    data = encode_records([ProducerIdsReserved(node_id=1, first_producer_id=index, next_producer_id=index)])
    return Snapshot(index, term, members, data)
