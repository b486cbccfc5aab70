"""Settings of topics, groups, nodes and loggers under the names that Kafka's tools know, and a node's log directory.

What comes from a node's file and flags is shown and not changed here. What can be changed while the node runs is kept
in the metadata (`penstock.consensus.resource_config`). The levels of loggers are forgotten when the node stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.config import BrokerConfig
from penstock.consensus import resource_config
from penstock.consensus.resource_config import (
    CLUSTER_WIDE,
    FOLLOWER_RATE,
    HEARTBEAT_INTERVAL,
    LEADER_RATE,
    SESSION_TIMEOUT,
    UNLIMITED_RATE,
    ResourceKind,
)
from penstock.consensus.topic_config import SETTINGS
from penstock.doors.kafka.errors import error_code
from penstock.doors.kafka.handler import Handler, RequestContext
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import configs as wire
from penstock.doors.kafka.protocol.messages.shared import PartitionErrorCode
from penstock.errors import InvalidConfig, InvalidRequest, PenstockError

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
RESOURCE_BROKER_LOGGER: Final = 8
RESOURCE_CLIENT_METRICS: Final = 16
RESOURCE_GROUP: Final = 32
SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_DEFAULT_BROKER: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
SOURCE_DYNAMIC_LOGGER: Final = 6
SOURCE_GROUP: Final = 8

_IN_METADATA: Final[Mapping[int, ResourceKind]] = {RESOURCE_BROKER: "node", RESOURCE_GROUP: "group"}
_KINDS: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
_LISTED: Final = frozenset(
    {RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP}
)
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)

# -- a node's settings -------------------------------------------------------------------------------------------------


class NodeSetting(NamedTuple):
    """One setting of a node: its kind, and how it is read off the node's own configuration."""

    kind: str
    read: Callable[[BrokerConfig], object]
    doc: str


