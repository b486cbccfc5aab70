"""Access rules in Kafka's model, and the one decision over them.

A rule allows or denies a principal one action on the resources whose name it gives, or whose names begin with it. A
denial beats every permission; without a rule there is no access. The index finds the rules of a decision by principal
and name, so a decision looks at the rules that can match and at no others. Numbers are those of Kafka's protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from penstock.access.principal import ANYONE, Principal

ANY_HOST: Final = "*"
ANY_NAME: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"  # the name of the one resource of kind cluster


class AclAction(enum.IntEnum):
    """What a rule is about."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class AclResource(enum.IntEnum):
    """The kinds of resources that access is given to."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class AclPattern(enum.IntEnum):
    """How a rule's name is compared: the whole name (``*``: any), or its beginning."""

    LITERAL = 3
    PREFIXED = 4


class AclPermission(enum.IntEnum):
    DENY = 2
    ALLOW = 3


# A permission of these actions is one of the implied action too; denials imply nothing.
_ALLOWED_BY: Final[dict[AclAction, frozenset[AclAction]]] = {
    action: frozenset({action, AclAction.ALL}) for action in AclAction
} | {
    AclAction.DESCRIBE: frozenset(
        {
            AclAction.ALL,
            AclAction.DESCRIBE,
            AclAction.READ,
            AclAction.WRITE,
            AclAction.DELETE,
            AclAction.ALTER,
        }
    ),
    AclAction.DESCRIBE_CONFIGS: frozenset({AclAction.ALL, AclAction.DESCRIBE_CONFIGS, AclAction.ALTER_CONFIGS}),
}


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. ``principal`` is as ``User:alice``, or ``User:*`` for everyone; ``host`` an address or ``*``."""

    principal: str
    action: AclAction
    resource: AclResource
    name: str
    pattern: AclPattern = AclPattern.LITERAL
    permission: AclPermission = AclPermission.ALLOW
    host: str = ANY_HOST

    def applies_to(self, name: str) -> bool:
        """Whether the rule is about the resource of that name."""
        if self.pattern is AclPattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules are meant; None matches all. ``is_match``: the rules that apply to ``name``, not only its own."""

    principal: str | None = None
    action: AclAction | None = None
    resource: AclResource | None = None
    name: str | None = None
    pattern: AclPattern | None = None
    permission: AclPermission | None = None
    host: str | None = None
    is_match: bool = False

    def matches(self, acl: Acl) -> bool:
        if self.name is not None:
            is_named = acl.applies_to(self.name) if self.is_match else acl.name == self.name
            if not is_named:
                return False
        return (
            self.principal in (None, acl.principal)
            and self.action in (None, acl.action)
            and self.resource in (None, acl.resource)
            and self.permission in (None, acl.permission)
            and self.host in (None, acl.host)
            and (self.is_match or self.pattern in (None, acl.pattern))
        )


class _Rules:
    """The rules of one principal about one kind of resource."""

    __slots__ = ("literal", "prefixed", "sizes")

    def __init__(self) -> None:
        self.literal: dict[str, dict[Acl, None]] = {}
        self.prefixed: dict[str, dict[Acl, None]] = {}
        self.sizes: dict[int, int] = {}  # lengths of prefixes, and how many prefixes have each

    def add(self, acl: Acl) -> None:
        if acl.pattern is AclPattern.PREFIXED and acl.name not in self.prefixed:
            self.sizes[len(acl.name)] = self.sizes.get(len(acl.name), 0) + 1
        self._side(acl).setdefault(acl.name, {})[acl] = None

    def remove(self, acl: Acl) -> None:
        side = self._side(acl)
        side[acl.name].pop(acl)
        if not side[acl.name]:
            del side[acl.name]
            if acl.pattern is AclPattern.PREFIXED:
                self.sizes[len(acl.name)] -= 1
                if not self.sizes[len(acl.name)]:
                    del self.sizes[len(acl.name)]

    def _side(self, acl: Acl) -> dict[str, dict[Acl, None]]:
        return self.prefixed if acl.pattern is AclPattern.PREFIXED else self.literal

    @property
    def is_empty(self) -> bool:
        return not self.literal and not self.prefixed

    def about(self, name: str) -> Iterator[Acl]:
        yield from self.literal.get(name, ())
        if name != ANY_NAME:
            yield from self.literal.get(ANY_NAME, ())
        for size in self.sizes:
            if size <= len(name):
                yield from self.prefixed.get(name[:size], ())

    def all(self) -> Iterator[Acl]:
        for side in (self.literal, self.prefixed):
            for acls in side.values():
                yield from acls


