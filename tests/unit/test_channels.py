"""A channel with TLS gives and takes the same bytes as a plain one, whatever the sockets do; handshakes have an end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.certificates import Authority, Pair

from penstock.config.settings import ClientAuth, TlsSettings
from penstock.doors.kafka.connection import Connection
from penstock.errors import StartupError
from penstock.network.certificates import Certificates, PeerCertificate, distinguished_name
from penstock.network.channel import ENCRYPT_BYTES_MAX, SCRATCH_BYTES, Channel, PlainChannel, TlsChannel
from penstock.network.entrance import Arrival, ChannelEntrance
from penstock.network.sockets import Acceptor, Piece
from penstock.storage.files import DiskFiles, FileSlice
from penstock.testing.files import MemoryFiles
from penstock.wrong_port import NO_PORTS, Guide, Protocol


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Authority(tmp_path_factory.mktemp("authority")).issue("alice", node_id=3)


def settings_of(pair: Pair, **more: object) -> TlsSettings:
    return TlsSettings(certificate=pair.certificate, key=pair.key, ca=pair.ca, **more)  # type: ignore[arg-type]


async def shaken(channel: TlsChannel) -> TlsChannel:
    while True:
        try:
            channel.shake()
        except BlockingIOError:
            await asyncio.sleep(0)
        else:
            return channel


async def ends_of(pair: Pair | None, *, buffer_bytes: int | None = None) -> tuple[Channel, Channel]:
    """Both ends of a connection: with TLS where there is a certificate, else plain."""
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setblocking(False)
        if buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    if pair is None:
        return PlainChannel(near), PlainChannel(far)
    certificates = Certificates(settings_of(pair, internal=True))
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    channels = (
        TlsChannel(near, certificates.links, scratch, is_server=True),
        TlsChannel(far, certificates.asking, scratch, is_server=False),
    )
    await asyncio.gather(*map(shaken, channels))
    return channels


async def received(channel: Channel, size: int, chance: random.Random) -> bytes:
    """So many bytes, by events alone: a channel that forgets to report what it holds would wait for ever."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    done = loop.create_future()

    def on_readable() -> None:
        buffer = memoryview(bytearray(chance.choice((1, 7, 1_000, 16_384, 70_000))))
        with contextlib.suppress(BlockingIOError):
            data.extend(buffer[: channel.recv_into(buffer)])
        if len(data) >= size and not done.done():
            done.set_result(None)
        elif chance.random() < 0.2:  # as an owner that has too much to do
            channel.ignore_readable()
            loop.call_later(0.001, channel.watch_readable, on_readable)

    channel.watch_readable(on_readable)
    async with asyncio.timeout(60):
        await done
    channel.ignore_readable()
    return bytes(data)


async def sent(channel: Channel, pieces: list[Piece]) -> None:
    loop = asyncio.get_running_loop()
    channel.out.pieces.extend(pieces)
    while not channel.out.send():
        assert channel.out.pieces, "what has not left is still there"
        writable = loop.create_future()
        channel.watch_writable(lambda writable=writable: writable.done() or writable.set_result(None))  # type: ignore[misc]
        async with asyncio.timeout(60):
            await writable
        channel.ignore_writable()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
def test_bytes_arrive_in_order_however_they_are_cut(pair: Pair, tmp_path: Path, has_tls: bool, seed: int) -> None:
    chance = random.Random(seed)
    known = chance.randbytes(600_000)
    stored = {}
    for name, files in (("disk", DiskFiles()), ("memory", MemoryFiles())):
        stored[name] = files.open(tmp_path / name, create=True)
        stored[name].write(known)
    pieces: list[Piece] = []
    expected = bytearray()
    for _ in range(chance.randrange(1, 40)):
        kind = chance.choice(("bytes", "view", "empty", "disk", "memory", "small"))
        begin = chance.randrange(len(known) - 1)
        size = 0 if kind == "empty" else chance.randrange(1, 60 if kind == "small" else 300_000)
        part = known[begin : begin + size]
        expected += part
        if kind in stored:
            pieces.append(FileSlice(stored[kind], begin, len(part)))
        else:
            pieces.append(memoryview(part) if kind == "view" else part)

    async def work() -> bytes:
        near, far = await ends_of(pair if has_tls else None, buffer_bytes=chance.choice((None, 4_096)))
        heard, _ = await asyncio.gather(received(far, len(expected), chance), sent(near, list(pieces)))
        assert near.out.sent_bytes == len(expected)
        assert not near.out.pieces
        near.close()
        far.close()
        return heard

    assert asyncio.run(work()) == bytes(expected)


