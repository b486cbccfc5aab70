"""Access control lists, SCRAM credentials (KIP-554), and SASL: the mechanism first, then its own opaque messages."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.schema import Api, Bytes, Int8, Int16, Int32, Int64, Since, String


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class DescribeAclsRequest(AclFilter, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_ACLS


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


class DescribeAclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_ACLS

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


class CreateAclsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.CREATE_ACLS

    creations: tuple[AclCreation, ...]


class AclCreationResult(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None


class CreateAclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.CREATE_ACLS

    throttle_time_ms: Int32 = 0
    results: tuple[AclCreationResult, ...]


class DeleteAclsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DELETE_ACLS

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


class DeleteAclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DELETE_ACLS

    throttle_time_ms: Int32 = 0
    filter_results: tuple[DeleteAclsFilterResult, ...]


class SaslHandshakeRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.SASL_HANDSHAKE

    mechanism: String


class SaslHandshakeResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.SASL_HANDSHAKE

    error_code: Int16
    mechanisms: tuple[String, ...]


class SaslAuthenticateRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.SASL_AUTHENTICATE

    auth_bytes: Bytes

    def __repr__(self) -> str:  # it may be a password
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


class SaslAuthenticateResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.SASL_AUTHENTICATE

    error_code: Int16
    error_message: String | None = None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, Since(1)] = 0


class UserName(msgspec.Struct, frozen=True, kw_only=True):
    name: String


class DescribeUserScramCredentialsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_USER_SCRAM_CREDENTIALS

    users: tuple[UserName, ...] | None


class ScramCredentialInfo(msgspec.Struct, frozen=True, kw_only=True):
    mechanism: Int8
    iterations: Int32


class DescribeUserScramCredentialsResult(msgspec.Struct, frozen=True, kw_only=True):
    user: String
    error_code: Int16
    error_message: String | None = None
    credential_infos: tuple[ScramCredentialInfo, ...] = ()


class DescribeUserScramCredentialsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_USER_SCRAM_CREDENTIALS

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


class AlterUserScramCredentialsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ALTER_USER_SCRAM_CREDENTIALS

    deletions: tuple[ScramCredentialDeletion, ...]
    upsertions: tuple[ScramCredentialUpsertion, ...]


class AlterUserScramCredentialsResult(msgspec.Struct, frozen=True, kw_only=True):
    user: String
    error_code: Int16
    error_message: String | None = None


class AlterUserScramCredentialsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ALTER_USER_SCRAM_CREDENTIALS

    throttle_time_ms: Int32 = 0
    results: tuple[AlterUserScramCredentialsResult, ...]
