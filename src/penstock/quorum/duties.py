"""What the controller does unasked: it fences nodes that went silent, gives leaders back, and keeps up the voters.

All of it is cheap when nothing has changed: partitions are only looked through after the metadata has.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.cluster.controller.elections import give_back_leaders
from penstock.cluster.controller.moves import raise_internal_topics, start_move
from penstock.cluster.controller.nodes import fence, step_aside
from penstock.cluster.voters import next_members

if TYPE_CHECKING:
    from penstock.quorum.controller import ControllerShell

log = logging.getLogger(__name__)


class Duties:
    """The duties of one term as controller."""

    def __init__(self, shell: ControllerShell) -> None:
        self._shell = shell
        self._seen_version = -1
        self._is_settling = True
        self._seen_unable: frozenset[int] = frozenset()

    async def see_to(self) -> None:
        """One round. The caller has the turn."""
        if not self._shell.quorum.metadata.cluster_id:
            await self._shell.commit(())
        await self.fence()
        await self._spread()
        await self._keep_up_voters()

    async def fence(self) -> None:
        """Give up on nodes whose session is over."""
        shell = self._shell
        nodes = shell.quorum.metadata.nodes
        over = shell.sessions.expired(shell.now_ms())
        if not over:
            return
        draft = shell.draft()
        fence(draft, [node_id for node_id in over if node_id in nodes])
        records = draft.records()
        if records:
            missed = [node_id for node_id in over if shell.is_living(node_id)]
            if missed:  # and not only some that left in good order
                log.warning("No heartbeat from nodes %s: they are fenced.", missed)
            index = await shell.commit(records)
            for node_id in over:
                shell.sessions.require(node_id, index)
        for node_id in over:
            shell.sessions.end(node_id)

    async def _spread(self) -> None:
        """Give leaders back to where they should be, and the broker's own topics the replicas they should have."""
        shell = self._shell
        version, unable = shell.quorum.metadata.version, shell.sessions.unable()
        if version == self._seen_version and unable == self._seen_unable and not self._is_settling:
            return
        unsettled = shell.sessions.admitted_since(shell.now_ms() - shell.config.settling_ms)
        draft = shell.draft()
        for move in raise_internal_topics(draft):
            start_move(draft, move)
        for node_id in sorted(unable):
            step_aside(draft, node_id)
        give_back_leaders(draft, unsettled)
        draft.rejoin_companions()
        records = draft.records()
        if records:
            await shell.commit(records)
        self._seen_version, self._seen_unable, self._is_settling = version, unable, bool(unsettled)

    async def _keep_up_voters(self) -> None:
        shell = self._shell
        quorum = shell.quorum
        members = next_members(
            quorum.members,
            shell.config.voters,
            is_living=shell.is_living,
            is_ready=lambda node_id: shell.is_living(node_id) and quorum.caught_up(node_id),
        )
        if members is not None:
            log.info("The quorum's voters become %s.", sorted(members.voters))
            await quorum.change_members(members)