def test_no_plaintext_of_a_file_is_on_the_wire_and_little_is_held(pair: Pair, tmp_path: Path) -> None:
    secret = b"top secret " * 100_000
    file = DiskFiles().open(tmp_path / "log", create=True)
    file.write(secret)

    async def work() -> tuple[bytes, int]:
        near, far = await ends_of(pair, buffer_bytes=4_096)
        near.out.pieces.append(FileSlice(file, 0, len(secret)))
        assert not near.out.send(), "the other end does not read"
        held = near.out.pieces[0]
        assert isinstance(held, FileSlice)
        wire = bytearray()
        while not near.out.send():
            wire += far.sock.recv(1 << 20)
        with contextlib.suppress(BlockingIOError):
            while more := far.sock.recv(1 << 20):
                wire += more
        near.sock.close()
        far.sock.close()
        return bytes(wire), held.size

    wire, unsent = asyncio.run(work())
    assert len(wire) > len(secret)
    assert b"top secret" not in wire
    assert len(secret) - unsent <= ENCRYPT_BYTES_MAX * 4


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
def test_a_hang_up_is_seen(pair: Pair, has_tls: bool) -> None:
    async def work() -> None:
        near, far = await ends_of(pair if has_tls else None)
        assert not near.has_hung_up()
        far.close()
        space = memoryview(bytearray(10))
        assert near.recv_into(space) == 0
        assert near.has_hung_up()
        near.close()

    asyncio.run(work())


def test_the_end_is_reported_although_the_socket_is_open(pair: Pair) -> None:
    """A client may say that it sends nothing more, behind its last bytes, and keep the connection."""

    async def work() -> None:
        near, far = await ends_of(pair)
        far.out.pieces.append(b"last words")
        assert far.out.send()
        other = far.sock.dup()
        far.close()
        loop = asyncio.get_running_loop()
        heard: list[bytes] = []
        ended = loop.create_future()

        def on_readable() -> None:
            space = memoryview(bytearray(100))
            got = near.recv_into(space)
            heard.append(bytes(space[:got]))
            if not got:
                near.ignore_readable()
                ended.set_result(None)

        near.watch_readable(on_readable)
        async with asyncio.timeout(60):
            await ended
        assert heard == [b"last words", b""]
        near.close()
        other.close()

    asyncio.run(work())


def test_both_ends_agree_on_a_binding_that_no_other_connection_has(pair: Pair) -> None:
    async def work() -> None:
        first, second = await ends_of(pair), await ends_of(pair)
        assert first[0].binding == first[1].binding != b""
        assert first[0].binding != second[0].binding
        assert first[0].peer_certificate == PeerCertificate("CN=alice,O=Example", frozenset({3}))
        for channel in (*first, *second):
            channel.close()

    asyncio.run(work())


def test_a_connection_of_the_kafka_door_knows_its_clients_certificate(pair: Pair) -> None:
    class Idle:
        def dispatch(self, connection: Connection, frame: memoryview) -> None:
            raise AssertionError("nothing is asked")

        def on_closed(self, connection: Connection) -> None:
            """Nothing to forget."""

    async def work() -> list[str | None]:
        found = []
        for shown in (pair, None):
            sock = socket.create_server(("127.0.0.1", 0))
            there = socket.create_connection(sock.getsockname())
            here, _ = sock.accept()
            for each in (here, there):
                each.setblocking(False)
            if shown is None:
                channel: Channel = PlainChannel(here)
            else:
                certificates = Certificates(settings_of(pair, internal=True))
                scratch = memoryview(bytearray(SCRATCH_BYTES))
                channel = TlsChannel(here, certificates.links, scratch, is_server=True)
                client = TlsChannel(there, certificates.asking, scratch, is_server=False)
                await asyncio.gather(shaken(channel), shaken(client))
            connection = Connection(asyncio.get_running_loop(), channel, Idle(), max_request_bytes=1_000)
            found.append(connection.peer_certificate_subject)
            connection.close()
            there.close()
            sock.close()
        return found

    assert asyncio.run(work()) == ["CN=alice,O=Example", None]


