"""Quotas of clients: entities are named by parts, such as a user and a client id."""

from __future__ import annotations

import msgspec

from penstock.doors.kafka.protocol.messages.shared import WireMessage
from penstock.doors.kafka.protocol.schema import Bool, Float64, Int8, Int16, Int32, String


class QuotaMatch(msgspec.Struct, frozen=True, kw_only=True):
    entity_type: String
    match_type: Int8
    match: String | None


class DescribeClientQuotasRequest(WireMessage, frozen=True, kw_only=True):
    components: tuple[QuotaMatch, ...]
    strict: Bool


class QuotaPart(msgspec.Struct, frozen=True, kw_only=True):
    entity_type: String
    entity_name: String | None


class QuotaValue(msgspec.Struct, frozen=True, kw_only=True):
    key: String
    value: Float64


class DescribedQuota(msgspec.Struct, frozen=True, kw_only=True):
    entity: tuple[QuotaPart, ...]
    values: tuple[QuotaValue, ...]


class DescribeClientQuotasResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    entries: tuple[DescribedQuota, ...] | None


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    key: String
    value: Float64
    remove: Bool


class AlteredQuota(msgspec.Struct, frozen=True, kw_only=True):
    entity: tuple[QuotaPart, ...]
    ops: tuple[QuotaChange, ...]


class AlterClientQuotasRequest(WireMessage, frozen=True, kw_only=True):
    entries: tuple[AlteredQuota, ...]
    validate_only: Bool


class AlterQuotaResult(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None
    entity: tuple[QuotaPart, ...]


class AlterClientQuotasResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    entries: tuple[AlterQuotaResult, ...]