NODE_SETTINGS: Final[Mapping[str, NodeSetting]] = {
    "auto.create.topics.enable": NodeSetting(
        "boolean", lambda c: c.auto_create_topics, "Whether using a topic that does not exist creates it."
    ),
    "broker.rack": NodeSetting("string", lambda c: c.rack, "The rack or zone this node is in."),
    "default.replication.factor": NodeSetting(
        "int",
        lambda c: c.topics.replication_factor or 3,
        "Replicas of a topic created without a number.",
    ),
    "group.consumer.heartbeat.interval.ms": NodeSetting(
        "int", lambda c: c.groups.heartbeat_interval_ms, "How often members of the new protocol send a heartbeat."
    ),
    "group.consumer.session.timeout.ms": NodeSetting(
        "int", lambda c: c.groups.session_timeout_ms, "Silence after which a member of the new protocol is removed."
    ),
    "group.initial.rebalance.delay.ms": NodeSetting(
        "int", lambda c: c.groups.initial_delay_ms, "How long a new group waits for more members."
    ),
    "group.max.session.timeout.ms": NodeSetting(
        "int", lambda c: c.groups.session_timeout_max_ms, "The longest session timeout."
    ),
    "group.max.size": NodeSetting("int", lambda c: c.groups.members_max, "How many members a group may have."),
    "group.min.session.timeout.ms": NodeSetting(
        "int", lambda c: c.groups.session_timeout_min_ms, "The shortest session timeout."
    ),
    "log.cleaner.backoff.ms": NodeSetting(
        "long", lambda c: c.partitions.storage.housekeeping_interval_ms, "How often compaction checks every partition."
    ),
    "log.cleanup.policy": NodeSetting(
        "list",
        lambda c: ",".join(
            name
            for name, is_on in (
                ("compact", c.partitions.topic_defaults.log.is_compacting),
                ("delete", c.partitions.topic_defaults.log.is_deleting),
            )
            if is_on
        ),
        "What topics do with old records.",
    ),
    "log.dirs": NodeSetting("list", lambda c: c.data_dir, "Where the node's data is."),
    "log.index.interval.bytes": NodeSetting(
        "int",
        lambda c: c.partitions.topic_defaults.log.index_interval_bytes,
        "Bytes of log that share one index entry.",
    ),
    "log.message.timestamp.type": NodeSetting(
        "string",
        lambda c: "LogAppendTime" if c.partitions.topic_defaults.has_append_time else "CreateTime",
        "Whether records have the producer's time or that of the append.",
    ),
    "log.retention.bytes": NodeSetting(
        "long",
        lambda c: c.partitions.topic_defaults.log.retention_bytes,
        "How large a partition may grow; -1 for no limit.",
    ),
    "log.retention.check.interval.ms": NodeSetting(
        "long",
        lambda c: c.partitions.storage.retention_check_interval_ms,
        "How often retention checks every partition.",
    ),
    "log.retention.ms": NodeSetting(
        "long", lambda c: c.partitions.topic_defaults.log.retention_ms, "How long records are kept; -1 for ever."
    ),
    "log.roll.ms": NodeSetting(
        "long", lambda c: c.partitions.topic_defaults.log.segment_ms, "When a segment is closed for its age."
    ),
    "log.segment.bytes": NodeSetting(
        "int", lambda c: c.partitions.topic_defaults.log.segment_bytes, "When a segment is closed for its size."
    ),
    "message.max.bytes": NodeSetting(
        "int", lambda c: c.partitions.topic_defaults.max_message_bytes, "The largest batch accepted."
    ),
    "node.id": NodeSetting("int", lambda c: c.node_id, "This node's number."),
    "num.partitions": NodeSetting(
        "int", lambda c: c.topics.partitions, "Partitions of a topic created without a number."
    ),
    "offsets.retention.minutes": NodeSetting(
        "int", lambda c: c.groups.offsets_retention_ms // 60_000, "How long the offsets of an empty group are kept."
    ),
    "offsets.topic.num.partitions": NodeSetting(
        "int", lambda c: c.groups.offsets_partitions, "Partitions of __consumer_offsets when it is created."
    ),
    "producer.id.expiration.ms": NodeSetting(
        "int",
        lambda c: c.partitions.topic_defaults.log.producer_expiry_ms,
        "How long an idle producer's sequence numbers are kept.",
    ),
    "replica.lag.time.max.ms": NodeSetting(
        "long", lambda c: c.cluster.replica_lag_ms, "When a follower that does not keep up is no longer in sync."
    ),
    "transaction.max.timeout.ms": NodeSetting(
        "int", lambda c: c.transactions.timeout_max_ms, "The longest time a transaction may stay open."
    ),
    "transaction.state.log.num.partitions": NodeSetting(
        "int", lambda c: c.transactions.state_partitions, "Partitions of __transaction_state when it is created."
    ),
    "transactional.id.expiration.ms": NodeSetting(
        "int", lambda c: c.transactions.id_retention_ms, "How long an unused transactional id is kept."
    ),
}
# The values of settings kept in the metadata where they are not set.
UNSET_RATES: Final[Mapping[str, Callable[[BrokerConfig], int]]] = {
    FOLLOWER_RATE: lambda c: c.cluster.replication_throttle_bytes,
    LEADER_RATE: lambda _: 0,
}
UNSET_TIMES: Final[Mapping[str, Callable[[BrokerConfig], int]]] = {
    HEARTBEAT_INTERVAL: lambda c: c.groups.heartbeat_interval_ms,
    SESSION_TIMEOUT: lambda c: c.groups.session_timeout_ms,
}


