"""Topics and groups as their owners see them: made, looked at, changed and deleted.

`AsyncTopics` and `AsyncGroups` say what each verb asks for; `Topics` and `Groups` are the same for programs without an
event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.client import operations
from penstock.client.operations import (
    GroupDetail,
    GroupReset,
    GroupSummary,
    TopicDetail,
    TopicSummary,
    perform,
    settings_form,
    start_form,
)
from penstock.client.portal import Portal
from penstock.client.transport import Transport
from penstock.model import check_topic_name


class AsyncTopics:
    """The topics of a cluster; `AsyncClient.topics`. Settings have ``_`` or ``.`` in their names."""

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
        body = {
            "name": topic,
            "partitions": partitions,
            "replication_factor": replication_factor,
            "configs": settings_form(configs) if configs else None,
        }
        return await perform(self._transport, operations.CREATE_TOPIC, body=body)

    async def list(self, *, include_internal: bool = False) -> Sequence[TopicSummary]:
        """All topics by name, those of the broker itself only if asked for."""
        query = {"include_internal": str(include_internal).lower()}
        return (await perform(self._transport, operations.LIST_TOPICS, query=query)).topics

    async def describe(self, topic: str) -> TopicDetail:
        """A topic with its partitions and settings; `UnknownTopic` if there is none."""
        return await perform(self._transport, operations.DESCRIBE_TOPIC, topic=check_topic_name(topic))

    async def configure(self, topic: str, **configs: Any) -> TopicDetail:
        """Change settings, such as ``retention_ms=60_000``; None puts one back to its default."""
        body = {"configs": settings_form(configs)}
        return await perform(self._transport, operations.CONFIGURE_TOPIC, body=body, topic=check_topic_name(topic))

    async def scale(self, topic: str, partitions: int) -> TopicDetail:
        """Give a topic so many partitions in all, more than it has. Keys may go to other partitions from then on."""
        body = {"partitions": partitions}
        return await perform(self._transport, operations.SCALE_TOPIC, body=body, topic=check_topic_name(topic))

    async def delete(self, topic: str) -> None:
        """Delete a topic and its messages."""
        await perform(self._transport, operations.DELETE_TOPIC, topic=check_topic_name(topic))


class AsyncGroups:
    """The consumer groups of a cluster; `AsyncClient.groups`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> Sequence[GroupSummary]:
        """All groups by name, of every kind."""
        return (await perform(self._transport, operations.LIST_GROUPS)).groups

    async def describe(self, group: str) -> GroupDetail:
        """A group with its members, offsets and lag; `GroupNotFound` if there is none."""
        return await perform(self._transport, operations.DESCRIBE_GROUP, group=group)

    async def reset(
        self,
        group: str,
        topic: str,
        *,
        to: int | str | None = None,
        since: datetime | None = None,
        shift: int | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        create: bool = False,
    ) -> GroupReset:
        """Move the offsets of a group without members: ``to`` an offset, ``earliest`` or ``latest``, to the first
        message ``since`` an instant, or by ``shift`` messages. `GroupNotFound` unless ``create`` lets it begin one.
        """
        body = {
            "topic": topic,
            **start_form(to, since),
            "shift": shift,
            "partitions": None if partitions is None else list(partitions),
            "dry_run": dry_run,
            "create": create,
        }
        return await perform(self._transport, operations.RESET_GROUP, body=body, group=group)

    async def delete(self, group: str) -> None:
        """Forget a group without members, and its offsets."""
        await perform(self._transport, operations.DELETE_GROUP, group=group)


class Topics:
    """The topics of a cluster, for programs without an event loop; `Client.topics`. See `AsyncTopics`."""

    def __init__(self, portal: Portal, topics: AsyncTopics) -> None:
        self._portal = portal
        self._topics = topics

    def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> TopicDetail:
        """Create a topic; `TopicExists` if there is one. What is left out takes the cluster's default."""
        return self._portal.call(
            self._topics.create(topic, partitions=partitions, replication_factor=replication_factor, configs=configs)
        )

    def list(self, *, include_internal: bool = False) -> Sequence[TopicSummary]:
        """All topics by name, those of the broker itself only if asked for."""
        return self._portal.call(self._topics.list(include_internal=include_internal))

    def describe(self, topic: str) -> TopicDetail:
        """A topic with its partitions and settings; `UnknownTopic` if there is none."""
        return self._portal.call(self._topics.describe(topic))

    def configure(self, topic: str, **configs: Any) -> TopicDetail:
        """Change settings, such as ``retention_ms=60_000``; None puts one back to its default."""
        return self._portal.call(self._topics.configure(topic, **configs))

    def scale(self, topic: str, partitions: int) -> TopicDetail:
        """Give a topic so many partitions in all, more than it has."""
        return self._portal.call(self._topics.scale(topic, partitions))

    def delete(self, topic: str) -> None:
        """Delete a topic and its messages."""
        self._portal.call(self._topics.delete(topic))


class Groups:
    """The consumer groups of a cluster, for programs without an event loop; `Client.groups`. See `AsyncGroups`."""

    def __init__(self, portal: Portal, groups: AsyncGroups) -> None:
        self._portal = portal
        self._groups = groups

    def list(self) -> Sequence[GroupSummary]:
        """All groups by name, of every kind."""
        return self._portal.call(self._groups.list())

    def describe(self, group: str) -> GroupDetail:
        """A group with its members, offsets and lag; `GroupNotFound` if there is none."""
        return self._portal.call(self._groups.describe(group))

    def reset(
        self,
        group: str,
        topic: str,
        *,
        to: int | str | None = None,
        since: datetime | None = None,
        shift: int | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        create: bool = False,
    ) -> GroupReset:
        """Move the offsets of a group without members; see `AsyncGroups.reset`."""
        return self._portal.call(
            self._groups.reset(
                group, topic, to=to, since=since, shift=shift, partitions=partitions, dry_run=dry_run, create=create
            )
        )

    def delete(self, group: str) -> None:
        """Forget a group without members, and its offsets."""
        self._portal.call(self._groups.delete(group))