def test_a_large_answer_leaves_turns_of_the_loop_to_others(pair: Pair) -> None:
    async def work() -> int:
        near, far = await ends_of(pair)
        near.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
        calls = 0

        def drain() -> None:
            with contextlib.suppress(BlockingIOError):
                far.sock.recv(1 << 24)

        asyncio.get_running_loop().add_reader(far.sock.fileno(), drain)
        near.out.pieces.append(bytes(20_000_000))
        async with asyncio.timeout(60):
            while not near.out.send():
                calls += 1
                await asyncio.sleep(0)
        asyncio.get_running_loop().remove_reader(far.sock.fileno())
        near.sock.close()
        far.sock.close()
        return calls

    assert asyncio.run(work()) >= 19, "twenty megabytes are not sent in one turn"


# -- certificates ------------------------------------------------------------------------------------------------------


def test_subjects_are_written_as_kafka_writes_them() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "Smith, Sons + Co"),),
        (("organizationalUnitName", "#1 <team>"),),
        (("commonName", "alice"), ("userId", "7")),
    )
    expected = r"CN=alice+UID=7,OU=\#1 \<team\>,O=Smith\, Sons \+ Co,C=DE"
    assert distinguished_name(subject) == expected


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ((("DNS", "node-3.penstock"), ("URI", "penstock://node/4")), {3, 4}),
        ((("DNS", "node-3.penstock.example.com"), ("DNS", "anode-3.penstock")), set()),
        ((("DNS", "node-.penstock"), ("email", "node-3.penstock"), ("URI", "penstock://node/3/x")), set()),
    ],
)
def test_only_whole_names_make_a_node(names: tuple[tuple[str, str], ...], ids: set[int]) -> None:
    found = PeerCertificate.of({"subject": (), "subjectAltName": names})
    assert found is not None
    assert found.node_ids == ids


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    pair = Authority(tmp_path).issue("alice")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"passphrase")
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(StartupError, match="encrypted with a passphrase"):
        Certificates(settings_of(pair))


def test_files_are_read_again_when_they_have_settled(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("alice")
    certificates = Certificates(settings_of(pair, client_auth=ClientAuth.WANT))
    before = certificates.current
    certificates.look()
    assert certificates.current is before, "nothing changed"
    other = authority.issue("other")
    os.replace(other.key, pair.key)
    certificates.look()
    assert certificates.current is before, "the certificate may follow its key in a moment"
    assert certificates.problem is None
    certificates.look()
    assert certificates.current is before, "a key of another certificate"
    assert certificates.problem is not None
    assert "does not belong" in certificates.problem
    os.replace(other.certificate, pair.certificate)
    certificates.look()
    certificates.look()
    assert certificates.current is not before
    assert certificates.problem is None
    assert certificates.doors.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True).context is (
        certificates.current
    )


# -- the entrance ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def entrance(
    pair: Pair, on_secured: Callable[[TlsChannel], None], **limits: int
) -> AsyncIterator[tuple[ChannelEntrance, tuple[str, int]]]:
    settings = settings_of(pair, **limits)
    certificates = Certificates(settings)
    guide = Guide("the Kafka port", Protocol.KAFKA, NO_PORTS)
    made = ChannelEntrance(guide, settings, lambda: certificates.current, on_secured)
    sock = socket.create_server(("127.0.0.1", 0), backlog=2_000)
    sock.setblocking(False)
    acceptor = Acceptor(sock, made.receive, whose="clients")
    made.hold(acceptor)
    acceptor.start()
    try:
        yield made, sock.getsockname()
    finally:
        acceptor.close()
        made.close()


