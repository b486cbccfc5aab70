"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from penstock.cluster.topic_config import SETTINGS, Setting, TopicSettings
from penstock.errors import InvalidConfig, InvalidRequest, PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol.config_messages import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
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
)
from penstock.kafka.protocol.errors import ErrorCode

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
SOURCE_TOPIC: Final = 1
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5

_KINDS: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
# How Kafka slows replication down while replicas move. Here a setting of each node does (replication_throttle_bytes).
_THROTTLES: Final = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)


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
            configs = _describe_broker(exchange, resource)
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


def _describe_broker(
    exchange: Exchange, resource: DescribeConfigsResource
) -> tuple[DescribeConfigsResourceResult, ...]:
    """A node's own settings: they come from its file and flags, so they are shown but not changed here."""
    config = exchange.broker.config
    if resource.resource_name not in ("", str(config.node_id)):
        raise InvalidRequest(f"This is node {config.node_id}; ask node {resource.resource_name} for its settings.")
    shown = {
        field.name.replace("_", "."): str(getattr(config, field.name))
        for field in fields(config)
        if field.name not in {"endpoints", "topic_defaults", "cluster"}
    }
    keys = resource.configuration_keys
    return tuple(
        DescribeConfigsResourceResult(
            name=name,
            value=value,
            read_only=True,
            config_source=SOURCE_STATIC_BROKER,
            is_sensitive=False,
            synonyms=(),
            config_type=_KINDS["string"],
        )
        for name, value in sorted(shown.items())
        if keys is None or name in keys
    )


async def alter_configs(exchange: Exchange, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Versions 0 to 2. What is named replaces all settings of the topic; what is not named goes back to its default."""
    responses = []
    for resource in request.resources:
        changes: dict[str, str | None] = {}
        known = exchange.broker.metadata.topics.get(resource.resource_name)
        if known is not None:
            changes = dict.fromkeys(known.configs)
        changes.update({config.name: config.value for config in resource.configs})
        responses.append(
            await _alter(
                exchange, resource.resource_type, resource.resource_name, changes, validate_only=request.validate_only
            )
        )
    return AlterConfigsResponse(responses=tuple(responses))


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
        if operation == _DELETE and config.name in _THROTTLES:
            continue  # Kafka's tools clear them after every move; nobody has set them
        if operation == _SET:
            changes[config.name] = config.value
        elif operation == _DELETE:
            changes[config.name] = None
        elif operation in (_APPEND, _SUBTRACT):
            changes[config.name] = _edit_list(exchange, resource.resource_name, config.name, config.value, operation)
        else:
            raise InvalidConfig(
                f"Operation {operation} on {config.name!r} is unknown: 0 set, 1 delete, 2 append, 3 subtract."
            )
    return changes


def _edit_list(exchange: Exchange, topic: str, name: str, value: str | None, operation: int) -> str:
    setting = SETTINGS.get(name)
    if setting is None or setting.kind != "list":
        raise InvalidConfig(f"{name!r} is not a list, so nothing can be appended to it or subtracted from it.")
    present = [part for part in setting.show(exchange.broker.topic_settings(topic)).split(",") if part]
    named = [part for part in (value or "").split(",") if part]
    if operation == _APPEND:
        return ",".join([*present, *(part for part in named if part not in present)])
    return ",".join(part for part in present if part not in named)


async def _alter(
    exchange: Exchange, resource_type: int, name: str, changes: dict[str, str | None], *, validate_only: bool
) -> AlterConfigsResourceResponse:
    try:
        if not changes and resource_type in (RESOURCE_TOPIC, RESOURCE_BROKER):
            return _unchanged(exchange, resource_type, name)
        if resource_type != RESOURCE_TOPIC:
            raise InvalidRequest(
                "Only settings of topics can be changed here; a node's own come from its configuration file and flags."
            )
        await exchange.broker.configure_topic(name, changes, validate_only=validate_only)
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


HANDLERS = (
    Handler(DescribeConfigsRequest, describe_configs),
    Handler(AlterConfigsRequest, alter_configs),
    Handler(IncrementalAlterConfigsRequest, incremental_alter_configs),
    Handler(DescribeLogDirsRequest, describe_log_dirs),
)
