"""Whether a principal may do something, by the rules of the cluster; each decision is kept until the rules change.

Where security is off everything is allowed. Where it is on, the broker's own topics are closed to every client, super
users included: they hold receipts' secrets and payloads that are not delivered yet.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.access.acls import AclAction, AclIndex, AclResource, decide, decide_any
from penstock.access.principal import Principal
from penstock.access.rules import AccessRules

DECISIONS_MAX: Final = 65_536  # about 20 MB; past it all are forgotten, which costs one look-up each
INTERNAL_PREFIX: Final = "__"

_TOPIC: Final = AclResource.TOPIC


class Authorizer:
    """One node's view of the rules. ``version`` is theirs: what was decided under another one is void."""

    def __init__(self, rules: AccessRules, *, is_on: bool, super_users: Collection[str] = ()) -> None:
        self._rules = rules
        self.is_on = is_on
        self._super_users = frozenset(super_users)
        self._decided: dict[tuple[Principal, str, AclAction, AclResource, str], bool] = {}
        self._decided_at = rules.version
        self.denied = 0

    @property
    def version(self) -> int:
        return self._rules.version

    def allows(self, principal: Principal, host: str, action: AclAction, resource: AclResource, name: str) -> bool:
        """Whether the principal, calling from that host, may do that to that resource."""
        if not self.is_on:
            return True
        if self._decided_at != self._rules.version:
            self._decided.clear()
            self._decided_at = self._rules.version
        key = (principal, host, action, resource, name)
        known = self._decided.get(key)
        if known is None:
            known = self._decide(principal, host, action, resource, name)
            if len(self._decided) >= DECISIONS_MAX:
                self._decided.clear()
            self._decided[key] = known
        return known

    def allows_any(self, principal: Principal, host: str, action: AclAction, resource: AclResource) -> bool:
        """Whether there can be a resource of that kind for which `allows` says yes. Not kept: for rare questions."""
        if not self.is_on:
            return True
        if not decide_any(self._rules.acls, principal, host, action, resource, self._super_users):
            return False
        scopes = self._scopes(principal)
        return scopes is None or decide_any(scopes, principal, host, action, resource)

    def is_super_user(self, principal: Principal) -> bool:
        return str(principal) in self._super_users

    def _decide(self, principal: Principal, host: str, action: AclAction, resource: AclResource, name: str) -> bool:
        if resource is _TOPIC and name.startswith(INTERNAL_PREFIX):
            return False
        if not decide(self._rules.acls, principal, host, action, resource, name, self._super_users):
            return False
        scopes = self._scopes(principal)
        return scopes is None or decide(scopes, principal, host, action, resource, name)

    def _scopes(self, principal: Principal) -> AclIndex | None:
        """What narrows a principal that came with a key; None if nothing does. A revoked key may do nothing."""
        if not principal.key_id:
            return None
        key = self._rules.keys.get(principal.key_id)
        if key is None:
            return AclIndex()
        return AclIndex(key.scopes) if key.scopes else None
