"""Kafka clients that log in, and what they may do then, against a real node with security on.

The node is set up as an operator does it: users are created while security is off, and it is switched on with the next
start. ``PROTOCOLS`` are those of the listener that clients are told to use.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.support.clients.contract import PATIENCE_S
from tests.support.node import Node

PROTOCOLS = ("SASL_PLAINTEXT",)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ISSUER, AUDIENCE = "https://issuer.example", "penstock"
ADMIN, PASSWORD = "admin", "correct horse battery"
TOPIC_DENIED, GROUP_DENIED, ID_DENIED = 29, 30, 53
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


def token_of(user: str, *, lifetime_s: float = 3_600, **claims: Any) -> str:
    now = time.time()
    body = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + lifetime_s, **claims}
    return jwt.encode(body, KEY, algorithm="RS256", headers={"kid": "one"})


class Login(NamedTuple):
    """How a client logs in, and its settings in the words of each library."""

    bootstrap: str
    protocol: str
    mechanism: str
    user: str
    password: str = PASSWORD

    @property
    def secret(self) -> str:
        return token_of(self.user) if self.password == PASSWORD else "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."

    def confluent(self, **more: Any) -> dict[str, Any]:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            **more,
        }
        if self.mechanism == "OAUTHBEARER":
            return {**settings, "oauth_cb": lambda _: (self.secret, time.time() + 3_600)}
        return {**settings, "sasl.username": self.user, "sasl.password": self.password}

    def kafka_python(self, **more: Any) -> dict[str, Any]:
        settings = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            **more,
        }
        if self.mechanism == "OAUTHBEARER":
            return {**settings, "sasl_oauth_token_provider": _PythonTokens(self.secret)}
        return {**settings, "sasl_plain_username": self.user, "sasl_plain_password": self.password}

    def aiokafka(self, **more: Any) -> dict[str, Any]:
        settings = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            **more,
        }
        if self.mechanism == "OAUTHBEARER":
            return {**settings, "sasl_oauth_token_provider": _AioTokens(self.secret)}
        return {**settings, "sasl_plain_username": self.user, "sasl_plain_password": self.password}


class _PythonTokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class _AioTokens(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


# -- the node ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def secure_node(tmp_path_factory: pytest.TempPathFactory, protocol: str) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("secure-node")
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    jwks = directory / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**public, "kid": "one", "use": "sig"}]}))
    node = Node(directory)
    with node:
        set_users(AdminClient({"bootstrap.servers": node.bootstrap}), ADMIN)
        assert node.stop() == 0
        node.settings = {
            "security__enabled": "true",
            "security__super_users": f"User:{ADMIN}",
            "security__sasl_mechanisms": ",".join(MECHANISMS),
            "security__oidc__issuer": ISSUER,
            "security__oidc__audience": AUDIENCE,
            "security__oidc__jwks_file": jwks,
        }
        node.restart()
        yield node
        assert node.is_running, node.log_tail()
        assert PASSWORD not in node.log_text


def set_users(admin: AdminClient, *users: str) -> None:
    changes = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for user in users
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for change in changes:
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(PATIENCE_S)


@pytest.fixture
def admin(secure_node: Node, protocol: str) -> AdminClient:
    return AdminClient(Login(secure_node.bootstrap, protocol, "SCRAM-SHA-512", ADMIN).confluent())


@pytest.fixture
def user(admin: AdminClient) -> str:
    """A user that may do nothing yet."""
    name = f"user-{uuid4().hex[:8]}"
    set_users(admin, name)
    return name


@pytest.fixture
def secure_topic(admin: AdminClient, topic: str) -> str:
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(PATIENCE_S)
    return topic


def allow(
    admin: AdminClient,
    user: str,
    operation: AclOperation,
    name: str,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = LITERAL,
    permission: AclPermissionType = ALLOW,
) -> AclBinding:
    binding = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)
    for future in admin.create_acls([binding]).values():
        future.result(PATIENCE_S)
    return binding


def revoke(admin: AdminClient, binding: AclBinding) -> int:
    chosen = AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )
    return sum(len(future.result(PATIENCE_S)) for future in admin.delete_acls([chosen]).values())


# -- one round trip with each client -----------------------------------------------------------------------------------


def confluent_round_trip(login: Login, topic: str, value: bytes) -> bytes | None:
    failures: list[int] = []
    producer = Producer(login.confluent(**{"message.timeout.ms": 20_000}))
    producer.produce(topic, value, on_delivery=lambda error, _: error and failures.append(error.code()))
    producer.flush(PATIENCE_S)
    if failures:
        raise KafkaException(KafkaError(failures[0]))
    consumer = Consumer(login.confluent(**{"group.id": topic, "auto.offset.reset": "earliest"}))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            raise KafkaException(message.error())
        read: bytes | None = message.value()
        return read
    finally:
        consumer.close()


def kafka_python_round_trip(login: Login, topic: str, value: bytes) -> bytes | None:
    producer = KafkaProducer(**login.kafka_python(max_block_ms=20_000))
    try:
        producer.send(topic, value).get(PATIENCE_S)
    finally:
        producer.close(timeout=1)
    consumer = KafkaConsumer(
        topic, **login.kafka_python(auto_offset_reset="earliest", consumer_timeout_ms=int(PATIENCE_S * 1_000))
    )
    try:
        return next(iter(consumer)).value  # type: ignore[no-any-return]
    finally:
        consumer.close()


def aiokafka_round_trip(login: Login, topic: str, value: bytes) -> bytes | None:
    async def run() -> bytes | None:
        producer = AIOKafkaProducer(**login.aiokafka())
        try:
            await producer.start()
            await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(topic, **login.aiokafka(auto_offset_reset="earliest"))
        try:
            await consumer.start()
            async with asyncio.timeout(PATIENCE_S):
                return (await consumer.getone()).value  # type: ignore[no-any-return]
        finally:
            await consumer.stop()

    return asyncio.run(run())


RoundTrip = Callable[[Login, str, bytes], bytes | None]
CLIENTS: dict[str, RoundTrip] = {
    "confluent-kafka": confluent_round_trip,
    "kafka-python": kafka_python_round_trip,
    "aiokafka": aiokafka_round_trip,
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_logs_in_by_every_mechanism(
    secure_node: Node, protocol: str, admin: AdminClient, user: str, secure_topic: str, client: str, mechanism: str
) -> None:
    allow(admin, user, AclOperation.ALL, secure_topic)
    allow(admin, user, AclOperation.ALL, secure_topic, ResourceType.GROUP)
    login = Login(secure_node.bootstrap, protocol, mechanism, user)
    assert CLIENTS[client](login, secure_topic, mechanism.encode()) == mechanism.encode()


# -- rights ------------------------------------------------------------------------------------------------------------


def produce(login: Login, topic: str, **settings: Any) -> int:
    """The code of one produce; 0 if it was taken."""
    codes: list[int] = []
    producer = Producer(login.confluent(**{"message.timeout.ms": 20_000, **settings}))
    producer.produce(topic, b"x", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
    producer.flush(PATIENCE_S)
    return codes[0]


def consume(login: Login, topic: str, group: str) -> int:
    """The code that a consumer of a group meets; 0 if it gets a message."""
    consumer = Consumer(login.confluent(**{"group.id": group, "auto.offset.reset": "earliest"}))
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None:
                return int(message.error().code()) if message.error() else 0
        raise AssertionError("neither a message nor an error came")
    finally:
        consumer.close()


def test_producing_and_consuming_need_their_rights(
    secure_node: Node, protocol: str, admin: AdminClient, user: str, secure_topic: str
) -> None:
    login = Login(secure_node.bootstrap, protocol, "SCRAM-SHA-256", user)
    assert produce(login, secure_topic) == TOPIC_DENIED
    allow(admin, user, AclOperation.WRITE, secure_topic[:6], pattern=PREFIXED)
    assert produce(login, secure_topic) == 0
    assert consume(login, secure_topic, "g-" + secure_topic) == GROUP_DENIED
    allow(admin, user, AclOperation.READ, "g-" + secure_topic, ResourceType.GROUP)
    assert consume(login, secure_topic, "g-" + secure_topic) == TOPIC_DENIED
    allow(admin, user, AclOperation.READ, secure_topic)
    assert consume(login, secure_topic, "g-" + secure_topic) == 0
    allow(admin, user, AclOperation.WRITE, secure_topic, permission=DENY)
    assert produce(login, secure_topic) == TOPIC_DENIED


def test_transactions_need_the_right_to_their_id(
    secure_node: Node, protocol: str, admin: AdminClient, user: str, secure_topic: str
) -> None:
    login = Login(secure_node.bootstrap, protocol, "SCRAM-SHA-256", user)
    allow(admin, user, AclOperation.WRITE, secure_topic)
    settings = login.confluent(**{"transactional.id": f"tx-{user}"})
    with pytest.raises(KafkaException) as refused:
        Producer(settings).init_transactions(20.0)
    assert refused.value.args[0].code() == ID_DENIED
    allow(admin, user, AclOperation.WRITE, "tx-", ResourceType.TRANSACTIONAL_ID, PREFIXED)
    producer = Producer(settings)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(secure_topic, b"x")
    producer.commit_transaction(PATIENCE_S)


def test_revocation_takes_effect_on_an_open_connection(
    secure_node: Node, protocol: str, admin: AdminClient, user: str, secure_topic: str
) -> None:
    binding = allow(admin, user, AclOperation.WRITE, secure_topic)
    codes: list[int] = []
    login = Login(secure_node.bootstrap, protocol, "SCRAM-SHA-512", user)
    producer = Producer(login.confluent(**{"enable.idempotence": False, "message.timeout.ms": 20_000}))

    def send() -> int:
        producer.produce(secure_topic, b"x", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
        producer.flush(PATIENCE_S)
        return codes[-1]

    assert [send() for _ in range(5)] == [0] * 5
    assert revoke(admin, binding) == 1
    assert send() == TOPIC_DENIED


# -- administration ----------------------------------------------------------------------------------------------------


def test_the_admin_client_manages_rules(admin: AdminClient, user: str, topic: str) -> None:
    made = [
        allow(admin, user, AclOperation.READ, topic),
        allow(admin, user, AclOperation.WRITE, topic, pattern=PREFIXED),
        allow(admin, user, AclOperation.DESCRIBE, topic, ResourceType.GROUP, permission=DENY),
    ]
    any_ = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        f"User:{user}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert set(admin.describe_acls(any_).result(PATIENCE_S)) == set(made)
    assert revoke(admin, made[1]) == 1
    assert set(admin.describe_acls(any_).result(PATIENCE_S)) == {made[0], made[2]}


def test_the_admin_client_manages_users(secure_node: Node, protocol: str, admin: AdminClient, user: str) -> None:
    described = admin.describe_user_scram_credentials([user])[user].result(PATIENCE_S)
    found = {(info.mechanism, info.iterations) for info in described.scram_credential_infos}
    assert found == {(ScramMechanism.SCRAM_SHA_256, 4096), (ScramMechanism.SCRAM_SHA_512, 4096)}
    gone = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
    for future in admin.alter_user_scram_credentials([gone]).values():
        future.result(PATIENCE_S)
    left = admin.describe_user_scram_credentials([user])[user].result(PATIENCE_S)
    assert [info.mechanism for info in left.scram_credential_infos] == [ScramMechanism.SCRAM_SHA_512]
    with pytest.raises(KafkaException):
        admin.describe_user_scram_credentials(["missing"])["missing"].result(PATIENCE_S)
    stranger = AdminClient(Login(secure_node.bootstrap, protocol, "SCRAM-SHA-512", user).confluent())
    with pytest.raises(KafkaException) as refused:
        set_users(stranger, "another")
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


# -- wrong secrets: last, because failures slow the logins that follow them --------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_hears_of_a_wrong_secret(secure_node: Node, protocol: str, secure_topic: str, mechanism: str) -> None:
    heard: list[int] = []
    login = Login(secure_node.bootstrap, protocol, mechanism, ADMIN, "wrong")
    producer = Producer(login.confluent(error_cb=lambda error: heard.append(error.code())))
    producer.produce(secure_topic, b"x")
    deadline = time.monotonic() + PATIENCE_S
    while KafkaError._AUTHENTICATION not in heard and time.monotonic() < deadline:
        producer.poll(0.1)
    producer.purge()
    producer.flush(PATIENCE_S)
    assert KafkaError._AUTHENTICATION in heard


def test_pure_python_clients_hear_of_a_wrong_password(
    secure_node: Node, protocol: str, secure_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They raise that they reached no broker, and name the reason in their logs."""
    login = Login(secure_node.bootstrap, protocol, "SCRAM-SHA-256", ADMIN, "wrong")
    with pytest.raises(PythonKafkaError):
        KafkaProducer(**login.kafka_python(bootstrap_timeout_ms=10_000))
    assert "SaslAuthenticationFailed" in caplog.text
    caplog.clear()
    with pytest.raises(AioKafkaError):
        aiokafka_round_trip(login, secure_topic, b"x")
    assert "SaslAuthenticationFailed" in caplog.text