def _shown(value: object) -> str | None:
    """A value as Kafka writes it."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# -- loggers -----------------------------------------------------------------------------------------------------------

ROOT_LOGGER: Final = "root"
_LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT_LOGGER else name)


def loggers() -> dict[str, str]:
    """Every logger of this process with its level."""
    names = [
        ROOT_LOGGER,
        "penstock",
        *(name for name in logging.root.manager.loggerDict if name.startswith("penstock.")),
    ]
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in sorted(set(names))}


def _level_name(level: int) -> str:
    return next((name for name, number in reversed(_LEVELS.items()) if number <= level and name != "TRACE"), "DEBUG")


def change_loggers(changes: Mapping[str, str | None], *, validate_only: bool) -> None:
    """Set the levels of loggers, or with None inherit it from the logger above."""
    known = loggers()
    for name, value in changes.items():
        if name not in known:
            raise InvalidConfig(f"There is no logger {name!r}.")
        if value is not None and value not in _LEVELS:
            raise InvalidConfig(f"Logger {name}: {value!r} is not one of {', '.join(_LEVELS)}.")
        if value is None and name == ROOT_LOGGER:
            raise InvalidConfig("The level of the root logger can be set, but not removed.")
    if not validate_only:
        for name, value in changes.items():
            _logger(name).setLevel(logging.NOTSET if value is None else _LEVELS[value])


# -- DescribeConfigs ---------------------------------------------------------------------------------------------------


class _Config(NamedTuple):
    """A setting with its values and their sources, the one in force first unless ``value`` is given."""

    name: str
    kind: str
    layers: Sequence[tuple[str | None, int]]
    doc: str | None = None
    is_read_only: bool = False
    value: str | None = None


_IsWanted = Callable[[str], bool]


def describe_configs(context: RequestContext, request: wire.DescribeConfigsRequest) -> wire.DescribeConfigsResponse:
    """Versions 1 to 4. From 3 on with types and documentation."""
    return wire.DescribeConfigsResponse(
        results=tuple(_describe(context, request, resource) for resource in request.resources)
    )


def _describe(
    context: RequestContext, request: wire.DescribeConfigsRequest, resource: wire.DescribeConfigsResource
) -> wire.DescribeConfigsResult:
    keys = resource.configuration_keys
    is_wanted: _IsWanted = (lambda _: True) if keys is None else frozenset(keys).__contains__
    code, message = ErrorCode.NONE, None
    configs: tuple[wire.DescribeConfigsResourceResult, ...] = ()
    try:
        if resource.resource_type not in _DESCRIBERS:
            raise InvalidRequest(f"Resources of type {resource.resource_type} have no settings here.")
        found = _DESCRIBERS[resource.resource_type](context, resource.resource_name, is_wanted)
        configs = tuple(_described(config, request) for config in found)
    except PenstockError as error:
        code, message = error_code(error), error.message
    return wire.DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _described(config: _Config, request: wire.DescribeConfigsRequest) -> wire.DescribeConfigsResourceResult:
    name, kind, layers, doc, is_read_only, in_force = config
    value, source = layers[0]
    has_synonyms = request.include_synonyms and source != SOURCE_DYNAMIC_LOGGER
    return wire.DescribeConfigsResourceResult(
        name=name,
        value=value if in_force is None else in_force,
        read_only=is_read_only,
        config_source=source,
        is_sensitive=False,
        synonyms=tuple(wire.DescribeConfigsSynonym(name=name, value=each, source=where) for each, where in layers)
        if has_synonyms
        else (),
        config_type=_KINDS[kind],
        documentation=doc if request.include_documentation else None,
    )


def _topic_configs(context: RequestContext, topic: str, is_wanted: _IsWanted) -> Iterator[_Config]:
    overrides = context.broker.metadata.topic(topic).configs
    settings = context.broker.topic_settings(topic)
    defaults = context.broker.config.partitions.topic_defaults
    for setting in SETTINGS.values():
        if is_wanted(setting.name):
            layers = [(overrides[setting.name], SOURCE_TOPIC)] if setting.name in overrides else []
            layers.append((setting.show(defaults), SOURCE_DEFAULT))
            yield _Config(setting.name, setting.kind, layers, setting.doc, value=setting.show(settings))


def _check_node(context: RequestContext, name: str) -> None:
    """A node describes its own settings and no other node's."""
    node_id = context.broker.config.node_id
    if name != str(node_id):
        raise InvalidRequest(f"This is node {node_id}; name it, or ask node {name or 'by number'} for its settings.")


