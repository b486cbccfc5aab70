"""The mutants of the whole cluster: what the simulation has to catch, in the quorum's driver and in all above it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.testing.simulation.cluster.planting import ClusterMutant, planted
from penstock.testing.simulation.cluster.seeds import run_cluster_seed, run_member_seed

_DRIVER: Final = "penstock.quorum.driver:Quorum"
_STORE: Final = "penstock.quorum.store:QuorumStore"
_WAITING: Final = "penstock.quorum.waiting:Waiting"

QUORUM: Final = (
    ClusterMutant(
        "a lost proposal is reported as a success",
        f"{_WAITING}.on_lead_lost",
        "_fail(self._proposals.pop(index)[1], _lost(index))",
        "_finish(self._proposals.pop(index)[1], index)",
        is_of_quorum=True,
    ),
    ClusterMutant(
        "promises leave before the write",
        f"{_DRIVER}._pump",
        "        for read in effects.reads:",
        "        self._keep_promises(effects)\n        effects.promises.clear()\n        for read in effects.reads:",
        is_of_quorum=True,
    ),
    ClusterMutant(
        "promises overtake the write they rest on",
        f"{_DRIVER}._pump",
        "if self._is_writing or self._to_write:",
        "if False:",
        is_of_quorum=True,
    ),
    ClusterMutant(
        "the vote is not kept",
        f"{_STORE}.write",
        "        if hard_states:",
        "        if False:",
        is_of_quorum=True,
    ),
    ClusterMutant(
        "entries are not synced",
        f"{_STORE}.write",
        "            self._log.sync()\n",
        "",
        is_of_quorum=True,
    ),
    ClusterMutant(
        "entries of another history are not cut",
        f"{_STORE}._append",
        "self._cut(entry.index)",
        "return",
        is_of_quorum=True,
    ),
    ClusterMutant(
        "messages for the disk before reach the new one",
        f"{_DRIVER}._on_message",
        " and request.to == self.me",
        "",
        is_of_quorum=True,
    ),
    ClusterMutant(
        "a snapshot leaves the old state in place",
        f"{_DRIVER}._restore",
        "        self.metadata.reset()\n",
        "",
        is_of_quorum=True,
    ),
)

MUTANTS: Final[tuple[ClusterMutant, ...]] = QUORUM


def first_catch(mutant: ClusterMutant, seeds: Iterable[int]) -> int | None:
    """The first seed that shows the bug, or None. A crash of the code under test shows it as well."""
    run = run_member_seed if mutant.is_of_quorum else run_cluster_seed
    with planted(mutant):
        for seed in seeds:
            try:
                if run(seed).violations:
                    return seed
            except Exception:
                return seed
    return None
