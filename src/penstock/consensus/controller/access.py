"""Decisions on access: credentials, rules and API keys. Each returns the records that make it so, or refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from penstock.access import api_keys, scram
from penstock.access.acls import ANY_HOST, ANY_NAME, CLUSTER_NAME, Acl, AclFilter, AclIndex, AclPattern, AclResource
from penstock.access.limits import ACLS_IN_REQUEST_MAX, ACLS_MAX, KEYS_MAX, USERS_MAX
from penstock.access.principal import ANYONE, Principal, check_name
from penstock.access.rules import AccessRules, admins
from penstock.access.scram import ScramCredential, ScramMechanism
from penstock.consensus.records import (
    AclAdded,
    AclRemoved,
    ApiKeyIssued,
    ApiKeyRevoked,
    CredentialRemoved,
    CredentialSet,
    MetadataRecord,
)
from penstock.errors import (
    AccessLimitReached,
    ApiKeyNotFound,
    InvalidField,
    InvalidPrincipal,
    LastAdmin,
    UserNotFound,
)
from penstock.model import TOPIC_NAME_CHARS_MAX


def begin(
    rules: AccessRules, user: str, credentials: Sequence[ScramCredential], key: api_keys.ApiKey
) -> list[MetadataRecord]:
    """The first user and key, together or not at all; nothing where there are any."""
    if rules.credentials or rules.keys:
        return []
    return [*set_credentials(rules, user, credentials), *issue_key(rules, key)]


def set_credentials(rules: AccessRules, user: str, credentials: Sequence[ScramCredential]) -> list[MetadataRecord]:
    if check_name(user) == "*":
        raise InvalidPrincipal("'*' means every user; no user can have that name.")
    if user not in rules.credentials and len(rules.credentials) >= USERS_MAX:
        raise AccessLimitReached(f"There are {USERS_MAX} users, the most there can be. Delete some first.")
    return [CredentialSet(user=user, credential=scram.check(credential)) for credential in credentials]


def remove_credentials(rules: AccessRules, user: str, mechanisms: Sequence[ScramMechanism]) -> list[MetadataRecord]:
    held = rules.credentials.get(user, {})
    going = list(mechanisms) or list(held)
    missing = [mechanism for mechanism in going if mechanism not in held]
    if not held or missing:
        what = f"has no credential of {', '.join(missing)}" if held else "does not exist"
        raise UserNotFound(f"The user {user!r} {what}.")
    if len(set(going)) == len(held) and admins(rules.acls) == {str(Principal(user))}:
        raise LastAdmin(
            f"{user!r} is the last user that may change access. Give another one the role admin on the cluster first."
        )
    return [CredentialRemoved(user=user, mechanism=mechanism) for mechanism in dict.fromkeys(going)]


def add_acls(rules: AccessRules, acls: Sequence[Acl]) -> list[MetadataRecord]:
    """All of them or none. Rules that exist already are left as they are."""
    if len(acls) > ACLS_IN_REQUEST_MAX:
        raise AccessLimitReached(f"A request adds at most {ACLS_IN_REQUEST_MAX} rules; this one has {len(acls)}.")
    for acl in acls:
        check_acl(acl)
    added = [acl for acl in dict.fromkeys(acls) if acl not in rules.acls]
    if len(rules.acls) + len(added) > ACLS_MAX:
        raise AccessLimitReached(f"There can be {ACLS_MAX} rules at most. Remove some, or use rules with prefixes.")
    if any(acl.resource is AclResource.CLUSTER for acl in added):
        _keep_an_admin(rules.acls, [*rules.acls, *added])
    return [AclAdded(acl=acl) for acl in added]


def remove_acls(
    rules: AccessRules, filters: Sequence[AclFilter]
) -> tuple[list[MetadataRecord], tuple[tuple[Acl, ...], ...]]:
    """The records, and for each filter what it matches."""
    matches = tuple(tuple(rules.acls.matching(chosen)) for chosen in filters)
    going = dict.fromkeys(acl for matched in matches for acl in matched)
    if any(acl.resource is AclResource.CLUSTER for acl in going):
        _keep_an_admin(rules.acls, (acl for acl in rules.acls if acl not in going))
    return [AclRemoved(acl=acl) for acl in going], matches


def issue_key(rules: AccessRules, key: api_keys.ApiKey) -> list[MetadataRecord]:
    api_keys.check_id(key.key_id)
    Principal.parse(key.principal)
    if key.key_id in rules.keys:
        raise InvalidField("There is an API key of that id already; issue another one.")
    if len(rules.keys) >= KEYS_MAX:
        raise AccessLimitReached(f"There are {KEYS_MAX} API keys, the most there can be. Revoke some first.")
    if len(key.scopes) > api_keys.SCOPES_MAX:
        raise InvalidField(f"A key has at most {api_keys.SCOPES_MAX} scopes.")
    if len(key.description) > api_keys.DESCRIPTION_CHARS_MAX:
        raise InvalidField(f"A key's description has at most {api_keys.DESCRIPTION_CHARS_MAX} characters.")
    for acl in key.scopes:
        check_acl(acl)
    return [ApiKeyIssued(key=key)]


def revoke_key(rules: AccessRules, key_id: str) -> list[MetadataRecord]:
    if key_id not in rules.keys:
        raise ApiKeyNotFound(f"There is no API key {key_id!r}.")
    return [ApiKeyRevoked(key_id=key_id)]


def check_acl(acl: Acl) -> None:
    """Raise unless the rule can ever mean something."""
    if acl.principal != ANYONE:
        principal = Principal.parse(acl.principal)
        if principal.name == "*":
            raise InvalidPrincipal(f"{acl.principal!r} is no principal; all of them are {ANYONE!r}.")
    if not acl.name or len(acl.name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidField(f"A rule names its resource with 1 to {TOPIC_NAME_CHARS_MAX} characters; '*' means all.")
    if acl.resource is AclResource.CLUSTER and (
        acl.name not in (CLUSTER_NAME, ANY_NAME) or acl.pattern is not AclPattern.LITERAL
    ):
        raise InvalidField(f"There is one cluster, and rules name it {CLUSTER_NAME!r}.")
    if acl.host != ANY_HOST:
        try:
            ip_address(acl.host)
        except ValueError:
            raise InvalidField(f"{acl.host!r} is no address. A rule is for one address, or '*' for all.") from None


def _keep_an_admin(before: AclIndex, after: Iterable[Acl]) -> None:
    if admins(before) and not admins(AclIndex(after)):
        raise LastAdmin(
            "With this no principal could change access any more, super users of the settings aside. "
            "Give another principal the role admin on the cluster first."
        )
