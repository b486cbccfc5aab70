"""Serves operations on access: users, rules, roles and API keys."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Final

from penstock.access import api_keys
from penstock.access.acls import (
    ANY_NAME,
    CLUSTER_NAME,
    Acl,
    AclAction,
    AclFilter,
    AclPattern,
    AclPermission,
    AclResource,
)
from penstock.access.roles import expand, find_role
from penstock.access.scram import SALT_BYTES, ScramCredential, ScramMechanism, check_password, derive
from penstock.api.access import (
    AclFields,
    AclList,
    AclView,
    ApiKeyList,
    ApiKeyView,
    CreateAcls,
    DeleteAcls,
    DeleteUser,
    DescribeMasterKeys,
    GrantRole,
    IssueApiKey,
    IssuedKey,
    KeyRotation,
    ListAcls,
    ListApiKeys,
    ListUsers,
    MasterKeysView,
    MechanismView,
    RevokeApiKey,
    RevokeRole,
    RotateMasterKeys,
    SetUser,
    UserList,
    UserView,
    WhoAmI,
    WhoIsCalling,
)
from penstock.api.messages import instant
from penstock.consensus import commands
from penstock.errors import EncryptionKeyError, InvalidField, KeysNotRotated, StorageError
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves

_MATCH: Final = "match"


@serves(WhoAmI)
async def who_am_i(services: Services, _request: WhoAmI, caller: Caller) -> WhoIsCalling:
    principal = caller.principal
    return WhoIsCalling(
        principal=str(principal),
        security=services.authorizer.is_on,
        super_user=services.authorizer.is_super_user(principal),
        key_id=principal.key_id or None,
        expires_at=None if principal.expires_ms is None else instant(principal.expires_ms),
    )


# -- users -------------------------------------------------------------------------------------------------------------


@serves(ListUsers)
async def list_users(services: Services, _request: ListUsers, _caller: Caller) -> UserList:
    return UserList(users=[_user(services, user) for user in sorted(services.metadata.access.credentials)])


@serves(SetUser)
async def set_user(services: Services, request: SetUser, _caller: Caller) -> UserView:
    check_password(request.password)
    credentials = await asyncio.to_thread(_derive_all, request.password)
    await services.topics.command(commands.SetCredentials(user=request.user, credentials=credentials))
    return UserView(
        user=request.user,
        mechanisms=[MechanismView(mechanism=each.mechanism, iterations=each.iterations) for each in credentials],
    )


def _derive_all(password: str) -> tuple[ScramCredential, ...]:
    return tuple(derive(mechanism, password, secrets.token_bytes(SALT_BYTES)) for mechanism in ScramMechanism)


@serves(DeleteUser)
async def delete_user(services: Services, request: DeleteUser, _caller: Caller) -> None:
    await services.topics.command(commands.RemoveCredentials(user=request.user))


def _user(services: Services, user: str) -> UserView:
    held = services.metadata.access.credentials[user]
    return UserView(
        user=user,
        mechanisms=[
            MechanismView(mechanism=mechanism, iterations=held[mechanism].iterations) for mechanism in sorted(held)
        ],
    )


# -- rules -------------------------------------------------------------------------------------------------------------


@serves(ListAcls)
async def list_acls(services: Services, request: ListAcls, _caller: Caller) -> AclList:
    return _list(services.metadata.access.acls.matching(_filter(request)))


@serves(CreateAcls)
async def create_acls(services: Services, request: CreateAcls, _caller: Caller) -> AclList:
    await services.topics.command(commands.AddAcls(acls=tuple(_acl(view) for view in request.acls)))
    return AclList(acls=request.acls)


@serves(DeleteAcls)
async def delete_acls(services: Services, request: DeleteAcls, _caller: Caller) -> AclList:
    if all(getattr(request, field) is None for field in AclFields.__struct_fields__):
        raise InvalidField("Say which rules to remove: give at least one field.")
    return await _remove(services, (_filter(request),))


@serves(GrantRole)
async def grant_role(services: Services, request: GrantRole, _caller: Caller) -> AclList:
    acls = _expanded(request)
    await services.topics.command(commands.AddAcls(acls=acls))
    return _list(acls)


@serves(RevokeRole)
async def revoke_role(services: Services, request: RevokeRole, _caller: Caller) -> AclList:
    return await _remove(services, tuple(_exactly(acl) for acl in _expanded(request)))


async def _remove(services: Services, filters: tuple[AclFilter, ...]) -> AclList:
    answer = await services.topics.command(commands.RemoveAcls(filters=filters))
    assert isinstance(answer, commands.AclsRemoved)
    return _list(dict.fromkeys(acl for matched in answer.matches for acl in matched))


def _expanded(request: GrantRole | RevokeRole) -> tuple[Acl, ...]:
    resource = AclResource[request.resource.upper()]
    pattern = AclPattern[request.pattern.upper()]
    role, name = find_role(request.role), _name(resource, request.name)
    return tuple(expand(role, request.principal, resource, name, pattern, request.host))


def _name(resource: AclResource, name: str) -> str:
    """The name that was given; without one, the cluster's, or that of all."""
    if name:
        return name
    return CLUSTER_NAME if resource is AclResource.CLUSTER else ANY_NAME


