"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources, DescribeLogDirs, AlterReplicaLogDirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.cluster import resource_config
from penstock.cluster.resource_config import CLUSTER_WIDE, UNLIMITED_RATE, ResourceKind
from penstock.cluster.topic_config import SETTINGS, Setting, TopicSettings
from penstock.errors import InvalidConfig, InvalidRequest, PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.node_configs import (
    NODE_SETTINGS,
    UNSET_RATES,
    UNSET_TIMES,
    change_loggers,
    loggers,
    show,
)
from penstock.kafka.protocol.config_messages import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.kafka.protocol.errors import ErrorCode

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


def describe_configs(exchange: Exchange, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Versions 1 to 4. From 3 on with types and documentation."""
    return DescribeConfigsResponse(
        results=tuple(_describe(exchange, request, resource) for resource in request.resources)
    )


def _describe(
    exchange: Exchange, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    try:
        if resource.resource_type == RESOURCE_TOPIC:
            configs = _describe_topic(exchange, request, resource)
        elif resource.resource_type == RESOURCE_BROKER:
            configs = _describe_broker(exchange, request, resource)
        elif resource.resource_type == RESOURCE_BROKER_LOGGER:
            configs = _describe_loggers(exchange, resource)
        elif resource.resource_type == RESOURCE_GROUP:
            configs = _describe_group(exchange, request, resource)
        elif resource.resource_type == RESOURCE_CLIENT_METRICS:
            configs = ()  # no client is asked for metrics, so no subscription has settings
        else:
            raise InvalidRequest(f"Resources of type {resource.resource_type} have no settings here.")
    except PenstockError as error:
        return DescribeConfigsResult(
            error_code=error_code(error),
            error_message=error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=(),
        )
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _describe_topic(
    exchange: Exchange, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> tuple[DescribeConfigsResourceResult, ...]:
    overrides = exchange.broker.metadata.topic(resource.resource_name).configs
    settings = exchange.broker.topic_settings(resource.resource_name)
    defaults = exchange.broker.config.topic_defaults
    keys = resource.configuration_keys
    return tuple(
        _describe_setting(setting, settings, defaults, overrides, request)
        for setting in SETTINGS.values()
        if keys is None or setting.name in keys
    )


def _describe_setting(
    setting: Setting,
    settings: TopicSettings,
    defaults: TopicSettings,
    overrides: Mapping[str, str],
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    synonyms = [DescribeConfigsSynonym(name=setting.name, value=setting.show(defaults), source=SOURCE_DEFAULT)]
    if setting.name in overrides:
        synonyms.insert(
            0, DescribeConfigsSynonym(name=setting.name, value=overrides[setting.name], source=SOURCE_TOPIC)
        )
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=setting.show(settings),
        read_only=False,
        config_source=synonyms[0].source,
        is_sensitive=False,
        synonyms=tuple(synonyms) if request.include_synonyms else (),
        config_type=_KINDS[setting.kind],
        documentation=setting.doc if request.include_documentation else None,
    )


def _check_node(exchange: Exchange, name: str) -> None:
    """A node tells its own settings and no other node's."""
    node_id = exchange.broker.config.node_id
    if name != str(node_id):
        raise InvalidRequest(f"This is node {node_id}; name it, or ask node {name or 'by number'} for its settings.")


def _describe_broker(
    exchange: Exchange, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> tuple[DescribeConfigsResourceResult, ...]:
    """A node's settings, of which some can be changed; with the empty name, what is set for all nodes."""
    keys, config, metadata = resource.configuration_keys, exchange.broker.config, exchange.broker.metadata
    cluster_wide = metadata.resource_configs("node", CLUSTER_WIDE)
    own = metadata.resource_configs("node", resource.resource_name) if resource.resource_name else {}
    if resource.resource_name:
        _check_node(exchange, resource.resource_name)
    rows = []
    for name, doc in resource_config.NODE_SETTINGS.items():
        layers = [
            (layer[name], source)
            for layer, source in ((own, SOURCE_DYNAMIC_BROKER), (cluster_wide, SOURCE_DYNAMIC_DEFAULT_BROKER))
            if name in layer
        ]
        if resource.resource_name:
            unset = UNSET_RATES[name](config)
            layers.append((str(unset or UNLIMITED_RATE), SOURCE_STATIC_BROKER if unset else SOURCE_DEFAULT))
        if layers and (keys is None or name in keys):
            rows.append(_config(name, "long", layers, doc, request, read_only=False))
    if resource.resource_name:
        rows += [
            _config(name, setting.kind, [(show(setting.read(config)), SOURCE_STATIC_BROKER)], setting.doc, request)
            for name, setting in NODE_SETTINGS.items()
            if keys is None or name in keys
        ]
    return tuple(rows)


def _describe_group(
    exchange: Exchange, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> tuple[DescribeConfigsResourceResult, ...]:
    """A group's settings; those of the node's file where it has none of its own."""
    if not resource.resource_name:
        raise InvalidRequest("Settings of groups are those of one group; name it.")
    own = exchange.broker.metadata.resource_configs("group", resource.resource_name)
    rows = []
    for name, doc in resource_config.GROUP_SETTINGS.items():
        layers = [(own[name], SOURCE_GROUP)] if name in own else []
        layers.append((str(UNSET_TIMES[name](exchange.broker.config)), SOURCE_DEFAULT))
        if resource.configuration_keys is None or name in resource.configuration_keys:
            rows.append(_config(name, "int", layers, doc, request, read_only=False))
    return tuple(rows)


def _describe_loggers(
    exchange: Exchange, resource: DescribeConfigsResource
) -> tuple[DescribeConfigsResourceResult, ...]:
    _check_node(exchange, resource.resource_name)
    keys = resource.configuration_keys
    return tuple(
        _config(name, "string", [(level, SOURCE_DYNAMIC_LOGGER)], None, None, read_only=False)
        for name, level in loggers().items()
        if keys is None or name in keys
    )


def _config(
    name: str,
    kind: str,
    layers: Sequence[tuple[str | None, int]],
    doc: str | None,
    request: DescribeConfigsRequest | None,
    *,
    read_only: bool = True,
) -> DescribeConfigsResourceResult:
    """A setting with its values and their sources, the one in force first."""
    value, source = layers[0]
    has_doc = request is not None and request.include_documentation
    has_synonyms = request is not None and request.include_synonyms
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=read_only,
        config_source=source,
        is_sensitive=False,
        synonyms=tuple(DescribeConfigsSynonym(name=name, value=each, source=where) for each, where in layers)
        if has_synonyms
        else (),
        config_type=_KINDS[kind],
        documentation=doc if has_doc else None,
    )


async def alter_configs(exchange: Exchange, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Versions 0 to 2. What is named replaces all settings of the resource; others go back to their defaults."""
    responses = []
    for resource in request.resources:
        changes: dict[str, str | None] = dict.fromkeys(
            _present(exchange, resource.resource_type, resource.resource_name)
        )
        changes.update({config.name: config.value for config in resource.configs})
        responses.append(
            await _alter(
                exchange, resource.resource_type, resource.resource_name, changes, validate_only=request.validate_only
            )
        )
    return AlterConfigsResponse(responses=tuple(responses))


def _present(exchange: Exchange, resource_type: int, name: str) -> Mapping[str, str]:
    """What is set for a resource by now."""
    metadata = exchange.broker.metadata
    if resource_type in _IN_METADATA:
        return metadata.resource_configs(_IN_METADATA[resource_type], name)
    topic = metadata.topics.get(name) if resource_type == RESOURCE_TOPIC else None
    return {} if topic is None else topic.configs


async def incremental_alter_configs(
    exchange: Exchange, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Versions 0 and 1. Only what is named changes; lists can be appended to and subtracted from."""
    responses = []
    for resource in request.resources:
        try:
            changes = _changes(exchange, resource)
        except PenstockError as error:
            outcome = _response(resource.resource_type, resource.resource_name, error)
        else:
            outcome = await _alter(
                exchange, resource.resource_type, resource.resource_name, changes, validate_only=request.validate_only
            )
        responses.append(
            IncrementalAlterConfigsResourceResponse(
                error_code=outcome.error_code,
                error_message=outcome.error_message,
                resource_type=outcome.resource_type,
                resource_name=outcome.resource_name,
            )
        )
    return IncrementalAlterConfigsResponse(responses=tuple(responses))


def _changes(exchange: Exchange, resource: IncrementalAlterConfigsResource) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        operation = config.config_operation
        if operation == _SET:
            changes[config.name] = config.value
        elif operation == _DELETE:
            changes[config.name] = None
        elif operation in (_APPEND, _SUBTRACT):
            changes[config.name] = _edit_list(exchange, resource, config.name, config.value, operation)
        else:
            raise InvalidConfig(
                f"Operation {operation} on {config.name!r} is unknown: 0 set, 1 delete, 2 append, 3 subtract."
            )
    return changes


def _edit_list(
    exchange: Exchange, resource: IncrementalAlterConfigsResource, name: str, value: str | None, operation: int
) -> str:
    setting = SETTINGS.get(name) if resource.resource_type == RESOURCE_TOPIC else None  # only topics have lists
    if setting is None or setting.kind != "list":
        raise InvalidConfig(f"{name!r} is not a list, so nothing can be appended to it or subtracted from it.")
    present = [part for part in setting.show(exchange.broker.topic_settings(resource.resource_name)).split(",") if part]
    named = [part for part in (value or "").split(",") if part]
    if operation == _APPEND:
        return ",".join([*present, *(part for part in named if part not in present)])
    return ",".join(part for part in present if part not in named)


async def _alter(
    exchange: Exchange, resource_type: int, name: str, changes: dict[str, str | None], *, validate_only: bool
) -> AlterConfigsResourceResponse:
    try:
        if not changes and resource_type in (RESOURCE_TOPIC, *_IN_METADATA):
            return _unchanged(exchange, resource_type, name)
        if resource_type in _IN_METADATA:
            kind = _IN_METADATA[resource_type]
            await exchange.broker.configure_resource(kind, name, changes, validate_only=validate_only)
        elif resource_type == RESOURCE_BROKER_LOGGER:
            _check_node(exchange, name)
            change_loggers(changes, validate_only=validate_only)
        elif resource_type == RESOURCE_TOPIC:
            await exchange.broker.configure_topic(name, changes, validate_only=validate_only)
        else:
            raise InvalidRequest(
                "Settings of topics, groups, nodes and loggers can be changed here; clients are not asked for metrics."
            )
    except PenstockError as error:
        return _response(resource_type, name, error)
    return AlterConfigsResourceResponse(error_code=ErrorCode.NONE, resource_type=resource_type, resource_name=name)


def _unchanged(exchange: Exchange, resource_type: int, name: str) -> AlterConfigsResourceResponse:
    """Nothing is to be changed, which is fine wherever there is something."""
    if resource_type == RESOURCE_TOPIC:
        exchange.broker.metadata.topic(name)
    return AlterConfigsResourceResponse(error_code=ErrorCode.NONE, resource_type=resource_type, resource_name=name)


def _response(resource_type: int, name: str, error: PenstockError) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error_code(error), error_message=error.message, resource_type=resource_type, resource_name=name
    )


def describe_log_dirs(exchange: Exchange, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Versions 1 to 4. From 4 on with the size of the disk."""
    broker = exchange.broker
    wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition in broker.replicas:
        topic, index = partition.id
        if wanted is None or index in wanted.get(topic, ()):
            by_topic.setdefault(topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=index, partition_size=partition.log.size_bytes, offset_lag=0, is_future_key=False
                )
            )
    total, free = broker.disk_usage()
    return DescribeLogDirsResponse(
        results=(
            DescribeLogDirsResult(
                error_code=ErrorCode.NONE,
                log_dir=str(broker.config.data_dir),
                topics=tuple(
                    DescribeLogDirsTopic(name=name, partitions=tuple(rows)) for name, rows in sorted(by_topic.items())
                ),
                total_bytes=total,
                usable_bytes=free,
            ),
        )
    )


def list_config_resources(exchange: Exchange, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """Versions 0 and 1. Version 0 asks for subscriptions to clients' metrics, of which there are none."""
    broker = exchange.broker
    if exchange.version == 0:
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE)
    wanted = set(request.resource_types) or _LISTED
    if not wanted <= _LISTED:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    nodes = [str(node_id) for node_id in sorted(broker.metadata.nodes)]
    names = {
        RESOURCE_TOPIC: sorted(broker.metadata.topics),
        RESOURCE_BROKER: nodes,
        RESOURCE_BROKER_LOGGER: nodes,
        RESOURCE_GROUP: sorted(name for kind, name in broker.metadata.configured if kind == "group"),
    }
    return ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=tuple(
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(wanted)
            for name in names.get(kind, ())
        ),
    )


def alter_replica_log_dirs(exchange: Exchange, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Versions 1 and 2. A node has one directory, so a replica can only be asked to be where it is."""
    broker = exchange.broker
    by_topic: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        is_ours = directory.path.rstrip("/") == str(broker.config.data_dir)
        for topic in directory.topics:
            for index in topic.partitions:
                code = ErrorCode.LOG_DIR_NOT_FOUND
                if is_ours:
                    is_here = broker.replicas.has(topic.name, index)
                    code = ErrorCode.NONE if is_here else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                row = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                by_topic.setdefault(topic.name, []).append(row)
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(rows)) for name, rows in by_topic.items()
        )
    )


HANDLERS = (
    Handler(ListConfigResourcesRequest, list_config_resources),
    Handler(AlterReplicaLogDirsRequest, alter_replica_log_dirs),
    Handler(DescribeConfigsRequest, describe_configs),
    Handler(AlterConfigsRequest, alter_configs),
    Handler(IncrementalAlterConfigsRequest, incremental_alter_configs),
    Handler(DescribeLogDirsRequest, describe_log_dirs),
)
