"""All that a cluster has decided on access: credentials, rules and keys, changed only by applying records.

``version`` grows with each change and never falls, so a decision that was kept is good as long as it stands.
"""

from __future__ import annotations

from penstock.access.acls import Acl, AclAction, AclIndex, AclPermission, AclResource, decide
from penstock.access.api_keys import ApiKey
from penstock.access.principal import ANYONE, Principal
from penstock.access.scram import ScramCredential, ScramMechanism


class AccessRules:
    """Credentials by user and mechanism, rules, keys by id."""

    def __init__(self) -> None:
        self.version = 0
        self.credentials: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        self.acls = AclIndex()
        self.keys: dict[str, ApiKey] = {}

    def reset(self) -> None:
        self.version += 1
        self.credentials.clear()
        self.acls.clear()
        self.keys.clear()

    def set_credential(self, user: str, credential: ScramCredential) -> None:
        self.version += 1
        self.credentials.setdefault(user, {})[credential.mechanism] = credential

    def remove_credential(self, user: str, mechanism: ScramMechanism) -> None:
        self.version += 1
        held = self.credentials.get(user, {})
        held.pop(mechanism, None)
        if not held:
            self.credentials.pop(user, None)

    def add_acl(self, acl: Acl) -> None:
        self.version += 1
        self.acls.add(acl)

    def remove_acl(self, acl: Acl) -> None:
        self.version += 1
        self.acls.remove(acl)

    def issue_key(self, key: ApiKey) -> None:
        self.version += 1
        self.keys[key.key_id] = key

    def revoke_key(self, key_id: str) -> None:
        self.version += 1
        self.keys.pop(key_id, None)


def admins(acls: AclIndex) -> set[str]:
    """The principals that may change who may do what: those with ALTER on the cluster, from some host."""
    found = set()
    for acl in acls:
        if (
            acl.resource is AclResource.CLUSTER
            and acl.permission is AclPermission.ALLOW
            and acl.action in (AclAction.ALTER, AclAction.ALL)
            and decide(acls, _principal(acl.principal), acl.host, AclAction.ALTER, AclResource.CLUSTER, acl.name)
        ):
            found.add(acl.principal)
    return found


def _principal(text: str) -> Principal:
    return Principal("*") if text == ANYONE else Principal.parse(text)