class AclIndex:
    """A set of rules, found by principal, kind of resource and name."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._acls: dict[Acl, None] = {}
        self._index: dict[tuple[str, AclResource], _Rules] = {}
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return len(self._acls)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def __contains__(self, acl: object) -> bool:
        return acl in self._acls

    def add(self, acl: Acl) -> None:
        if acl not in self._acls:
            self._acls[acl] = None
            self._index.setdefault((acl.principal, acl.resource), _Rules()).add(acl)

    def remove(self, acl: Acl) -> None:
        if acl in self._acls:
            del self._acls[acl]
            rules = self._index[acl.principal, acl.resource]
            rules.remove(acl)
            if rules.is_empty:
                del self._index[acl.principal, acl.resource]

    def clear(self) -> None:
        self._acls.clear()
        self._index.clear()

    def matching(self, chosen: AclFilter) -> list[Acl]:
        return [acl for acl in self._acls if chosen.matches(acl)]

    def about(self, principal: str, resource: AclResource, name: str) -> Iterator[Acl]:
        """The rules that are about that principal and that resource."""
        for each in (principal, ANYONE):
            rules = self._index.get((each, resource))
            if rules is not None:
                yield from rules.about(name)

    def of(self, principal: str, resource: AclResource) -> Iterator[Acl]:
        """All rules about that principal and that kind of resource."""
        for each in (principal, ANYONE):
            rules = self._index.get((each, resource))
            if rules is not None:
                yield from rules.all()


def decide(
    acls: AclIndex,
    principal: Principal,
    host: str,
    action: AclAction,
    resource: AclResource,
    name: str,
    super_users: Collection[str] = (),
) -> bool:
    """Whether the principal, calling from that host, may do that. A denial wins; no rule means no."""
    who = str(principal)
    if who in super_users:
        return True
    allowed_by = _ALLOWED_BY[action]
    is_allowed = False
    for acl in acls.about(who, resource, name):
        if acl.host not in (ANY_HOST, host):
            continue
        if acl.permission is AclPermission.DENY:
            if acl.action in (action, AclAction.ALL):
                return False
        elif acl.action in allowed_by:
            is_allowed = True
    return is_allowed


def decide_any(
    acls: AclIndex,
    principal: Principal,
    host: str,
    action: AclAction,
    resource: AclResource,
    super_users: Collection[str] = (),
) -> bool:
    """Whether there can be a resource of that kind, of whatever name, for which `decide` says yes (KIP-679)."""
    who = str(principal)
    if who in super_users:
        return True
    allowed_by = _ALLOWED_BY[action]
    rules = [acl for acl in acls.of(who, resource) if acl.host in (ANY_HOST, host)]
    denied = [acl for acl in rules if acl.permission is AclPermission.DENY and acl.action in (action, AclAction.ALL)]
    return any(
        acl.permission is AclPermission.ALLOW
        and acl.action in allowed_by
        and not any(_covers(denial, acl) for denial in denied)
        for acl in rules
    )


def _covers(denial: Acl, allowed: Acl) -> bool:
    """Whether the denial is about every name that the permission is about."""
    if denial.pattern is AclPattern.PREFIXED:
        return allowed.name.startswith(denial.name) and (
            allowed.pattern is AclPattern.PREFIXED or allowed.name != ANY_NAME
        )
    if denial.name == ANY_NAME:
        return True
    return allowed.pattern is AclPattern.LITERAL and denial.name == allowed.name
