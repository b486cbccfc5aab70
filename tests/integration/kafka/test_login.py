"""Logins at the Kafka door, by bytes: what opens the gate, and everything that must not."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import hmac
import logging
import secrets
import time
from pathlib import Path

import pytest
from tests.integration.kafka.test_door import produce
from tests.support.secure_door import (
    ADMIN,
    MECHANISMS,
    PASSWORD,
    TOPIC,
    Client,
    SecureDoor,
    bearer,
    plain,
    scram_client,
    tell,
)

from penstock.access.acls import AclAction, AclResource
from penstock.access.api_keys import ApiKey, make_text
from penstock.consensus.commands import IssueApiKey
from penstock.doors.kafka import login
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import encode_request
from penstock.doors.kafka.protocol.messages import records as plain_records
from penstock.doors.kafka.protocol.messages import security as wire
from penstock.doors.kafka.protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ALL_TOPICS = MetadataRequest(topics=None)


async def knows_topics(client: Client) -> bool:
    found = await client.ask(ALL_TOPICS, 12, MetadataResponse)
    return TOPIC in [topic.name for topic in found.topics]


async def issue_key(door: SecureDoor, user: str, *, expires_ms: int | None = None) -> str:
    key_id, text, secret_hash = make_text(secrets.token_bytes(8), secrets.token_bytes(32))
    key = ApiKey(key_id=key_id, principal=f"User:{user}", secret_hash=secret_hash, created_ms=0, expires_ms=expires_ms)
    await door.broker.controller.submit(IssueApiKey(key=key))
    return text


# -- every mechanism ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain_opens_the_gate_for_the_right_password_only(tmp_path: Path, version: int) -> None:
    async def story(door: SecureDoor) -> None:
        client = await door.connect()
        assert (await client.handshake("PLAIN")).mechanisms
        answer = await client.authenticate(plain(ADMIN), version)
        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
        assert await knows_topics(client)
        wrong = await door.connect()
        await wrong.handshake("PLAIN")
        answer = await wrong.authenticate(plain(ADMIN, "wrong"), version)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await wrong.is_closed()

    tell(tmp_path, story)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_proves_both_sides(tmp_path: Path, mechanism: str) -> None:
    async def story(door: SecureDoor) -> None:
        client = await door.connect()
        await client.handshake(mechanism)
        user = scram_client(mechanism, ADMIN)
        first = await client.authenticate(user.get_client_first().encode())
        user.set_server_first(first.auth_bytes.decode())
        final = await client.authenticate(user.get_client_final().encode())
        user.set_server_final(final.auth_bytes.decode())  # raises unless the server knows the password too
        assert final.error_code == 0
        assert await knows_topics(client)

    tell(tmp_path, story)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    ("shape", "is_good"),
    [("{own}{whole}", True), ("{own}{own}{whole}", False), ("{own}", False), ("x{whole}", False), ("", False)],
)
def test_scram_takes_the_nonce_as_old_versions_of_librdkafka_send_it(
    tmp_path: Path, mechanism: str, shape: str, is_good: bool
) -> None:
    """They put their own in front once more; anything else that is not the server's nonce is refused."""
    name = "sha256" if mechanism == SCRAM[0] else "sha512"

    async def story(door: SecureDoor) -> None:
        client = await door.connect()
        await client.handshake(mechanism)
        own = "fyko+d2lbbFgONRv9qkxdawL"
        first = (await client.authenticate(f"n,,n={ADMIN},r={own}".encode())).auth_bytes.decode()
        whole, salt, iterations = (part.split("=", 1)[1] for part in first.split(","))
        final = f"c=biws,r={shape.format(own=own, whole=whole)}"
        told = f"n={ADMIN},r={own},{first},{final}".encode()
        salted = hashlib.pbkdf2_hmac(name, PASSWORD.encode(), base64.b64decode(salt), int(iterations))
        client_key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, client_key).digest(), told, name)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        answer = await client.authenticate(f"{final},p={base64.b64encode(proof).decode()}".encode())
        assert answer.error_code == (0 if is_good else ErrorCode.SASL_AUTHENTICATION_FAILED)

    tell(tmp_path, story)