def _node_configs(context: RequestContext, node: str, is_wanted: _IsWanted) -> Iterator[_Config]:
    """A node's settings, of which some can be changed; with the empty name, what is set for all nodes."""
    config, metadata = context.broker.config, context.broker.metadata
    sources = [(metadata.resource_configs("node", CLUSTER_WIDE), SOURCE_DYNAMIC_DEFAULT_BROKER)]
    if node:
        _check_node(context, node)
        sources.insert(0, (metadata.resource_configs("node", node), SOURCE_DYNAMIC_BROKER))
    for name, doc in filter(lambda item: is_wanted(item[0]), resource_config.NODE_SETTINGS.items()):
        layers = [(layer[name], source) for layer, source in sources if name in layer]
        if node:
            unset = UNSET_RATES[name](config)
            layers.append((str(unset or UNLIMITED_RATE), SOURCE_STATIC_BROKER if unset else SOURCE_DEFAULT))
        if layers:
            yield _Config(name, "long", layers, doc)
    for name, setting in NODE_SETTINGS.items() if node else ():
        if is_wanted(name):
            value = _shown(setting.read(config))
            yield _Config(name, setting.kind, [(value, SOURCE_STATIC_BROKER)], setting.doc, is_read_only=True)


def _group_configs(context: RequestContext, group: str, is_wanted: _IsWanted) -> Iterator[_Config]:
    """A group's settings; those of the node's file where it has none of its own."""
    if not group:
        raise InvalidRequest("Settings of groups are those of one group; name it.")
    own = context.broker.metadata.resource_configs("group", group)
    for name, doc in filter(lambda item: is_wanted(item[0]), resource_config.GROUP_SETTINGS.items()):
        layers = [(own[name], SOURCE_GROUP)] if name in own else []
        layers.append((str(UNSET_TIMES[name](context.broker.config)), SOURCE_DEFAULT))
        yield _Config(name, "int", layers, doc)


def _logger_configs(context: RequestContext, node: str, is_wanted: _IsWanted) -> Iterator[_Config]:
    _check_node(context, node)
    for name, level in loggers().items():
        if is_wanted(name):
            yield _Config(name, "string", [(level, SOURCE_DYNAMIC_LOGGER)])


def _client_metrics_configs(_context: RequestContext, _name: str, _is_wanted: _IsWanted) -> Iterator[_Config]:
    """Clients are not asked for metrics, so no subscription has settings."""
    return iter(())


_DESCRIBERS: Final[Mapping[int, Callable[[RequestContext, str, _IsWanted], Iterator[_Config]]]] = {
    RESOURCE_TOPIC: _topic_configs,
    RESOURCE_BROKER: _node_configs,
    RESOURCE_BROKER_LOGGER: _logger_configs,
    RESOURCE_CLIENT_METRICS: _client_metrics_configs,
    RESOURCE_GROUP: _group_configs,
}


# -- AlterConfigs, IncrementalAlterConfigs -----------------------------------------------------------------------------


async def alter_configs(context: RequestContext, request: wire.AlterConfigsRequest) -> wire.AlterConfigsResponse:
    """Versions 0 to 2. What is named replaces all settings of the resource; others go back to their defaults."""

    def changes_of(resource: wire.AlterConfigsResource) -> dict[str, str | None]:
        present = _present(context, resource.resource_type, resource.resource_name)
        return dict.fromkeys(present) | {config.name: config.value for config in resource.configs}

    responses = [
        await _alter(context, resource, partial(changes_of, resource), validate_only=request.validate_only)
        for resource in request.resources
    ]
    return wire.AlterConfigsResponse(responses=tuple(responses))


