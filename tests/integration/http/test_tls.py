"""HTTP and WebSocket over TLS: what the application learns of the client, and what a slow client gets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.certificates import Authority, Pair
from websockets.asyncio.client import connect

from penstock.config.settings import ClientAuth, TlsSettings
from penstock.doors.rest.config import HttpConfig
from penstock.doors.rest.server import _Server
from penstock.network.certificates import Certificates


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Authority(tmp_path_factory.mktemp("authority")).issue("alice")


class Told:
    """An application that notes what it is told of the connection."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def serving(pair: Pair, app: Told, **more: Any) -> AsyncIterator[int]:
    tls = TlsSettings(certificate=pair.certificate, key=pair.key, ca=pair.ca, **more)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    server = _Server(app, HttpConfig(tls=tls), Certificates(tls))  # type: ignore[arg-type]
    running = asyncio.ensure_future(server.serve([sock]))
    await server.has_started.wait()
    try:
        yield sock.getsockname()[1]
    finally:
        server.ask_to_stop()
        server.abort()
        await running


@pytest.mark.parametrize("shows", [True, False])
def test_the_subject_of_the_clients_certificate_is_in_the_scope(alice: Pair, shows: bool) -> None:
    app = Told()

    async def work() -> None:
        async with serving(alice, app, client_auth=ClientAuth.WANT) as port:
            context = alice.client_context(shows=shows)
            async with httpx.AsyncClient(verify=context) as client:
                for _ in range(3):
                    await client.post(f"https://localhost:{port}/x", content=b"body")
            async with connect(f"wss://localhost:{port}/ws", ssl=context):
                pass

    asyncio.run(work())
    assert len(app.scopes) == 4
    expected = {"client_cert_name": "CN=alice,O=Example" if shows else None}
    assert [scope["extensions"]["tls"] for scope in app.scopes] == [expected] * 4
    assert [scope["scheme"] for scope in app.scopes] == ["https"] * 3 + ["wss"]


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "begun"])
def test_a_slow_handshake_is_cut_at_the_deadline(alice: Pair, begun: bytes) -> None:
    async def work() -> float:
        async with serving(alice, Told(), handshake_timeout_ms=300) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            began = time.monotonic()
            writer.write(begun)
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
            return time.monotonic() - began

    assert asyncio.run(work()) >= 0.25


def test_a_flood_of_begun_handshakes_lets_honest_clients_through(alice: Pair) -> None:
    async def work() -> None:
        async with serving(alice, Told(), handshakes_max=10) as port:
            flood = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
            for _, writer in flood:
                writer.write(b"\x16\x03\x01\x02\x00\x01")
            async with httpx.AsyncClient(verify=alice.client_context(), timeout=60) as client:
                assert (await client.get(f"https://localhost:{port}/")).status_code == 200
            for _, writer in flood:
                writer.transport.abort()

    asyncio.run(work())


def test_many_connections_at_once_are_all_served(alice: Pair) -> None:
    async def work() -> None:
        async with serving(alice, Told(), handshakes_max=10) as port:

            async def ask(context: ssl.SSLContext) -> int:
                async with httpx.AsyncClient(verify=context, timeout=60) as client:
                    return (await client.get(f"https://localhost:{port}/")).status_code

            context = alice.client_context()
            assert await asyncio.gather(*(ask(context) for _ in range(60))) == [200] * 60

    asyncio.run(work())


def test_a_directory_is_no_certificate(tmp_path: Path, alice: Pair) -> None:
    from penstock.errors import StartupError

    with pytest.raises(StartupError, match="TLS cannot start"):
        Certificates(TlsSettings(certificate=tmp_path, key=alice.key))
