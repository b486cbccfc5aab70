"""Operations on access: who the caller is, users and their passwords, rules, roles, API keys.

Secrets go in and are shown once; no answer but that of issuing a key holds one, and requests do not show theirs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.operation import Action, Admits, Repeat, Request, Resource, operation

PrincipalText = Annotated[str, Meta(max_length=300, description="As User:alice; User:* means everyone.")]
ActionName = Literal[
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
]
ResourceName = Literal["topic", "group", "cluster", "transactional_id"]
PatternName = Literal["literal", "prefixed"]
PermissionName = Literal["allow", "deny"]
RoleName = Annotated[str, Meta(description="reader, writer, worker, operator or admin.")]
HostText = Annotated[str, Meta(max_length=64, description="An address; * means all.")]
ResourceText = Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX, description="Of the resource; * means all.")]
UserName = Annotated[str, Meta(max_length=255)]

_LOOK: Final = Action.DESCRIBE.of(Resource.CLUSTER)
_CHANGE: Final = Action.ALTER.of(Resource.CLUSTER)
_ERRORS: Final = (errors.LastAdmin, errors.AccessLimitReached, errors.NotController)


# -- the caller --------------------------------------------------------------------------------------------------------


class WhoIsCalling(msgspec.Struct, frozen=True, kw_only=True):
    """The caller as this node knows it. Without security every caller is User:ANONYMOUS, and may do everything."""

    principal: str
    security: Annotated[bool, Meta(description="Whether callers have to say who they are.")]
    super_user: bool
    key_id: Annotated[str | None, Meta(description="The API key that the call came with.")]
    expires_at: Annotated[datetime | None, Meta(description="When its credential ends.")]


@operation("GET /v1/whoami", name="who_am_i", tag="access", needs=(), admits=Admits.AUTHENTICATED, repeat=Repeat.SAFE)
class WhoAmI(Request[WhoIsCalling], frozen=True, kw_only=True):
    """Tell who the caller is."""


# -- users -------------------------------------------------------------------------------------------------------------


class MechanismView(msgspec.Struct, frozen=True, kw_only=True):
    mechanism: str
    iterations: int


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """A user that can log in with a password, and how."""

    user: str
    mechanisms: list[MechanismView]


class UserList(msgspec.Struct, frozen=True, kw_only=True):
    users: list[UserView]


@operation("GET /v1/users", tag="access", needs=_LOOK, repeat=Repeat.SAFE)
class ListUsers(Request[UserList], frozen=True, kw_only=True):
    """Every user that has a password, by name."""


@operation(
    "PUT /v1/users/{user}",
    tag="access",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(errors.InvalidCredential, errors.InvalidPrincipal, *_ERRORS),
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class SetUser(Request[UserView], frozen=True, kw_only=True):
    """Create a user, or give it another password, for both SCRAM mechanisms."""

    user: UserName
    password: Annotated[str, Meta(min_length=1, max_length=1024)]

    def __repr__(self) -> str:
        return f"SetUser(user={self.user!r}, password=…)"


@operation(
    "DELETE /v1/users/{user}",
    tag="access",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(errors.UserNotFound, *_ERRORS),
)
class DeleteUser(Request[None], frozen=True, kw_only=True):
    """Delete a user's passwords. Rules about it stay."""

    user: UserName


# -- rules -------------------------------------------------------------------------------------------------------------


class AclView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule: a principal may, or may not, do something to the resources of a name."""

    principal: PrincipalText
    action: ActionName
    resource: ResourceName
    name: ResourceText
    pattern: PatternName = "literal"
    permission: PermissionName = "allow"
    host: HostText = "*"


class AclList(msgspec.Struct, frozen=True, kw_only=True):
    acls: list[AclView]


class AclFields(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules are meant: those that have all that is given."""

    principal: PrincipalText | None = None
    action: ActionName | None = None
    resource: ResourceName | None = None
    name: ResourceText | None = None
    pattern: Annotated[
        Literal["literal", "prefixed", "match"] | None,
        Meta(description="match: every rule that applies to the name, also by a prefix or *."),
    ] = None
    permission: PermissionName | None = None
    host: HostText | None = None


@operation("GET /v1/acls", tag="access", needs=_LOOK, repeat=Repeat.SAFE)
class ListAcls(AclFields, Request[AclList], frozen=True, kw_only=True):
    """List rules."""


@operation(
    "POST /v1/acls",
    tag="access",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(errors.InvalidPrincipal, *_ERRORS),
    status=201,
)
class CreateAcls(Request[AclList], frozen=True, kw_only=True):
    """Add rules, all of them or none; those that exist stay as they are."""

    acls: Annotated[list[AclView], Meta(min_length=1, max_length=limits.ACLS_MAX)]