def _present(context: RequestContext, resource_type: int, name: str) -> Mapping[str, str]:
    """What is set for a resource by now."""
    metadata = context.broker.metadata
    if resource_type in _IN_METADATA:
        return metadata.resource_configs(_IN_METADATA[resource_type], name)
    topic = metadata.topics.get(name) if resource_type == RESOURCE_TOPIC else None
    return {} if topic is None else topic.configs


async def incremental_alter_configs(
    context: RequestContext, request: wire.IncrementalAlterConfigsRequest
) -> wire.IncrementalAlterConfigsResponse:
    """Versions 0 and 1. Only what is named changes; lists can be appended to and subtracted from."""
    responses = [
        await _alter(context, resource, partial(_changes, context, resource), validate_only=request.validate_only)
        for resource in request.resources
    ]
    return wire.IncrementalAlterConfigsResponse(responses=tuple(responses))


def _changes(context: RequestContext, resource: wire.IncrementalAlterConfigsResource) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        operation = config.config_operation
        if operation == _SET:
            changes[config.name] = config.value
        elif operation == _DELETE:
            changes[config.name] = None
        elif operation in (_APPEND, _SUBTRACT):
            changes[config.name] = _edit_list(context, resource, config.name, config.value, operation)
        else:
            raise InvalidConfig(
                f"Operation {operation} on {config.name!r} is unknown: 0 set, 1 delete, 2 append, 3 subtract."
            )
    return changes


def _edit_list(
    context: RequestContext,
    resource: wire.IncrementalAlterConfigsResource,
    name: str,
    value: str | None,
    operation: int,
) -> str:
    setting = SETTINGS.get(name) if resource.resource_type == RESOURCE_TOPIC else None  # only topics have lists
    if setting is None or setting.kind != "list":
        raise InvalidConfig(f"{name!r} is not a list, so nothing can be appended to it or subtracted from it.")
    present = [part for part in setting.show(context.broker.topic_settings(resource.resource_name)).split(",") if part]
    named = [part for part in (value or "").split(",") if part]
    if operation == _APPEND:
        return ",".join([*present, *(part for part in named if part not in present)])
    return ",".join(part for part in present if part not in named)


async def _alter(
    context: RequestContext,
    resource: wire.AlterConfigsResource | wire.IncrementalAlterConfigsResource,
    changes_of: Callable[[], dict[str, str | None]],
    *,
    validate_only: bool,
) -> wire.AlterConfigsResourceResponse:
    code, message = ErrorCode.NONE, None
    try:
        changes = changes_of()
        await _apply(context, resource.resource_type, resource.resource_name, changes, validate_only=validate_only)
    except PenstockError as error:
        code, message = error_code(error), error.message
    return wire.AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


async def _apply(
    context: RequestContext, resource_type: int, name: str, changes: dict[str, str | None], *, validate_only: bool
) -> None:
    broker = context.broker
    if resource_type == RESOURCE_TOPIC:
        if changes:
            await broker.configure_topic(name, changes, validate_only=validate_only)
        else:
            broker.metadata.topic(name)  # nothing is to change, which is fine if there is such a topic
    elif resource_type in _IN_METADATA:
        if changes:
            kind = _IN_METADATA[resource_type]
            await broker.configure_resource(kind, name, changes, validate_only=validate_only)
    elif resource_type == RESOURCE_BROKER_LOGGER:
        _check_node(context, name)
        change_loggers(changes, validate_only=validate_only)
    else:
        raise InvalidRequest(
            "Settings of topics, groups, nodes and loggers can be changed here; clients are not asked for metrics."
        )


# -- ListConfigResources, DescribeLogDirs, AlterReplicaLogDirs ---------------------------------------------------------


