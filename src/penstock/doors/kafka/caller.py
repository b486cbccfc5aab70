"""The principal behind a connection's requests, and what it may do.

Every decision is the authorizer's; the door knows whom to ask it for, and Kafka's code for a no. Without security a
caller is not limited, and asking it costs one comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.access.acls import CLUSTER_NAME, AclAction, AclResource
from penstock.access.principal import ANONYMOUS, Principal
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.schema import Api
from penstock.features.access.audit import AuditLog
from penstock.features.access.authorizer import Authorizer

# The code of a refusal, by what was refused.
REFUSALS: Final[Mapping[AclResource, ErrorCode]] = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
REFUSED: Final = "Authorization failed."  # Kafka's words; more would tell what there is

# What can be done with a resource, as the bits of ``authorized_operations`` (KIP-430).
_OPERATIONS: Final[Mapping[AclResource, tuple[AclAction, ...]]] = {
    AclResource.TOPIC: (
        AclAction.READ,
        AclAction.WRITE,
        AclAction.CREATE,
        AclAction.DELETE,
        AclAction.ALTER,
        AclAction.DESCRIBE,
        AclAction.DESCRIBE_CONFIGS,
        AclAction.ALTER_CONFIGS,
    ),
    AclResource.GROUP: (
        AclAction.READ,
        AclAction.DELETE,
        AclAction.DESCRIBE,
        AclAction.DESCRIBE_CONFIGS,
        AclAction.ALTER_CONFIGS,
    ),
    AclResource.CLUSTER: (
        AclAction.CREATE,
        AclAction.ALTER,
        AclAction.DESCRIBE,
        AclAction.CLUSTER_ACTION,
        AclAction.DESCRIBE_CONFIGS,
        AclAction.ALTER_CONFIGS,
        AclAction.IDEMPOTENT_WRITE,
    ),
}
_DECISIONS_MAX: Final = 1_024  # of one connection; more topics than that are decided again


class Caller:
    """Who asks, from where."""

    __slots__ = ("_audit", "_authorizer", "_decided_at", "_readable", "_writable", "host", "is_limited", "principal")

    def __init__(
        self, authorizer: Authorizer, audit: AuditLog, principal: Principal = ANONYMOUS, host: str = ""
    ) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self.principal = principal
        self.host = host
        self.is_limited = authorizer.is_on
        # What this caller may read and write, for the hot paths: its names are shorter keys than the authorizer's.
        self._decided_at = -1
        self._readable: dict[str, bool] = {}
        self._writable: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<Caller {self.principal} at {self.host}>"

    def may(self, action: AclAction, resource: AclResource, name: str) -> bool:
        if not self.is_limited:
            return True
        return self._authorizer.allows(self.principal, self.host, action, resource, name)

    def may_some(self, action: AclAction, resource: AclResource) -> bool:
        """Whether there can be a resource of that kind to which the caller may do that."""
        return not self.is_limited or self._authorizer.allows_any(self.principal, self.host, action, resource)

    def may_topic(self, action: AclAction, name: str) -> bool:
        return self.may(action, AclResource.TOPIC, name)

    def may_read(self, topic: str) -> bool:
        """As `may_topic`, for every fetch."""
        known = self._readable.get(topic) if self._authorizer.version == self._decided_at else None
        return self._decide(self._readable, AclAction.READ, topic) if known is None else known

    def may_write(self, topic: str) -> bool:
        """As `may_topic`, for every produce."""
        known = self._writable.get(topic) if self._authorizer.version == self._decided_at else None
        return self._decide(self._writable, AclAction.WRITE, topic) if known is None else known

    def _decide(self, decisions: dict[str, bool], action: AclAction, topic: str) -> bool:
        if self._decided_at != self._authorizer.version or len(decisions) >= _DECISIONS_MAX:
            self._readable.clear()
            self._writable.clear()
            self._decided_at = self._authorizer.version
        decided = decisions[topic] = self.may_topic(action, topic)
        return decided

    def may_group(self, action: AclAction, name: str) -> bool:
        return self.may(action, AclResource.GROUP, name)

    def may_cluster(self, action: AclAction) -> bool:
        return self.may(action, AclResource.CLUSTER, CLUSTER_NAME)

    def refuse(self, api: Api, resource: AclResource, name: str) -> ErrorCode:
        """Note down that the caller asked for what it may not have, and return Kafka's code for it."""
        self._audit.denied(self.principal, self.host, f"kafka.{api.name}", f"{resource.name.lower()}:{name}", "")
        return REFUSALS[resource]

    def changed(self, api: Api, resource: str) -> None:
        """Note down that the caller has changed something that administrators answer for."""
        self._audit.changed(self.principal, self.host, f"kafka.{api.name}", resource, "")

    def failed(self, api: Api, resource: str) -> None:
        """Note down that the caller was allowed to change something, and it did not happen."""
        self._audit.failed(self.principal, self.host, f"kafka.{api.name}", resource, "")

    def operations(self, resource: AclResource, name: str) -> int:
        """What the caller may do with a resource, a bit for each operation."""
        return sum(1 << action for action in _OPERATIONS[resource] if self.may(action, resource, name))

    def cluster_operations(self) -> int:
        """The same of the cluster; nothing for callers that may not describe it, as in Kafka."""
        return self.operations(AclResource.CLUSTER, CLUSTER_NAME) if self.may_cluster(AclAction.DESCRIBE) else 0
