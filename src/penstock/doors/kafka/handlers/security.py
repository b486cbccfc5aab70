"""Access control lists, SCRAM credentials (KIP-554), and SASL requests of clients that are logged in already.

As Kafka does without an authorizer, calls about access control lists are answered with SECURITY_DISABLED where
security is off. Credentials can be set then too: users have to exist before they can be asked to log in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock.access.acls import Acl, AclAction, AclFilter, AclPattern, AclPermission, AclResource
from penstock.access.scram import ScramCredential, ScramMechanism, from_salted_password
from penstock.consensus.commands import AclsRemoved, AddAcls, RemoveAcls, RemoveCredentials, SetCredentials
from penstock.consensus.controller.access import check_acl
from penstock.doors.kafka.errors import error_code
from penstock.doors.kafka.handler import Handler, RequestContext
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import security as wire
from penstock.errors import InvalidRequest, PenstockError

_UNKNOWN, _ANY, _MATCH = 0, 1, 2  # in filters; other numbers are those of the rules
_DISABLED: Final = "There is no access control on this cluster, so it keeps no lists."
_TIMEOUT_S: Final = 30.0
_MECHANISMS: Final = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
_MECHANISM_CODES: Final = {mechanism: code for code, mechanism in _MECHANISMS.items()}
_LOGGED_IN: Final = "SaslAuthenticate came after the login, or where no login is needed."


# -- access control lists ----------------------------------------------------------------------------------------------


def describe_acls(context: RequestContext, request: wire.DescribeAclsRequest) -> wire.DescribeAclsResponse:
    """Versions 1 to 3."""
    if not context.caller.is_limited:
        return wire.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_DISABLED)
    try:
        chosen = _filter(request)
    except PenstockError as error:
        return wire.DescribeAclsResponse(error_code=error_code(error), error_message=error.message)
    found = [] if chosen is None else context.broker.metadata.access.acls.matching(chosen)
    by_resource: dict[tuple[AclResource, str, AclPattern], list[wire.AclDescription]] = {}
    for acl in found:
        by_resource.setdefault((acl.resource, acl.name, acl.pattern), []).append(
            wire.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.action, permission_type=acl.permission
            )
        )
    return wire.DescribeAclsResponse(
        error_code=ErrorCode.NONE,
        resources=tuple(
            wire.DescribeAclsResource(
                resource_type=resource, resource_name=name, pattern_type=pattern, acls=tuple(rows)
            )
            for (resource, name, pattern), rows in by_resource.items()
        ),
    )


async def create_acls(context: RequestContext, request: wire.CreateAclsRequest) -> wire.CreateAclsResponse:
    """Versions 1 to 3. A rule that cannot be is refused by itself; the others are added together."""
    if not context.caller.is_limited:
        refused = wire.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_DISABLED)
        return wire.CreateAclsResponse(results=(refused,) * len(request.creations))
    read = [_read(creation) for creation in request.creations]
    acls = tuple(acl for acl in read if isinstance(acl, Acl))
    failed: PenstockError | None = None
    try:
        if acls:
            await context.broker.controller.submit(AddAcls(acls=acls), timeout_s=_TIMEOUT_S)
            context.caller.changed(request.api, ", ".join(map(_shown, acls)))
    except PenstockError as error:
        failed = error
    outcomes = [_coded(failed if isinstance(each, Acl) else each) for each in read]
    return wire.CreateAclsResponse(
        results=tuple(wire.AclCreationResult(error_code=code, error_message=message) for code, message in outcomes)
    )


async def delete_acls(context: RequestContext, request: wire.DeleteAclsRequest) -> wire.DeleteAclsResponse:
    """Versions 1 to 3."""
    if not context.caller.is_limited:
        refused = wire.DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_DISABLED)
        return wire.DeleteAclsResponse(filter_results=(refused,) * len(request.filters))
    results: dict[int, wire.DeleteAclsFilterResult] = {}
    chosen: dict[int, AclFilter] = {}
    for at, asked in enumerate(request.filters):
        try:
            read = _filter(asked)
        except PenstockError as error:
            results[at] = wire.DeleteAclsFilterResult(error_code=error_code(error), error_message=error.message)
            continue
        if read is None:
            results[at] = wire.DeleteAclsFilterResult(error_code=ErrorCode.NONE)
        else:
            chosen[at] = read
    try:
        if chosen:
            command = RemoveAcls(filters=tuple(chosen.values()))
            answer = await context.broker.controller.submit(command, timeout_s=_TIMEOUT_S)
            assert isinstance(answer, AclsRemoved)
            for at, removed in zip(chosen, answer.matches, strict=True):
                rows = tuple(map(_removed, removed))
                results[at] = wire.DeleteAclsFilterResult(error_code=ErrorCode.NONE, matching_acls=rows)
            context.caller.changed(request.api, ", ".join(_shown(acl) for removed in answer.matches for acl in removed))
    except PenstockError as error:
        for at in chosen:
            results[at] = wire.DeleteAclsFilterResult(error_code=error_code(error), error_message=error.message)
    return wire.DeleteAclsResponse(filter_results=tuple(results[at] for at in range(len(request.filters))))


def _read(creation: wire.AclCreation) -> Acl | PenstockError:
    """The rule that a request describes, or why it describes none."""
    try:
        acl = Acl(
            principal=creation.principal,
            host=creation.host,
            action=AclAction(creation.operation),
            permission=AclPermission(creation.permission_type),
            resource=AclResource(creation.resource_type),
            name=creation.resource_name,
            pattern=AclPattern(creation.resource_pattern_type),
        )
        check_acl(acl)
    except ValueError:
        return InvalidRequest(
            "A rule has one resource type (topic 2, group 3, cluster 4, transactional id 5), pattern (literal 3, "
            "prefixed 4), operation (2 to 12) and permission (deny 2, allow 3)."
        )
    except PenstockError as error:
        return error
    return acl


def _filter(asked: wire.AclFilter) -> AclFilter | None:
    """The filter as the rules know it; None if it can match no rule here."""
    numbers = (asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)
    if _UNKNOWN in numbers:
        raise InvalidRequest("A filter must not ask for unknown types; 1 means any.")
    is_match = asked.pattern_type_filter == _MATCH
    try:
        return AclFilter(
            principal=asked.principal_filter,
            host=asked.host_filter,
            name=asked.resource_name_filter,
            action=None if asked.operation == _ANY else AclAction(asked.operation),
            permission=None if asked.permission_type == _ANY else AclPermission(asked.permission_type),
            resource=None if asked.resource_type_filter == _ANY else AclResource(asked.resource_type_filter),
            pattern=None if is_match or asked.pattern_type_filter == _ANY else AclPattern(asked.pattern_type_filter),
            is_match=is_match,
        )
    except ValueError:  # such as the rules of delegation tokens, of which there are none
        return None


def _removed(acl: Acl) -> wire.DeleteAclsMatchingAcl:
    return wire.DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.action,
        permission_type=acl.permission,
    )


def _shown(acl: Acl) -> str:
    """A rule in a few words, for the audit log."""
    what = f"{acl.action.name.lower()} {acl.resource.name.lower()}:{acl.name}"
    return f"{acl.permission.name.lower()} {acl.principal} {what}{'*' if acl.pattern is AclPattern.PREFIXED else ''}"


def _coded(error: PenstockError | None) -> tuple[ErrorCode, str | None]:
    return (ErrorCode.NONE, None) if error is None else (error_code(error), error.message)


# -- SCRAM credentials -------------------------------------------------------------------------------------------------


def describe_users(
    context: RequestContext, request: wire.DescribeUserScramCredentialsRequest
) -> wire.DescribeUserScramCredentialsResponse:
    """Version 0. All users where none is named; of credentials only the mechanism and the iterations are told."""
    held = context.broker.metadata.access.credentials
    names = [user.name for user in request.users or ()] or list(held)
    counts = Counter(names)
    results = []
    for name in dict.fromkeys(names):
        code, message = ErrorCode.NONE, None
        if counts[name] > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        elif name not in held:
            code = ErrorCode.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {name}"
        infos = () if code else _infos(list(held[name].values()))
        results.append(
            wire.DescribeUserScramCredentialsResult(
                user=name, error_code=code, error_message=message, credential_infos=infos
            )
        )
    return wire.DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, results=tuple(results))


def _infos(credentials: Sequence[ScramCredential]) -> tuple[wire.ScramCredentialInfo, ...]:
    return tuple(
        wire.ScramCredentialInfo(mechanism=_MECHANISM_CODES[each.mechanism], iterations=each.iterations)
        for each in credentials
    )


async def alter_users(
    context: RequestContext, request: wire.AlterUserScramCredentialsRequest
) -> wire.AlterUserScramCredentialsResponse:
    """Version 0. All changes of a user are made, or none of them; the client has salted the passwords."""
    users = dict.fromkeys([each.name for each in request.deletions] + [each.name for each in request.upsertions])
    results = []
    for user in users:
        deletions = [change.mechanism for change in request.deletions if change.name == user]
        upsertions = [change for change in request.upsertions if change.name == user]
        code, message = _fault(context, user, deletions, upsertions)
        if not code:
            try:
                await _alter(context, user, deletions, upsertions)
                context.caller.changed(request.api, f"user:{user}")
            except PenstockError as error:
                code, message = error_code(error), error.message
        results.append(wire.AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message))
    return wire.AlterUserScramCredentialsResponse(results=tuple(results))


def _fault(
    context: RequestContext, user: str, deletions: Sequence[int], upsertions: Sequence[wire.ScramCredentialUpsertion]
) -> tuple[ErrorCode, str | None]:
    """What is wrong with the changes of a user, in Kafka's words."""
    mechanisms = [*deletions, *(change.mechanism for change in upsertions)]
    held = context.broker.metadata.access.credentials.get(user, {})
    if not user:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if not set(mechanisms) <= _MECHANISMS.keys():
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if len(set(mechanisms)) < len(mechanisms):
        return ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
    if not {_MECHANISMS[each] for each in deletions} <= held.keys():
        return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    return ErrorCode.NONE, None


