"""The operations on the cluster itself, in one table."""

from __future__ import annotations

from typing import Final

from penstock.http import cluster, reassignments
from penstock.http.operation import Operation
from penstock.http.outcomes import OutcomeList

_NODE_ERRORS: Final = (400, 403, 404, 408, 409, 413, 422, 503)

CLUSTER_OPERATIONS: Final = (
    Operation("GET", "/v1/cluster", cluster.cluster_status, "cluster", cluster.ClusterStatus, errors=(503,)),
    Operation(
        "POST",
        "/v1/cluster/rebalance",
        cluster.rebalance,
        "cluster",
        cluster.Plan,
        errors=_NODE_ERRORS,
        is_body_optional=True,
    ),
    Operation(
        "POST",
        "/v1/cluster/transfer",
        cluster.transfer,
        "cluster",
        cluster.Transferred,
        errors=_NODE_ERRORS,
        is_body_optional=True,
    ),
    Operation(
        "POST",
        "/v1/cluster/elect-leaders",
        cluster.elect_leaders,
        "cluster",
        OutcomeList,
        also=(207,),
        errors=_NODE_ERRORS,
        is_body_optional=True,
    ),
    Operation("GET", "/v1/nodes", cluster.list_nodes, "cluster", cluster.NodeList, errors=(503,)),
    Operation(
        "POST",
        "/v1/nodes/{node}/drain",
        cluster.drain_node,
        "cluster",
        cluster.Plan,
        errors=_NODE_ERRORS,
        is_body_optional=True,
    ),
    Operation(
        "POST",
        "/v1/nodes/{node}/resume",
        cluster.resume_node,
        "cluster",
        cluster.Plan,
        errors=(403, 404, 409, 422, 503),
    ),
    Operation(
        "DELETE",
        "/v1/nodes/{node}",
        cluster.remove_node,
        "cluster",
        None,
        204,
        errors=(400, 403, 404, 409, 422, 503),
    ),
    Operation(
        "POST",
        "/v1/topics/{topic}/reassign",
        reassignments.reassign_topic,
        "cluster",
        OutcomeList,
        also=(207,),
        errors=_NODE_ERRORS,
    ),
    Operation(
        "GET",
        "/v1/reassignments",
        reassignments.list_reassignments,
        "cluster",
        reassignments.ReassignmentList,
        errors=(503,),
    ),
)
