"""Access control lists, SCRAM credentials (KIP-554), and SASL: the mechanism first, then its own opaque messages."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.doors.kafka.protocol.messages.shared import WireMessage
from penstock.doors.kafka.protocol.schema import Bytes, Int8, Int16, Int32, Int64, Since, String


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class DescribeAclsRequest(AclFilter, WireMessage, frozen=True, kw_only=True):
    """The filter of the rules to show."""


class AclDescription(msgspec.Struct, frozen=True, kw_only=True):
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    acls: tuple[AclDescription, ...]


class DescribeAclsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    resources: tuple[DescribeAclsResource, ...] = ()


class AclCreation(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(WireMessage, frozen=True, kw_only=True):
    creations: tuple[AclCreation, ...]


class AclCreationResult(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None


class CreateAclsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: tuple[AclCreationResult, ...]


class DeleteAclsRequest(WireMessage, frozen=True, kw_only=True):
    filters: tuple[AclFilter, ...]


class DeleteAclsMatchingAcl(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DeleteAclsFilterResult(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = ()


class DeleteAclsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    filter_results: tuple[DeleteAclsFilterResult, ...]


class SaslHandshakeRequest(WireMessage, frozen=True, kw_only=True):
    mechanism: String


class SaslHandshakeResponse(WireMessage, frozen=True, kw_only=True):
    error_code: Int16
    mechanisms: tuple[String, ...]


class SaslAuthenticateRequest(WireMessage, frozen=True, kw_only=True):
    auth_bytes: Bytes

    def __repr__(self) -> str:  # it may be a password
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


class SaslAuthenticateResponse(WireMessage, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, Since(1)] = 0


class UserName(msgspec.Struct, frozen=True, kw_only=True):
    name: String


class DescribeUserScramCredentialsRequest(WireMessage, frozen=True, kw_only=True):
    users: tuple[UserName, ...] | None


class ScramCredentialInfo(msgspec.Struct, frozen=True, kw_only=True):
    mechanism: Int8
    iterations: Int32


class DescribeUserScramCredentialsResult(msgspec.Struct, frozen=True, kw_only=True):
    user: String
    error_code: Int16
    error_message: String | None = None
    credential_infos: tuple[ScramCredentialInfo, ...] = ()


class DescribeUserScramCredentialsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    results: tuple[DescribeUserScramCredentialsResult, ...] = ()


class ScramCredentialDeletion(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    mechanism: Int8


class ScramCredentialUpsertion(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion(name={self.name!r}, mechanism={self.mechanism})"


class AlterUserScramCredentialsRequest(WireMessage, frozen=True, kw_only=True):
    deletions: tuple[ScramCredentialDeletion, ...]
    upsertions: tuple[ScramCredentialUpsertion, ...]


class AlterUserScramCredentialsResult(msgspec.Struct, frozen=True, kw_only=True):
    user: String
    error_code: Int16
    error_message: String | None = None


class AlterUserScramCredentialsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: tuple[AlterUserScramCredentialsResult, ...]
