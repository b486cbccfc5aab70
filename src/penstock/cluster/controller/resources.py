"""Decisions on the settings of groups and of nodes."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.records import MetadataRecord, ResourceConfigured
from penstock.cluster.resource_config import (
    CLUSTER_WIDE,
    GroupLimits,
    ResourceKind,
    check_group_settings,
    check_node_settings,
)
from penstock.errors import InvalidRequest


def configure_resource(
    metadata: ClusterMetadata,
    kind: ResourceKind,
    name: str,
    changes: Mapping[str, str | None],
    limits: GroupLimits,
) -> list[MetadataRecord]:
    """Set settings, or unset those whose value is None; no record where that changes nothing."""
    present = metadata.resource_configs(kind, name)
    merged = {**present, **changes}
    configs = {key: value for key, value in merged.items() if value is not None}
    if kind == "group":
        if not name:
            raise InvalidRequest("Settings of groups are set for one group; name it.")
        check_group_settings(changes, configs, limits)
    else:
        if name != CLUSTER_WIDE and name not in map(str, metadata.nodes):
            raise InvalidRequest(f"There is no node {name!r}; the empty name stands for all nodes.")
        check_node_settings(changes)
    return [] if configs == present else [ResourceConfigured(kind=kind, name=name, configs=configs)]
