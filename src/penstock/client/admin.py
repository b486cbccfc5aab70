"""Administration: topics and groups created, listed, changed and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.api.groups import DeleteGroup, DescribeGroup, GroupDetail, GroupView, ListGroups, ResetGroup, ResetResult
from penstock.api.limits import StartPoint
from penstock.api.topics import (
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    TopicDetail,
    TopicView,
)
from penstock.client.transport import Transport
from penstock.model import check_topic_name


def setting_texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as texts, by their names with dots; None stands for the default."""
    return {
        name.replace("_", "."): None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


class AsyncTopics:
    """The topics of a cluster; `AsyncClient.topics`. Names of settings may have ``_`` in place of ``.``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> TopicDetail:
        """Create a topic; `TopicExists` if there is one. What is left out takes the cluster's default."""
        return await self._transport.call(
            CreateTopic(
                name=topic,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=setting_texts(configs or {}),
            )
        )

    async def list(self, *, include_internal: bool = False) -> Sequence[TopicView]:
        """All topics by name; the broker's own only with ``include_internal``."""
        return (await self._transport.call(ListTopics(include_internal=include_internal))).topics

    async def describe(self, topic: str) -> TopicDetail:
        """A topic with its partitions and settings; `UnknownTopic` if there is none."""
        return await self._transport.call(DescribeTopic(topic=check_topic_name(topic)))

    async def configure(self, topic: str, **configs: Any) -> TopicDetail:
        """Change settings, such as ``retention_ms=60_000``; None puts one back to its default."""
        return await self._transport.call(AlterTopic(topic=check_topic_name(topic), configs=setting_texts(configs)))

    async def scale(self, topic: str, partitions: int) -> TopicDetail:
        """Grow a topic to this many partitions in all. New messages of a key may go to another partition."""
        return await self._transport.call(AddPartitions(topic=check_topic_name(topic), partitions=partitions))

    async def delete(self, topic: str) -> None:
        """Delete a topic and its messages."""
        await self._transport.call(DeleteTopic(topic=check_topic_name(topic)))


class AsyncGroups:
    """The consumer groups of a cluster; `AsyncClient.groups`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> Sequence[GroupView]:
        """All groups by name, of every kind."""
        return (await self._transport.call(ListGroups())).groups

    async def describe(self, group: str) -> GroupDetail:
        """A group with its members, offsets and lag; `GroupNotFound` if there is none."""
        return await self._transport.call(DescribeGroup(group=group))

    async def reset(
        self,
        group: str,
        topic: str,
        *,
        to: StartPoint = None,
        since: datetime | None = None,
        shift: int | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        create: bool = False,
    ) -> ResetResult:
        """Move the offsets of a group without members: ``to`` an offset, ``earliest`` or ``latest``, to the first
        message ``since`` an instant, or by ``shift`` messages. `GroupNotFound` if there is no such group, unless
        ``create`` is set.
        """
        request = ResetGroup(
            group=group,
            topic=topic,
            to=to,
            since=since,
            shift=shift,
            partitions=None if partitions is None else [*partitions],
            dry_run=dry_run,
            create=create,
        )
        # Only a shift, which counts from where the offsets are, would move them twice.
        return await self._transport.call(request, can_repeat=shift is None)

    async def delete(self, group: str) -> None:
        """Delete a group without members, and its offsets."""
        await self._transport.call(DeleteGroup(group=group))