@operation("DELETE /v1/acls", tag="access", needs=_CHANGE, repeat=Repeat.SAME, errors=_ERRORS)
class DeleteAcls(AclFields, Request[AclList], frozen=True, kw_only=True):
    """Remove the rules that match, and tell which those were. At least one field has to be given."""


class _RoleFields(msgspec.Struct, frozen=True, kw_only=True):
    role: RoleName
    principal: PrincipalText
    resource: ResourceName
    name: Annotated[ResourceText, Meta(description="Of the resource; without it, the cluster, or all.")] = ""
    pattern: PatternName = "literal"
    host: HostText = "*"


@operation(
    "POST /v1/roles/grant",
    tag="access",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(errors.UnknownRole, errors.InvalidPrincipal, *_ERRORS),
)
class GrantRole(_RoleFields, Request[AclList], frozen=True, kw_only=True):
    """Give a principal a role on a resource: adds the rules that the role stands for, and tells them."""


@operation(
    "POST /v1/roles/revoke",
    tag="access",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(errors.UnknownRole, *_ERRORS),
)
class RevokeRole(_RoleFields, Request[AclList], frozen=True, kw_only=True):
    """Take a role away: removes the rules that the role stands for, and tells which of them there were."""


# -- API keys ----------------------------------------------------------------------------------------------------------


class KeyScope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a key may do at most: a role on a resource."""

    role: RoleName
    resource: ResourceName
    name: ResourceText = ""
    pattern: PatternName = "literal"


class ApiKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret."""

    key_id: str
    principal: str
    created_at: datetime | None
    expires_at: datetime | None
    description: str
    scopes: Annotated[list[AclView], Meta(description="What it may do at most; empty: all that its principal may.")]


class IssuedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new API key, with its secret. It is not shown again."""

    key: str
    key_id: str
    principal: str
    expires_at: datetime | None

    def __repr__(self) -> str:
        return f"IssuedKey(key_id={self.key_id!r}, key=…)"


class ApiKeyList(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[ApiKeyView]


@operation(
    "POST /v1/keys",
    tag="access",
    needs=_CHANGE,
    repeat=Repeat.AGAIN,
    errors=(errors.UnknownRole, errors.InvalidPrincipal, *_ERRORS),
    status=201,
)
class IssueApiKey(Request[IssuedKey], frozen=True, kw_only=True):
    """Issue an API key that acts for a principal. Its secret is in the answer, and nowhere else."""

    principal: PrincipalText
    scopes: Annotated[list[KeyScope], Meta(max_length=16)] = []
    expires_in_ms: Annotated[
        Annotated[int, Meta(ge=1_000)] | None, Meta(description="How long it is good for; without it, until revoked.")
    ] = None
    description: Annotated[str, Meta(max_length=200)] = ""


@operation("GET /v1/keys", tag="access", needs=_LOOK, repeat=Repeat.SAFE)
class ListApiKeys(Request[ApiKeyList], frozen=True, kw_only=True):
    """List API keys, the oldest first; without their secrets."""

    principal: Annotated[PrincipalText | None, Meta(description="Only those that act for this one.")] = None


@operation(
    "DELETE /v1/keys/{key_id}",
    tag="access",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(errors.ApiKeyNotFound, *_ERRORS),
)
class RevokeApiKey(Request[None], frozen=True, kw_only=True):
    """Revoke an API key. It is refused from now on, also on connections that it opened."""

    key_id: str


# -- master keys -------------------------------------------------------------------------------------------------------


class MasterKeysView(msgspec.Struct, frozen=True, kw_only=True):
    """The master keys of one node's encryption at rest, by version; never the keys themselves."""

    node_id: int
    encrypting: Annotated[bool, Meta(description="Whether new files of the node are encrypted.")]
    version: Annotated[int | None, Meta(description="Of the key that wraps what is new; null without a key.")]
    versions: Annotated[list[int], Meta(description="Of all keys that some file of the node needs.")]


class KeyRotation(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation did on the node that was asked."""

    node_id: int
    version: int
    versions: Annotated[list[int], Meta(description="Of all keys that some file still needs: that one alone.")]
    rewrapped: Annotated[int, Meta(description="How many files have their data key wrapped anew.")]


@operation("GET /v1/security/keys", tag="access", needs=_LOOK, repeat=Repeat.SAFE)
class DescribeMasterKeys(Request[MasterKeysView], frozen=True, kw_only=True):
    """Tell which master keys the files of the node that is asked need."""


@operation(
    "POST /v1/security/keys/rotate",
    tag="access",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(errors.KeysNotRotated,),
)
class RotateMasterKeys(Request[KeyRotation], frozen=True, kw_only=True):
    """Have the node that is asked read its master keys again and wrap every data key by the newest, as at SIGHUP."""
