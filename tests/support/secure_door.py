"""A Kafka door with security on, in this process, and clients that log in by bytes of their own."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from scramp import ScramClient

from penstock.access.acls import ANY_HOST, Acl, AclAction, AclPattern, AclPermission, AclResource
from penstock.access.scram import ITERATIONS_MIN, ScramMechanism, derive
from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.config.settings import SASL_MECHANISMS, BrokerSettings, SecuritySettings, StorageSettings
from penstock.consensus.commands import AddAcls, RemoveAcls, SetCredentials
from penstock.consensus.controller import TopicSpec
from penstock.consensus.records import Endpoint
from penstock.doors.kafka.protocol.headers import decode_response, encode_request
from penstock.doors.kafka.protocol.messages import security as wire
from penstock.doors.kafka.protocol.schema import ApiMessage
from penstock.doors.kafka.server import KafkaConfig, KafkaServer
from penstock.partitions.config import PartitionsConfig

R = TypeVar("R", bound=ApiMessage)
TOPIC = "t"
ADMIN = "admin"
PASSWORD = "correct horse"
MECHANISMS = tuple(SASL_MECHANISMS)


class Client:
    """A connection that speaks in our own messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._next_id = 0

    def send(self, message: ApiMessage, version: int) -> None:
        self._next_id += 1
        self.writer.write(encode_request(message, version, self._next_id, "test"))

    def send_raw(self, token: bytes) -> None:
        self.writer.write(struct.pack(">i", len(token)) + token)

    async def receive(self) -> memoryview:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return memoryview(await self.reader.readexactly(length))

    async def ask(self, message: ApiMessage, version: int, answer: type[R]) -> R:
        self.send(message, version)
        correlation_id, response = decode_response(answer, version, await self.receive())
        assert correlation_id == self._next_id
        return response

    async def is_closed(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), 20) == b""
        except ConnectionResetError:
            return True

    # -- logging in ---------------------------------------------------------------------------------------------------

    async def handshake(self, mechanism: str, version: int = 1) -> wire.SaslHandshakeResponse:
        request = wire.SaslHandshakeRequest(mechanism=mechanism)
        return await self.ask(request, version, wire.SaslHandshakeResponse)

    async def authenticate(self, token: bytes, version: int = 2) -> wire.SaslAuthenticateResponse:
        request = wire.SaslAuthenticateRequest(auth_bytes=token)
        return await self.ask(request, version, wire.SaslAuthenticateResponse)

    async def log_in(self, user: str, password: str = PASSWORD) -> wire.SaslAuthenticateResponse:
        assert (await self.handshake("PLAIN")).error_code == 0
        return await self.authenticate(plain(user, password))


def plain(user: str, password: str = PASSWORD, act_as: str = "") -> bytes:
    return f"{act_as}\0{user}\0{password}".encode()


def bearer(token: str, act_as: str = "") -> bytes:
    return f"n,{'a=' + act_as if act_as else ''},\x01auth=Bearer {token}\x01\x01".encode()


def scram_client(mechanism: str, user: str, password: str = PASSWORD) -> Any:
    return ScramClient([mechanism], user, password)


class SecureDoor:
    """A broker that lets nobody in without a login, and its Kafka door."""

    def __init__(self, broker: Broker, server: KafkaServer) -> None:
        self.broker = broker
        self.server = server
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self._clients.append(client)
        return client

    async def client(self, user: str) -> Client:
        """A client that is logged in."""
        client = await self.connect()
        assert (await client.log_in(user)).error_code == 0
        return client

    async def add_user(self, user: str, password: str = PASSWORD) -> None:
        credentials = tuple(derive(each, password, b"salt" * 8, ITERATIONS_MIN) for each in ScramMechanism)
        await self.broker.controller.submit(SetCredentials(user=user, credentials=credentials))

    async def allow(self, user: str, action: AclAction, resource: AclResource, name: str, **more: Any) -> Acl:
        rule = acl(user, action, resource, name, **more)
        await self.broker.controller.submit(AddAcls(acls=(rule,)))
        return rule

    async def revoke(self, rule: Acl) -> None:
        from penstock.access.acls import AclFilter

        chosen = AclFilter(
            principal=rule.principal, action=rule.action, resource=rule.resource, name=rule.name, pattern=rule.pattern
        )
        await self.broker.controller.submit(RemoveAcls(filters=(chosen,)))

    def close(self) -> None:
        for client in self._clients:
            client.writer.close()


def acl(
    user: str,
    action: AclAction,
    resource: AclResource,
    name: str,
    *,
    pattern: AclPattern = AclPattern.LITERAL,
    permission: AclPermission = AclPermission.ALLOW,
    host: str = ANY_HOST,
) -> Acl:
    return Acl(
        principal=f"User:{user}",
        action=action,
        resource=resource,
        name=name,
        pattern=pattern,
        permission=permission,
        host=host,
    )


@asynccontextmanager
async def secure_door(
    directory: Path, *, enabled: bool = True, mechanisms: tuple[str, ...] = MECHANISMS, port: int = 0
) -> AsyncIterator[SecureDoor]:
    broker = Broker(
        BrokerConfig(
            node_id=1,
            data_dir=directory / "data",
            endpoints=(Endpoint(door="kafka", host="127.0.0.1", port=port),),
            partitions=PartitionsConfig(storage=StorageSettings(housekeeping_interval_ms=3_600_000)),
            security=SecuritySettings(enabled=enabled, super_users=(f"User:{ADMIN}",), sasl_mechanisms=mechanisms),
        ),
        alone(1),
    )
    await broker.start()
    server = KafkaServer(broker, KafkaConfig(port=port, node=BrokerSettings()))
    await server.start()
    door = SecureDoor(broker, server)
    try:
        await door.add_user(ADMIN)
        await broker.create_topic(TopicSpec(name=TOPIC, partitions=2))
        yield door
    finally:
        door.close()
        await server.stop(0.5)
        await broker.close()


def tell(directory: Path, story: Callable[[SecureDoor], Coroutine[None, None, None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(90), secure_door(directory, **options) as door:
            await story(door)

    asyncio.run(run())
