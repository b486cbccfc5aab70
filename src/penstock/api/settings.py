"""Settings of consumer groups, of nodes and of all nodes: those that apply, and those that change while nodes run.

Names are Kafka's, as with topics. What is set is kept in the metadata and outlives restarts. Settings of topics are
part of the topic (`penstock.api.topics`), those of queue groups of the queue (`penstock.api.queues`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.limits import GroupId, NodeId
from penstock.api.operation import Action, Repeat, Request, Resource, operation
from penstock.api.topics import SettingValue

Origin = Literal["group", "node", "cluster", "startup", "default"]
Changes = Annotated[
    dict[str, SettingValue | None],
    Meta(description="Settings to change; null unsets one. Settings not named stay."),
]

_CHANGE_ERRORS: Final = (errors.PolicyViolation, errors.NotController, errors.DiskFull)


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """A setting as it applies.

    `origin` is where its value is from: set for the `group` or the `node`, for all nodes (`cluster`), by what the node
    was started with (`startup`), or nowhere (`default`).
    """

    name: str
    value: str | None
    origin: Origin
    is_changeable: Annotated[bool, Meta(description="Whether it changes while the node runs.")]
    description: str


class SettingList(msgspec.Struct, frozen=True, kw_only=True):
    settings: list[SettingView]


@operation(
    "GET /v1/groups/{group}/configs",
    tag="groups",
    needs=Action.DESCRIBE.of(Resource.GROUP, "group"),
    repeat=Repeat.SAFE,
)
class DescribeGroupConfigs(Request[SettingList], frozen=True, kw_only=True):
    """The settings of a consumer group, whether it has members yet or not."""

    group: GroupId


@operation(
    "PATCH /v1/groups/{group}/configs",
    tag="groups",
    needs=Action.ALTER.of(Resource.GROUP, "group"),
    repeat=Repeat.SAME,
    errors=_CHANGE_ERRORS,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class AlterGroupConfigs(Request[SettingList], frozen=True, kw_only=True):
    """Set and unset settings of a consumer group: all of them, or none if one is wrong."""

    group: GroupId
    configs: Changes


@operation(
    "GET /v1/nodes/{node}/configs",
    tag="cluster",
    needs=Action.DESCRIBE.of(Resource.CLUSTER),
    repeat=Repeat.SAFE,
    errors=(errors.NodeNotFound,),
    misnamed=errors.InvalidRequest,
)
class DescribeNodeConfigs(Request[SettingList], frozen=True, kw_only=True):
    """The settings of a node, as it tells them itself: what it was started with, and what was changed since."""

    node: NodeId


@operation(
    "PATCH /v1/nodes/{node}/configs",
    tag="cluster",
    needs=Action.ALTER.of(Resource.CLUSTER),
    repeat=Repeat.SAME,
    errors=(*_CHANGE_ERRORS, errors.NodeNotFound),
    body_max=limits.SMALL_BODY_BYTES_MAX,
    misnamed=errors.InvalidRequest,
)
class AlterNodeConfigs(Request[SettingList], frozen=True, kw_only=True):
    """Set and unset settings of a node, be it up or not: all of them, or none if one is wrong.

    The answer is what is set for it now.
    """

    node: NodeId
    configs: Changes


@operation(
    "GET /v1/cluster/configs",
    tag="cluster",
    needs=Action.DESCRIBE.of(Resource.CLUSTER),
    repeat=Repeat.SAFE,
)
class DescribeClusterConfigs(Request[SettingList], frozen=True, kw_only=True):
    """What is set for all nodes; a node's own value counts before it."""


@operation(
    "PATCH /v1/cluster/configs",
    tag="cluster",
    needs=Action.ALTER.of(Resource.CLUSTER),
    repeat=Repeat.SAME,
    errors=_CHANGE_ERRORS,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class AlterClusterConfigs(Request[SettingList], frozen=True, kw_only=True):
    """Set and unset settings of all nodes: all of them, or none if one is wrong."""

    configs: Changes
