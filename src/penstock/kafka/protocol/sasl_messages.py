"""Logging in: the mechanism first, then its own messages, which are opaque here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import Api, Bytes, Int16, Int64, Since, String


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest:
    api: ClassVar[Api] = apis.SASL_HANDSHAKE

    mechanism: String


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse:
    api: ClassVar[Api] = apis.SASL_HANDSHAKE

    error_code: Int16
    mechanisms: tuple[String, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest:
    api: ClassVar[Api] = apis.SASL_AUTHENTICATE

    auth_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse:
    api: ClassVar[Api] = apis.SASL_AUTHENTICATE

    error_code: Int16
    error_message: String | None = None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, Since(1)] = 0
