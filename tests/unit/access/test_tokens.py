"""Tokens of an identity provider: which are taken, and which tricks are not."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from penstock.access.principal import Principal
from penstock.clock import SystemClock
from penstock.config.settings import OidcSettings
from penstock.errors import AuthenticationFailed
from penstock.features.access.tokens import OidcTokens

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, key_id: str) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}


def public_pem(key: rsa.RSAPrivateKey) -> bytes:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, kind)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    shared = {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"s" * 32).decode()}
    path.write_text(json.dumps({"keys": [jwk(RSA, "r"), jwk(EC, "e"), shared]}))
    return path


def settings(keys: Path, **more: Any) -> OidcSettings:
    return OidcSettings(issuer="https://id.example", audience="penstock", jwks_file=keys, **more)


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    base = {"iss": "https://id.example", "aud": "penstock", "sub": "alice", "exp": now + 600, "email": "a@example"}
    return {name: value for name, value in {**base, **changes}.items() if value is not None}


def sign(key: Any = RSA, key_id: str | None = "r", algorithm: str = "RS256", **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm=algorithm, headers={"kid": key_id} if key_id else None)


def check(tokens: OidcTokens, token: str) -> Principal:
    return asyncio.run(tokens.principal(token))


def test_a_good_token_names_its_principal_until_it_ends(keys: Path) -> None:
    tokens = OidcTokens(settings(keys), SystemClock())
    found = check(tokens, sign(exp=int(time.time()) + 100))
    assert str(found) == "User:alice"
    assert found.expires_ms is not None
    assert abs(found.expires_ms - (time.time() + 130) * 1000) < 5_000
    assert check(tokens, sign(EC, "e", "ES256")) == Principal("alice")


def test_the_claim_that_names_the_principal_can_be_another_one(keys: Path) -> None:
    assert check(OidcTokens(settings(keys, principal_claim="email"), SystemClock()), sign()) == Principal("a@example")


def unsigned() -> str:
    return jwt.encode(claims(), None, algorithm="none", headers={"kid": "r"})


def signed_with_the_public_key() -> str:
    """HS256 with the provider's public key as the secret; PyJWT refuses to make it, so it is made by hand."""
    import hashlib
    import hmac

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    text = part({"alg": "HS256", "typ": "JWT", "kid": "r"}) + b"." + part(claims())
    signature = hmac.digest(public_pem(RSA), text, hashlib.sha256)
    return (text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def bad_tokens() -> dict[str, str]:
    now = int(time.time())
    return {
        "unsigned": unsigned(),
        "public key as secret": signed_with_the_public_key(),
        "symmetric key of the set": sign("s" * 32, "shared", "HS256"),
        "another key": sign(OTHER),
        "unknown key": sign(OTHER, "o"),
        "no key id": sign(key_id=None),
        "expired": sign(exp=now - 31),
        "no expiry": sign(exp=None),
        "not yet": sign(nbf=now + 120),
        "wrong audience": sign(aud="other"),
        "no audience": sign(aud=None),
        "wrong issuer": sign(iss="https://evil.example"),
        "no subject": sign(sub=None),
        "everyone": sign(sub="*"),
        "control characters": sign(sub="a\nb"),
        "changed": sign()[:-6] + "AAAAAA",
        "no token": "psk",
        "too long": "a" * 20_000,
    }


@pytest.mark.parametrize("what", list(bad_tokens()))
def test_every_other_token_is_refused(keys: Path, what: str) -> None:
    with pytest.raises(AuthenticationFailed):
        check(OidcTokens(settings(keys), SystemClock()), bad_tokens()[what])


def test_keys_that_rotate_are_read_again_but_not_for_every_invented_id(keys: Path) -> None:
    now = [0.0]

    class Clock(SystemClock):
        def monotonic(self) -> float:
            return now[0]

    tokens = OidcTokens(settings(keys), Clock())
    check(tokens, sign())
    keys.write_text(json.dumps({"keys": [jwk(OTHER, "o")]}))
    with pytest.raises(AuthenticationFailed):
        check(tokens, sign(OTHER, "o"))  # too early to ask again
    now[0] += 11
    assert check(tokens, sign(OTHER, "o")) == Principal("alice")
    with pytest.raises(AuthenticationFailed):
        check(tokens, sign())


def test_keys_stay_in_use_while_they_cannot_be_read_again(keys: Path) -> None:
    tokens = OidcTokens(settings(keys, jwks_refresh_ms=0, jwks_pause_ms=0), SystemClock())
    check(tokens, sign())
    keys.unlink()
    assert check(tokens, sign()) == Principal("alice")
