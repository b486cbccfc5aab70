"""All members that a door hosts, by group and id, for as long as their groups know them.

A member's session is the coordinator's business: it gives up who is silent. Here it is only noticed, so that nothing is
kept for members that are gone.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock.errors import FencedInstance, InvalidRequest, PenstockError, UnknownMember
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.groups.hosted.member import HostedMember, MemberStanding
from penstock.features.groups.hosted.seat import Wish
from penstock.machines.ports import Ports
from penstock.model import OFFSETS_TOPIC

# How long after the end of a session the coordinator is asked whether it has noticed.
_GRACE_SECONDS: Final = 1.0


class HostedMembers:
    """The table of hosted members of one door."""

    def __init__(self, ports: Ports, groups: GroupCoordinator, hosted: set[tuple[str, str]]) -> None:
        """``hosted`` are the groups and ids of the members that any door of this node hosts."""
        self._ports = ports
        self._groups = groups
        self._hosted = hosted
        self._members: dict[tuple[str, str], HostedMember] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._members)

    async def join(self, group_id: str, wish: Wish, member_id: str, wait_seconds: float) -> MemberStanding:
        """Take a member in, or have one join again that is hosted here or that its group still knows from before.

        A new member whose client gives up before it hears its id leaves at once: no client could ever speak for it.
        """
        for topic in wish.topics:
            self._ports.metadata.topic(topic)
        await self._ports.topics.ensure_internal(OFFSETS_TOPIC)
        member = self._members.get((group_id, member_id))
        if member is None:
            member = HostedMember(self._ports, self._groups, group_id, wish, member_id)
        elif member.seat.wish.instance_id != wish.instance_id:
            raise InvalidRequest(f"Member {member_id!r} has another instance_id; it cannot change.")
        else:
            member.seat.wish = dataclasses.replace(wish, client_host=member.seat.wish.client_host)
        self._keep(member)
        with self._noticing(member):
            try:
                return await member.join(wait_seconds)
            except asyncio.CancelledError:
                if not member_id:
                    self._forget(member)
                    with suppress(PenstockError):
                        await member.seat.leave()
                raise
            except PenstockError:
                if not member_id:
                    self._forget(member)
                raise

    def _keep(self, member: HostedMember) -> None:
        key = (member.group_id, member.seat.member_id)
        self._members[key] = member
        self._hosted.add(key)
        if key not in self._timers:
            self._look_later(member)

    def get(self, group_id: str, member_id: str) -> HostedMember:
        """The member; `UnknownMember` if it never was here, or was given up, or the node was started again."""
        member = self._members.get((group_id, member_id))
        if member is None:
            raise UnknownMember(_join_again(group_id, member_id))
        return member

    @contextmanager
    def using(self, group_id: str, member_id: str) -> Iterator[HostedMember]:
        """The member for the time of a call; if its group turns out not to know it any more, it is forgotten."""
        member = self.get(group_id, member_id)
        with self._noticing(member):
            yield member

    @contextmanager
    def _noticing(self, member: HostedMember) -> Iterator[None]:
        try:
            yield
        except UnknownMember:
            self._forget(member)
            raise UnknownMember(_join_again(member.group_id, member.seat.member_id)) from None
        except FencedInstance:
            self._forget(member)
            raise

    async def leave(self, group_id: str, member_id: str) -> None:
        with self.using(group_id, member_id) as member:
            await member.seat.leave()
        self._forget(member)

    def stop(self) -> None:
        """Host no member any more."""
        for member in tuple(self._members.values()):
            self._forget(member)

    # -- members that are gone ----------------------------------------------------------------------------------------

    def _forget(self, member: HostedMember) -> None:
        key = (member.group_id, member.seat.member_id)
        member.seat.abandon()
        if self._members.get(key) is member:
            del self._members[key]
            self._hosted.discard(key)
            self._timers.pop(key).cancel()

    def _look_later(self, member: HostedMember) -> None:
        key = (member.group_id, member.seat.member_id)
        delay = member.seat.wish.session_timeout_ms / 1000 + _GRACE_SECONDS
        self._timers[key] = asyncio.get_running_loop().call_later(delay, self._look, member)

    def _look(self, member: HostedMember) -> None:
        if member.is_polling or self._is_known(member):
            self._look_later(member)
        else:
            self._forget(member)

    def _is_known(self, member: HostedMember) -> bool:
        try:
            group = self._groups.find(member.group_id)
        except PenstockError:
            return True  # it cannot be told at the moment
        return group is not None and any(each.id == member.seat.member_id for each in group.members)


def _join_again(group_id: str, member_id: str) -> str:
    return (
        f"Group {group_id!r} has no member {member_id!r} here: it left, was silent for longer than its session, or the "
        "node was started again. Join again."
    )