def test_tokens_come_without_headers_after_an_old_handshake(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        for mechanism in SCRAM:
            client = await door.connect()
            await client.handshake(mechanism, version=0)
            user = scram_client(mechanism, ADMIN)
            client.send_raw(user.get_client_first().encode())
            user.set_server_first(bytes(await client.receive()).decode())
            client.send_raw(user.get_client_final().encode())
            user.set_server_final(bytes(await client.receive()).decode())
            assert await knows_topics(client)
        client = await door.connect()
        await client.handshake("PLAIN", version=0)
        client.send_raw(plain(ADMIN))
        assert bytes(await client.receive()) == b""
        assert await knows_topics(client)
        wrong = await door.connect()
        await wrong.handshake("PLAIN", version=0)
        wrong.send_raw(plain(ADMIN, "wrong"))
        assert await wrong.is_closed()  # without headers there is no place for an error

    tell(tmp_path, story)


def test_bearer_failures_are_told_in_a_challenge(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        good = await issue_key(door, ADMIN)
        client = await door.connect()
        await client.handshake("OAUTHBEARER")
        answer = await client.authenticate(bearer(good))
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        assert await knows_topics(client)
        unsecured = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."  # {"alg":"none"} {"sub":"admin"}
        for token in (unsecured, good[:-1] + ("a" if good[-1] != "a" else "b")):
            client = await door.connect()
            await client.handshake("OAUTHBEARER")
            challenge = await client.authenticate(bearer(token))
            assert (challenge.error_code, challenge.auth_bytes) == (0, b'{"status":"invalid_token"}')
            refused = await client.authenticate(b"\x01")
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await client.is_closed()
        for message in (bearer(good, "other"), b"n,,\x01auth=Basic x\x01\x01", b"y,,\x01\x01", b"", b"\x01"):
            client = await door.connect()
            await client.handshake("OAUTHBEARER")
            refused = await client.authenticate(message)
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await client.is_closed()

    tell(tmp_path, story)


# -- what does not open it ---------------------------------------------------------------------------------------------


def test_a_failure_does_not_tell_which_part_was_wrong(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        answers = set()
        for user, password in ((ADMIN, "wrong"), ("missing", PASSWORD), ("", ""), (ADMIN, "")):
            client = await door.connect()
            await client.handshake("PLAIN")
            answer = await client.authenticate(plain(user, password))
            answers.add((answer.error_code, answer.error_message, answer.auth_bytes))
        assert len(answers) == 1
        for mechanism in SCRAM:
            for user in (ADMIN, "missing"):
                client = await door.connect()
                await client.handshake(mechanism)
                scram = scram_client(mechanism, user, "wrong")
                first = await client.authenticate(scram.get_client_first().encode())
                assert first.error_code == 0
                scram.set_server_first(first.auth_bytes.decode())
                final = await client.authenticate(scram.get_client_final().encode())
                answers.add((final.error_code, final.error_message, final.auth_bytes))
        assert len(answers) == 1

    tell(tmp_path, story)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_messages_that_are_changed_or_repeated_are_refused(tmp_path: Path, mechanism: str) -> None:
    async def begin(door: SecureDoor) -> tuple[Client, str, str]:
        """A connection after the first message: it, and the first and the last message of a client."""
        client = await door.connect()
        await client.handshake(mechanism)
        user = scram_client(mechanism, ADMIN)
        sent = user.get_client_first()
        first = await client.authenticate(sent.encode())
        user.set_server_first(first.auth_bytes.decode())
        return client, sent, user.get_client_final()

    async def is_refused(client: Client, message: str) -> bool:
        answer = await client.authenticate(message.encode())
        return answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and await client.is_closed()

    async def story(door: SecureDoor) -> None:
        recorded, first, final = await begin(door)
        assert (await recorded.authenticate(final.encode())).error_code == 0
        # What was recorded proves nothing on another connection: the server's part of the nonce is another one.
        replayed = await door.connect()
        await replayed.handshake(mechanism)
        await replayed.authenticate(first.encode())
        assert await is_refused(replayed, final)
        client, _, final = await begin(door)
        nonce = final.split(",")[1]
        assert await is_refused(client, final.replace(nonce, nonce[:-4] + "0000"))
        client, _, final = await begin(door)
        proof = final.rsplit(",p=", 1)[1]
        assert await is_refused(client, final.replace(proof, ("A" if proof[0] != "A" else "B") + proof[1:]))
        client, _, final = await begin(door)
        assert await is_refused(client, final.replace("c=biws", "c=eSws"))  # "y,," instead of "n,,"
        client, first, _ = await begin(door)
        assert await is_refused(client, first)
        for bad in (
            first.replace("n,,", "y,,", 1),
            first.replace("n,,", "p=tls-unique,,", 1),
            first.replace("n,,", "n,a=other,", 1),
            "n,,m=x," + first.removeprefix("n,,"),
            "n,,n=admin",
            "garbage",
            "",
        ):
            client = await door.connect()
            await client.handshake(mechanism)
            assert await is_refused(client, bad), bad

    tell(tmp_path, story)


def test_nothing_but_a_login_is_served_before_it(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        for key, api in apis.APIS.items():
            if key in (apis.SASL_HANDSHAKE.key, apis.API_VERSIONS.key, apis.SASL_AUTHENTICATE.key):
                continue
            for version in (api.first, api.last):
                client = await door.connect()
                head = (
                    key.to_bytes(2, "big")
                    + version.to_bytes(2, "big")
                    + (7).to_bytes(4, "big")
                    + b"\xff\xff\0"
                    + bytes(64)
                )
                client.send_raw(head)
                assert await client.is_closed(), f"{api.name} {version}"

    tell(tmp_path, story)


def test_a_produce_that_repeats_another_is_not_served_before_the_login(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        client = await door.client(ADMIN)
        for _ in range(3):
            answer = await client.ask(produce(b"x"), 9, plain_records.ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
        stranger = await door.connect()
        stranger.send(produce(b"x"), 9)
        assert await stranger.is_closed()
        assert door.broker.partition(TOPIC, 0).log.end_offset == 3

    tell(tmp_path, story)


def test_api_versions_and_the_mechanisms_are_told_to_everyone(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        client = await door.connect()
        for version in (0, 3, 4):
            told = await client.ask(ApiVersionsRequest(), version, ApiVersionsResponse)
            assert {17, 36} <= {each.api_key for each in told.api_keys}
        for mechanism in ("GSSAPI", "", "plain", "\u0000" * 100):
            client = await door.connect()
            refused = await client.handshake(mechanism)
            assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert set(refused.mechanisms) == set(MECHANISMS)
            assert await client.is_closed()

    tell(tmp_path, story)


def test_steps_out_of_order_are_refused(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        early = await door.connect()
        answer = await early.authenticate(plain(ADMIN))
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await early.is_closed()
        twice = await door.connect()
        await twice.handshake("PLAIN")
        twice.send(wire.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert await twice.is_closed()
        between = await door.connect()
        await between.handshake("PLAIN")
        between.send(ALL_TOPICS, 12)
        assert await between.is_closed()
        late = await door.client(ADMIN)
        assert (await late.handshake("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await late.authenticate(plain(ADMIN))).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await knows_topics(late)

    tell(tmp_path, story)


def test_requests_behind_a_login_wait_for_it(tmp_path: Path) -> None:
    """A client that does not wait for its login is served after it, and not at all if it fails."""

    async def story(door: SecureDoor) -> None:
        for password in (PASSWORD, "wrong"):
            client = await door.connect()
            await client.handshake("PLAIN")
            client.send(wire.SaslAuthenticateRequest(auth_bytes=plain(ADMIN, password)), 2)
            client.send(ALL_TOPICS, 12)
            await client.receive()
            if password == PASSWORD:
                assert TOPIC.encode() in bytes(await client.receive())
            else:
                assert await client.is_closed()

    tell(tmp_path, story)


def test_frames_are_small_before_the_login_and_large_after_it(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        large = await door.connect()
        large.writer.write((login.FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
        assert await large.is_closed()
        raw = await door.connect()
        await raw.handshake("PLAIN", version=0)
        raw.writer.write((1 << 30).to_bytes(4, "big"))
        assert await raw.is_closed()
        client = await door.client(ADMIN)
        answer = await client.ask(produce(bytes(login.FRAME_BYTES_MAX * 4)), 9, plain_records.ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0

    tell(tmp_path, story)


def test_a_client_that_does_not_log_in_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "LOGIN_SECONDS_MAX", 0.3)

    async def story(door: SecureDoor) -> None:
        idle, halfway, admitted = await door.connect(), await door.connect(), await door.client(ADMIN)
        await halfway.handshake("PLAIN")
        began = time.monotonic()
        assert await idle.is_closed()
        assert await halfway.is_closed()
        assert time.monotonic() - began < 10
        assert await knows_topics(admitted)

    tell(tmp_path, story)


def test_a_certificate_is_enough_without_sasl_and_gives_way_to_it(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        subject = "CN=alice,O=Example"
        await door.allow("alice", AclAction.DESCRIBE, AclResource.TOPIC, TOPIC)

        async def connect() -> Client:
            client = await door.connect()
            await client.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
            for connection in door.server._connections:
                connection.peer_certificate_subject = subject  # type: ignore[attr-defined]
            return client

        bare = await connect()
        assert await knows_topics(bare)
        assert (await bare.handshake("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await door.add_user("bob")  # who may describe nothing
        both = await connect()
        assert (await both.log_in("bob")).error_code == 0
        assert not await knows_topics(both)

    tell(tmp_path, story)


# -- logins that end ---------------------------------------------------------------------------------------------------


def test_a_login_that_ends_is_renewed_by_the_same_principal_or_closed(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.add_user("other")
        now_ms = door.broker.clock.now_ms
        ends_soon = await issue_key(door, ADMIN, expires_ms=now_ms() + 2_500)
        idle, renewing, changing, mixing = [await door.connect() for _ in range(4)]
        for client in (idle, renewing, changing, mixing):
            await client.handshake("OAUTHBEARER")
            answer = await client.authenticate(bearer(ends_soon))
            assert 0 < answer.session_lifetime_ms <= 2_500
            assert await knows_topics(client)
        assert (await renewing.handshake("OAUTHBEARER")).error_code == ErrorCode.ILLEGAL_SASL_STATE  # too early
        await asyncio.sleep(1.1)
        assert (await renewing.handshake("OAUTHBEARER")).error_code == 0
        assert (await renewing.authenticate(bearer(ends_soon))).session_lifetime_ms > 0
        assert await knows_topics(renewing)
        refused = await mixing.handshake("PLAIN")
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await mixing.is_closed()
        assert (await changing.handshake("OAUTHBEARER")).error_code == 0
        answer = await changing.authenticate(bearer(await issue_key(door, "other")))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await changing.is_closed()
        await asyncio.sleep(1.6)
        for client in (idle, renewing):
            client.send(ALL_TOPICS, 12)
            assert await client.is_closed()

    tell(tmp_path, story)


def test_a_client_that_leaves_in_the_middle_of_its_login_is_no_bug(tmp_path: Path) -> None:
    """Its last message and its leaving can come in the same turn of the loop."""

    async def story(door: SecureDoor) -> None:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        for mechanism in (*SCRAM, "PLAIN"):
            client = await door.connect()
            await client.handshake(mechanism)
            token = plain(ADMIN) if mechanism == "PLAIN" else scram_client(mechanism, ADMIN).get_client_first().encode()
            last = encode_request(wire.SaslAuthenticateRequest(auth_bytes=token), 2, 9, "test")
            (connection,) = door.server._connections
            door.server._dispatcher.dispatch(connection, memoryview(last)[4:])
            connection.close()
        await asyncio.sleep(0.5)
        gc.collect()  # unhandled errors are told of when their tasks go
        assert not unhandled
        assert await knows_topics(await door.client(ADMIN))

    tell(tmp_path, story)


# -- many of them ------------------------------------------------------------------------------------------------------


def test_a_thousand_failed_logins_are_bounded_in_time_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")

    async def fail(door: SecureDoor) -> None:
        client = await door.connect()
        try:
            await client.handshake("PLAIN")
            answer = await client.authenticate(plain("nobody", "wrong"))
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        finally:
            client.writer.close()

    async def story(door: SecureDoor) -> None:
        admitted = await door.client(ADMIN)
        began = time.monotonic()
        for _ in range(4):
            await asyncio.gather(*(fail(door) for _ in range(250)))
            assert await knows_topics(admitted)
        assert time.monotonic() - began < 60
        assert 0 < len(caplog.records) < 60 * 20
        assert len(caplog.records) < 20 * (time.monotonic() - began + 2)  # twenty a second
        assert not any("wrong" in str(vars(record)) for record in caplog.records)

    tell(tmp_path, story)


def test_without_security_a_login_is_out_of_place_and_nothing_is_closed(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        client = await door.connect()
        assert (await client.handshake("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.authenticate(plain(ADMIN))).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await knows_topics(client)

    tell(tmp_path, story, enabled=False)