async def honest(pair: Pair, address: tuple[str, int]) -> float:
    """Connect as a client does; how long it took."""
    began = time.monotonic()
    context = pair.client_context(shows=False)
    _, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="localhost")
    writer.transport.abort()
    return time.monotonic() - began


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "one byte", "some"])
def test_a_slow_handshake_is_cut_at_the_deadline(pair: Pair, begun: bytes) -> None:
    async def work() -> None:
        async with entrance(pair, lambda channel: channel.close(), handshake_timeout_ms=300) as (here, address):
            reader, writer = await asyncio.open_connection(*address)
            began = time.monotonic()
            writer.write(begun)
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            assert time.monotonic() - began >= 0.25
            assert (len(here), here.cut_off) == (0, 1)
            writer.close()

    asyncio.run(work())


def test_one_byte_at_a_time_does_not_extend_the_deadline(pair: Pair) -> None:
    async def work() -> None:
        async with entrance(pair, lambda channel: channel.close(), handshake_timeout_ms=300) as (here, address):
            reader, writer = await asyncio.open_connection(*address)
            client = ssl.create_default_context().wrap_bio(
                ssl.MemoryBIO(), hello := ssl.MemoryBIO(), server_hostname="x"
            )
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                for byte in hello.read():
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    if reader.at_eof() or time.monotonic() - began > 30:
                        break
                    await asyncio.sleep(0.02)
            assert time.monotonic() - began < 10
            assert (len(here), here.cut_off) == (0, 1)
            writer.close()

    asyncio.run(work())


def test_a_flood_of_connections_is_bounded_and_lets_honest_clients_through(pair: Pair) -> None:
    most = 20

    async def work() -> None:
        secured: list[TlsChannel] = []

        def take(channel: TlsChannel) -> None:
            secured.append(channel)
            channel.close()

        async with entrance(pair, take, handshakes_max=most) as (here, address):
            flood = [await asyncio.open_connection(*address) for _ in range(100)]
            highest = 0

            async def watch() -> None:
                nonlocal highest
                while True:
                    highest = max(highest, len(here))
                    await asyncio.sleep(0.005)

            watching = asyncio.ensure_future(watch())
            for _, writer in flood:
                writer.write(b"\x16\x03\x01")
            async with asyncio.timeout(60):
                await asyncio.gather(*(honest(pair, address) for _ in range(5)))
            watching.cancel()
            assert highest <= most
            assert here.cut_off >= 80, "those that did not go on have made room"
            assert len(secured) == 5
            for _, writer in flood:
                writer.transport.abort()

    asyncio.run(work())


def test_many_honest_clients_at_once_are_all_served(pair: Pair) -> None:
    async def work() -> None:
        secured: list[TlsChannel] = []
        async with entrance(pair, secured.append, handshakes_max=16) as (here, address):
            await asyncio.gather(*(honest(pair, address) for _ in range(200)))
            assert here.cut_off == 0
            async with asyncio.timeout(60):
                while len(secured) < 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        for channel in secured:
            channel.close()

    asyncio.run(work())


def test_handshakes_leave_turns_of_the_loop_to_others(pair: Pair) -> None:
    async def work() -> Counter[int]:
        turn = 0
        begun: Counter[int] = Counter()

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async with entrance(pair, lambda channel: channel.close()) as (here, address):
            begin = here.begin

            def noting(arrival: Arrival) -> None:
                begun[turn] += 1
                begin(arrival)

            here.begin = noting  # type: ignore[method-assign]
            client = ssl.create_default_context().wrap_bio(
                ssl.MemoryBIO(), hello := ssl.MemoryBIO(), server_hostname="x"
            )
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            words = hello.read()
            flood = [await asyncio.open_connection(*address) for _ in range(100)]
            for _, writer in flood:
                writer.write(words)
            counting = asyncio.ensure_future(count_turns())
            async with asyncio.timeout(60):
                await asyncio.gather(*(reader.read(10) for reader, _ in flood))
            counting.cancel()
            for _, writer in flood:
                writer.transport.abort()
        return begun

    begun = asyncio.run(work())
    assert begun.total() == 100
    assert max(begun.values()) <= 8, "a few in each turn, not all at once"
