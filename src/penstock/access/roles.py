"""Roles: names for sets of rights that people ask for together. Granting one adds its rules, and nothing else.

A role is granted on one resource: what it gives depends on the kind. ``admin`` on the cluster is everything on
everything. Removing a role removes the same rules.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from penstock.access.acls import ANY_NAME, CLUSTER_NAME, Acl, AclAction, AclPattern, AclResource
from penstock.errors import UnknownRole

_TOPIC, _GROUP, _CLUSTER, _ID = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER, AclResource.TRANSACTIONAL_ID


class Role(enum.StrEnum):
    READER = "reader"
    WRITER = "writer"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


RIGHTS: Final[Mapping[Role, Mapping[AclResource, tuple[AclAction, ...]]]] = {
    Role.READER: {
        _TOPIC: (AclAction.READ, AclAction.DESCRIBE_CONFIGS),
        _GROUP: (AclAction.READ,),
        _CLUSTER: (AclAction.DESCRIBE,),
    },
    Role.WRITER: {
        _TOPIC: (AclAction.WRITE, AclAction.DESCRIBE_CONFIGS),
        _ID: (AclAction.WRITE,),
        _CLUSTER: (AclAction.DESCRIBE, AclAction.IDEMPOTENT_WRITE),
    },
    Role.WORKER: {
        _TOPIC: (AclAction.READ, AclAction.WRITE, AclAction.DESCRIBE_CONFIGS),
        _GROUP: (AclAction.READ,),
        _ID: (AclAction.WRITE,),
        _CLUSTER: (AclAction.DESCRIBE, AclAction.IDEMPOTENT_WRITE),
    },
    Role.OPERATOR: {
        _TOPIC: (
            AclAction.CREATE,
            AclAction.DELETE,
            AclAction.ALTER,
            AclAction.DESCRIBE,
            AclAction.ALTER_CONFIGS,
        ),
        _GROUP: (AclAction.READ, AclAction.DELETE, AclAction.DESCRIBE, AclAction.ALTER_CONFIGS),
        _ID: (AclAction.WRITE, AclAction.DESCRIBE),
        _CLUSTER: (AclAction.CREATE, AclAction.DESCRIBE, AclAction.ALTER_CONFIGS),
    },
    Role.ADMIN: dict.fromkeys(AclResource, (AclAction.ALL,)),
}


def find_role(name: str) -> Role:
    try:
        return Role(name)
    except ValueError:
        raise UnknownRole(f"There is no role {name!r}. There are: {', '.join(Role)}.") from None


def expand(
    role: Role,
    principal: str,
    resource: AclResource,
    name: str,
    pattern: AclPattern = AclPattern.LITERAL,
    host: str = "*",
) -> list[Acl]:
    """The rules that granting a role on a resource adds."""
    if role is Role.ADMIN and resource is _CLUSTER:
        return [
            Acl(
                principal=principal,
                action=AclAction.ALL,
                resource=each,
                name=CLUSTER_NAME if each is _CLUSTER else ANY_NAME,
                host=host,
            )
            for each in AclResource
        ]
    actions = RIGHTS[role].get(resource)
    if actions is None:
        kinds = ", ".join(each.name.lower() for each in RIGHTS[role])
        raise UnknownRole(f"The role {role} says nothing about a {resource.name.lower()}. Grant it on: {kinds}.")
    return [
        Acl(principal=principal, action=action, resource=resource, name=name, pattern=pattern, host=host)
        for action in actions
    ]
