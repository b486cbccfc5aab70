"""Serves the settings of consumer groups, of nodes and of all nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.api.settings import (
    AlterClusterConfigs,
    AlterGroupConfigs,
    AlterNodeConfigs,
    DescribeClusterConfigs,
    DescribeGroupConfigs,
    DescribeNodeConfigs,
    SettingList,
    SettingView,
)
from penstock.api.topics import SettingValue
from penstock.broker.effective_settings import Setting, group_settings, node_settings, set_for
from penstock.consensus.resource_config import CLUSTER_WIDE, ResourceKind
from penstock.errors import NodeNotFound
from penstock.operations.asking import ask_each
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves


@serves(DescribeGroupConfigs)
async def describe_group_configs(services: Services, request: DescribeGroupConfigs, _caller: Caller) -> SettingList:
    return _list(group_settings(services.broker.config, services.metadata, request.group))


@serves(AlterGroupConfigs)
async def alter_group_configs(services: Services, request: AlterGroupConfigs, _caller: Caller) -> SettingList:
    await _change(services, "group", request.group, request.configs)
    return _list(group_settings(services.broker.config, services.metadata, request.group))


@serves(DescribeNodeConfigs)
async def describe_node_configs(services: Services, request: DescribeNodeConfigs, caller: Caller) -> SettingList:
    if request.node == services.node_id:
        return _list(node_settings(services.broker.config, services.metadata))
    _check_node(services, request.node)
    (found,) = await ask_each(services, [request.node], request, caller)
    return found


@serves(AlterNodeConfigs)
async def alter_node_configs(services: Services, request: AlterNodeConfigs, _caller: Caller) -> SettingList:
    _check_node(services, request.node)
    await _change(services, "node", str(request.node), request.configs)
    return _list(set_for(services.metadata, str(request.node)))


@serves(DescribeClusterConfigs)
async def describe_cluster_configs(
    services: Services, _request: DescribeClusterConfigs, _caller: Caller
) -> SettingList:
    return _list(set_for(services.metadata, CLUSTER_WIDE))


@serves(AlterClusterConfigs)
async def alter_cluster_configs(services: Services, request: AlterClusterConfigs, _caller: Caller) -> SettingList:
    await _change(services, "node", CLUSTER_WIDE, request.configs)
    return _list(set_for(services.metadata, CLUSTER_WIDE))


async def _change(
    services: Services, kind: ResourceKind, name: str, configs: Mapping[str, SettingValue | None]
) -> None:
    changes = {name: None if value is None else str(value) for name, value in configs.items()}
    await services.topics.configure_resource(kind, name, changes)


def _check_node(services: Services, node_id: int) -> None:
    if node_id not in services.metadata.nodes:
        raise NodeNotFound(f"There is no node {node_id} in the cluster.")


def _list(settings: Iterable[Setting]) -> SettingList:
    return SettingList(settings=[_view(setting) for setting in settings])


def _view(setting: Setting) -> SettingView:
    value, origin = setting.layers[0]
    return SettingView(
        name=setting.name,
        value=value,
        origin=origin.value,
        is_changeable=setting.is_changeable,
        description=setting.doc,
    )
