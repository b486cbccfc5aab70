"""Nodes behind TLS: trusted by a certificate, and refused without one."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock import errors
from penstock.api.groups import ListGroups
from penstock.client.calls import RestCall, decoded
from penstock.client.transport import Transport

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"ok": 1}'
LARGE = b'{"ok": 1%s}' % (b" " * 200_000)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of its own for 127.0.0.1, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await _head(reader):
        length = int(head.rpartition(b"content-length: ")[2])
        await reader.readexactly(length)
        is_large = b"/large" in head
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(LARGE), LARGE) if is_large else ANSWER)
    writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def test_a_node_with_a_certificate_that_is_trusted_is_asked(certificate: Path) -> None:
    async def test() -> None:
        of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        of_server.load_cert_chain(certificate)
        async with await asyncio.start_server(_serve, "127.0.0.1", 0, ssl=of_server) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            transport = Transport([url], timeout_s=60, tls=ssl.create_default_context(cafile=str(certificate)))
            for path in ("small", "large", "small"):
                call = RestCall("POST", f"/v1/{path}", b"x" * 50_000, b"a/b", b"a/b", (), frozenset(), 0.0, True)
                assert decoded((await transport.send(call)).body, dict[str, int]) == {"ok": 1}
            transport.close()
            stranger = Transport([url], timeout_s=2)
            with pytest.raises(errors.NodesUnreachable, match=r"(?i)certificate"):
                await stranger.call(ListGroups())
            stranger.close()

    asyncio.run(asyncio.wait_for(test(), 90))


def test_a_node_that_does_not_speak_tls_is_told_apart() -> None:
    async def test() -> None:
        async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            transport = Transport([f"https://127.0.0.1:{port}"], timeout_s=2)
            with pytest.raises(errors.NodesUnreachable):
                await transport.call(ListGroups())
            transport.close()

    asyncio.run(asyncio.wait_for(test(), 90))