async def _alter(
    context: RequestContext, user: str, deletions: Sequence[int], upsertions: Sequence[wire.ScramCredentialUpsertion]
) -> None:
    controller = context.broker.controller
    if upsertions:
        credentials = [
            from_salted_password(_MECHANISMS[change.mechanism], change.salted_password, change.salt, change.iterations)
            for change in upsertions
        ]
        await controller.submit(SetCredentials(user=user, credentials=tuple(credentials)), timeout_s=_TIMEOUT_S)
    if deletions:
        going = tuple(_MECHANISMS[each] for each in deletions)
        await controller.submit(RemoveCredentials(user=user, mechanisms=going), timeout_s=_TIMEOUT_S)


# -- SASL after the login ----------------------------------------------------------------------------------------------


def sasl_handshake(_: RequestContext, __: wire.SaslHandshakeRequest) -> wire.SaslHandshakeResponse:
    """Versions 0 and 1. A login goes through the gate (`penstock.doors.kafka.login`); here it is too late for one."""
    return wire.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())


def sasl_authenticate(_: RequestContext, __: wire.SaslAuthenticateRequest) -> wire.SaslAuthenticateResponse:
    """Versions 0 to 2."""
    return wire.SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_LOGGED_IN, auth_bytes=b""
    )


HANDLERS = (
    Handler(wire.SaslHandshakeRequest, sasl_handshake),
    Handler(wire.DescribeAclsRequest, describe_acls),
    Handler(wire.CreateAclsRequest, create_acls),
    Handler(wire.DeleteAclsRequest, delete_acls),
    Handler(wire.SaslAuthenticateRequest, sasl_authenticate),
    Handler(wire.DescribeUserScramCredentialsRequest, describe_users),
    Handler(wire.AlterUserScramCredentialsRequest, alter_users),
)
