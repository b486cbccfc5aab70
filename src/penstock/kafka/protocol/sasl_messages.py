"""Logging in: the mechanism first, then its own messages, which are opaque here."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import Api, Bytes, Int16, Int64, Since, String


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


class SaslAuthenticateResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.SASL_AUTHENTICATE

    error_code: Int16
    error_message: String | None = None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, Since(1)] = 0
