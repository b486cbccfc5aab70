"""Known bugs of bringing back a node whose metadata is damaged."""

from __future__ import annotations

from typing import Final

from sim.planting import Mutant

_STORE: Final = "penstock.consensus.quorum.store"
_BROKER: Final = "penstock.broker.broker"

METADATA: Final = (
    Mutant(
        "a healed voter votes at once, under its old name",
        _STORE,
        "cls(files, directory, Member(member.node_id, replace_id()), clock, error)",
        "cls(files, directory, member, clock, error)",
    ),
    Mutant(
        "a healed node vouches for replicas that it has not looked at",
        _BROKER,
        "        await self.quorum.applied(self._store.reach)\n",
        "",
    ),
    Mutant(
        "a healed node has another disk",
        _BROKER,
        "            directory_id=member.directory_id,\n",
        "            directory_id=self.quorum.me.directory_id,\n",
    ),
)