def describe_log_dirs(context: RequestContext, request: wire.DescribeLogDirsRequest) -> wire.DescribeLogDirsResponse:
    """Versions 1 to 4. From 4 on with the size of the disk."""
    broker = context.broker
    wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    by_topic: dict[str, list[wire.DescribeLogDirsPartition]] = {}
    for partition in broker.replicas:
        topic, index = partition.id
        if wanted is None or index in wanted.get(topic, ()):
            by_topic.setdefault(topic, []).append(
                wire.DescribeLogDirsPartition(
                    partition_index=index, partition_size=partition.log.size_bytes, offset_lag=0, is_future_key=False
                )
            )
    total, free = broker.disk_usage()
    return wire.DescribeLogDirsResponse(
        results=(
            wire.DescribeLogDirsResult(
                error_code=ErrorCode.NONE,
                log_dir=str(broker.config.data_dir),
                topics=tuple(
                    wire.DescribeLogDirsTopic(name=name, partitions=tuple(rows))
                    for name, rows in sorted(by_topic.items())
                ),
                total_bytes=total,
                usable_bytes=free,
            ),
        )
    )


def list_config_resources(
    context: RequestContext, request: wire.ListConfigResourcesRequest
) -> wire.ListConfigResourcesResponse:
    """Versions 0 and 1. Version 0 asks for subscriptions to clients' metrics, of which there are none."""
    broker = context.broker
    if context.version == 0:
        return wire.ListConfigResourcesResponse(error_code=ErrorCode.NONE)
    wanted = set(request.resource_types) or _LISTED
    if not wanted <= _LISTED:
        return wire.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    nodes = [str(node_id) for node_id in sorted(broker.metadata.nodes)]
    names = {
        RESOURCE_TOPIC: sorted(broker.metadata.topics),
        RESOURCE_BROKER: nodes,
        RESOURCE_BROKER_LOGGER: nodes,
        RESOURCE_GROUP: sorted(name for kind, name in broker.metadata.configured if kind == "group"),
    }
    return wire.ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=tuple(
            wire.ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(wanted)
            for name in names.get(kind, ())
        ),
    )


def alter_replica_log_dirs(
    context: RequestContext, request: wire.AlterReplicaLogDirsRequest
) -> wire.AlterReplicaLogDirsResponse:
    """Versions 1 and 2. A node has one directory, so a replica can only be asked to be where it is."""
    broker = context.broker
    by_topic: dict[str, list[PartitionErrorCode]] = {}
    for directory in request.dirs:
        is_ours = directory.path.rstrip("/") == str(broker.config.data_dir)
        for topic in directory.topics:
            for index in topic.partitions:
                code = ErrorCode.LOG_DIR_NOT_FOUND
                if is_ours:
                    is_here = broker.replicas.has(topic.name, index)
                    code = ErrorCode.NONE if is_here else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                row = PartitionErrorCode(partition_index=index, error_code=code)
                by_topic.setdefault(topic.name, []).append(row)
    return wire.AlterReplicaLogDirsResponse(
        results=tuple(
            wire.AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(rows))
            for name, rows in by_topic.items()
        )
    )


def describe_client_quotas(
    _: RequestContext, __: wire.DescribeClientQuotasRequest
) -> wire.DescribeClientQuotasResponse:
    """Versions 0 and 1. There are no quotas; tools ask for those of users before they show the users."""
    return wire.DescribeClientQuotasResponse(error_code=ErrorCode.NONE, entries=())


HANDLERS = (
    Handler(wire.DescribeClientQuotasRequest, describe_client_quotas),
    Handler(wire.DescribeConfigsRequest, describe_configs),
    Handler(wire.AlterConfigsRequest, alter_configs),
    Handler(wire.IncrementalAlterConfigsRequest, incremental_alter_configs),
    Handler(wire.ListConfigResourcesRequest, list_config_resources),
    Handler(wire.DescribeLogDirsRequest, describe_log_dirs),
    Handler(wire.AlterReplicaLogDirsRequest, alter_replica_log_dirs),
)
