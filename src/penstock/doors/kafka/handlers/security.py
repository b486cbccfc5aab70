"""DescribeAcls, CreateAcls, DeleteAcls, and what a client without limits may do.

There is no access control yet: as Kafka does without an authorizer, calls about access control lists are answered with
SECURITY_DISABLED, and every client may do every operation on a resource.
"""

from __future__ import annotations

from typing import Final

from penstock.doors.kafka.handler import Handler, RequestContext
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import security as wire

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
GROUP_OPERATIONS: Final = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER_OPERATIONS: Final = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)

_DISABLED: Final = "There is no access control on this cluster, so it keeps no lists."


def describe_acls(_: RequestContext, __: wire.DescribeAclsRequest) -> wire.DescribeAclsResponse:
    """Versions 1 to 3."""
    return wire.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_DISABLED)


def create_acls(_: RequestContext, request: wire.CreateAclsRequest) -> wire.CreateAclsResponse:
    """Versions 1 to 3."""
    refused = wire.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_DISABLED)
    return wire.CreateAclsResponse(results=(refused,) * len(request.creations))


def delete_acls(_: RequestContext, request: wire.DeleteAclsRequest) -> wire.DeleteAclsResponse:
    """Versions 1 to 3."""
    refused = wire.DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_DISABLED)
    return wire.DeleteAclsResponse(filter_results=(refused,) * len(request.filters))


HANDLERS = (
    Handler(wire.DescribeAclsRequest, describe_acls),
    Handler(wire.CreateAclsRequest, create_acls),
    Handler(wire.DeleteAclsRequest, delete_acls),
)