def _exactly(acl: Acl) -> AclFilter:
    return AclFilter(
        principal=acl.principal,
        action=acl.action,
        resource=acl.resource,
        name=acl.name,
        pattern=acl.pattern,
        permission=acl.permission,
        host=acl.host,
    )


def _acl(view: AclView) -> Acl:
    return Acl(
        principal=view.principal,
        action=AclAction[view.action.upper()],
        resource=AclResource[view.resource.upper()],
        name=view.name,
        pattern=AclPattern[view.pattern.upper()],
        permission=AclPermission[view.permission.upper()],
        host=view.host,
    )


def _view(acl: Acl) -> AclView:
    return AclView(
        principal=acl.principal,
        action=acl.action.name.lower(),  # type: ignore[arg-type]
        resource=acl.resource.name.lower(),  # type: ignore[arg-type]
        name=acl.name,
        pattern=acl.pattern.name.lower(),  # type: ignore[arg-type]
        permission=acl.permission.name.lower(),  # type: ignore[arg-type]
        host=acl.host,
    )


def _list(acls: Iterable[Acl]) -> AclList:
    return AclList(acls=[_view(acl) for acl in acls])


def _filter(request: ListAcls | DeleteAcls) -> AclFilter:
    if request.pattern == _MATCH and request.name is None:
        raise InvalidField("pattern=match goes with a name.")
    return AclFilter(
        principal=request.principal,
        action=None if request.action is None else AclAction[request.action.upper()],
        resource=None if request.resource is None else AclResource[request.resource.upper()],
        name=request.name,
        pattern=None if request.pattern in (None, _MATCH) else AclPattern[request.pattern.upper()],
        permission=None if request.permission is None else AclPermission[request.permission.upper()],
        host=request.host,
        is_match=request.pattern == _MATCH,
    )


# -- API keys ----------------------------------------------------------------------------------------------------------


@serves(IssueApiKey)
async def issue_api_key(services: Services, request: IssueApiKey, _caller: Caller) -> IssuedKey:
    now_ms = services.clock.now_ms()
    key_id, text, secret_hash = api_keys.make_text(
        secrets.token_bytes(api_keys.ID_BYTES), secrets.token_bytes(api_keys.SECRET_BYTES)
    )
    scopes: list[Acl] = []
    for scope in request.scopes:
        resource, pattern = AclResource[scope.resource.upper()], AclPattern[scope.pattern.upper()]
        scopes += expand(find_role(scope.role), request.principal, resource, _name(resource, scope.name), pattern)
    key = api_keys.ApiKey(
        key_id=key_id,
        principal=request.principal,
        secret_hash=secret_hash,
        created_ms=now_ms,
        expires_ms=None if request.expires_in_ms is None else now_ms + request.expires_in_ms,
        scopes=tuple(dict.fromkeys(scopes)),
        description=request.description,
    )
    await services.topics.command(commands.IssueApiKey(key=key))
    expires = None if key.expires_ms is None else instant(key.expires_ms)
    return IssuedKey(key=text, key_id=key_id, principal=request.principal, expires_at=expires)


@serves(ListApiKeys)
async def list_api_keys(services: Services, request: ListApiKeys, _caller: Caller) -> ApiKeyList:
    keys = sorted(services.metadata.access.keys.values(), key=lambda key: (key.created_ms, key.key_id))
    return ApiKeyList(
        keys=[
            ApiKeyView(
                key_id=key.key_id,
                principal=key.principal,
                created_at=instant(key.created_ms),
                expires_at=None if key.expires_ms is None else instant(key.expires_ms),
                description=key.description,
                scopes=[_view(acl) for acl in key.scopes],
            )
            for key in keys
            if request.principal in (None, key.principal)
        ]
    )


@serves(RevokeApiKey)
async def revoke_api_key(services: Services, request: RevokeApiKey, _caller: Caller) -> None:
    await services.topics.command(commands.RevokeApiKey(key_id=request.key_id))


# -- master keys -------------------------------------------------------------------------------------------------------


@serves(DescribeMasterKeys)
async def describe_master_keys(services: Services, _request: DescribeMasterKeys, _caller: Caller) -> MasterKeysView:
    keys = services.master_keys
    if keys is None:
        return MasterKeysView(node_id=services.node_id, encrypting=False, version=None, versions=[])
    used = await asyncio.to_thread(keys.in_use)
    return MasterKeysView(
        node_id=services.node_id, encrypting=keys.is_encrypting, version=used.current, versions=used.versions
    )


@serves(RotateMasterKeys)
async def rotate_master_keys(services: Services, _request: RotateMasterKeys, _caller: Caller) -> KeyRotation:
    if services.master_keys is None:
        raise KeysNotRotated("This node has no master key. Set security.encryption.master_key_file and start it again.")
    try:
        done = await asyncio.to_thread(services.master_keys.rotate)
    except (EncryptionKeyError, StorageError) as error:
        raise KeysNotRotated(error.message) from error
    return KeyRotation(node_id=services.node_id, version=done.current, versions=done.versions, rewrapped=done.rewrapped)
