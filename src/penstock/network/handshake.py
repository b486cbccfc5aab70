"""The handshake of two nodes: who is there, of which cluster, and does it know the shared token.

The accepting node speaks first, with a challenge. The connecting node answers with who it is and a proof that it knows
the token; the accepting node then proves the same. The token itself never travels, and a proof covers both challenges,
so an overheard one is worth nothing. Where nodes speak TLS, the id that a node claims has to be in its certificate,
and a proof covers the TLS connection too, so that it cannot be passed on through another. The steps themselves touch no
socket (`NodeIdentity`); `connect` and `HandshakeServer` take them over a link, within the time that both sides have.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import msgspec

from penstock.errors import PeerUnavailable
from penstock.network.certificates import PeerCertificate
from penstock.network.channel import Channel, PlainChannel, TlsChannel
from penstock.network.frames import (
    FRAME_BYTES_MAX,
    CorruptFrame,
    Frame,
    FrameBuffer,
    FrameKind,
    decode_structure,
    encode_head,
)
from penstock.network.link import Link
from penstock.wrong_port import Guide, Ports

PROTOCOL_VERSION: Final = 1
NONCE_BYTES: Final = 32
NOT_A_NODE: Final = -1  # the id of a caller that is no node, such as a command-line tool


class Refused(PeerUnavailable):
    """The two sides do not belong together; the message says what to set right."""


class Challenge(msgspec.Struct, frozen=True):
    """The first step, of the accepting side."""

    version: int
    node_id: int
    cluster_id: str
    instance: bytes  # drawn anew when a process starts
    nonce: bytes


class Introduction(msgspec.Struct, frozen=True):
    """The second step, of the connecting side."""

    version: int
    node_id: int
    cluster_id: str
    instance: bytes
    nonce: bytes
    proof: bytes
    is_bulk: bool = False
    is_visit: bool = False  # to an address, for a call or two; a node's other connections are there to stay


class Welcome(msgspec.Struct, frozen=True):
    """The third step: the connection is open."""

    proof: bytes


class Refusal(msgspec.Struct, frozen=True):
    """The third step, if the two do not belong together."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """Who this side is."""

    node_id: int
    cluster_id: str
    instance: bytes
    token: str | None = field(repr=False)
    binding: bytes = field(default=b"", repr=False)  # to the TLS connection that this is said on

    def on(self, channel: Channel) -> NodeIdentity:
        """The same, for what is said on one connection only."""
        return replace(self, binding=channel.binding)

    def challenge(self, nonce: bytes) -> Challenge:
        return Challenge(PROTOCOL_VERSION, self.node_id, self.cluster_id, self.instance, nonce)

    def introduce(self, challenge: Challenge, nonce: bytes, *, expected_id: int | None, is_bulk: bool) -> Introduction:
        """Answer a challenge, if it is from the node that we meant to reach."""
        self._check(challenge)
        if expected_id is not None and challenge.node_id != expected_id:
            raise Refused(
                f"The node at this address is node {challenge.node_id}, not node {expected_id}: "
                "correct the addresses in --peers."
            )
        proof = self._proof(b"connected", challenge.nonce, nonce, self.node_id)
        return Introduction(
            PROTOCOL_VERSION,
            self.node_id,
            self.cluster_id,
            self.instance,
            nonce,
            proof,
            is_bulk=is_bulk,
            is_visit=expected_id is None,
        )

    def welcome(self, challenge: Challenge, introduction: Introduction) -> Welcome:
        """Let a node in that answered our challenge."""
        self._check(introduction)
        wanted = self._proof(b"connected", challenge.nonce, introduction.nonce, introduction.node_id)
        self._check_proof(introduction.proof, wanted)
        return Welcome(self._proof(b"accepted", challenge.nonce, introduction.nonce, self.node_id))

    def accept(self, challenge: Challenge, introduction: Introduction, welcome: Welcome) -> None:
        """See that who let us in knows the token as well."""
        wanted = self._proof(b"accepted", challenge.nonce, introduction.nonce, challenge.node_id)
        self._check_proof(welcome.proof, wanted)

    def _check(self, other: Challenge | Introduction) -> None:
        if other.version != PROTOCOL_VERSION:
            raise Refused(
                f"Node {other.node_id} speaks version {other.version} of the protocol between nodes and node "
                f"{self.node_id} speaks {PROTOCOL_VERSION}: run the same release of Penstock on both."
            )
        if len(other.nonce) != NONCE_BYTES:
            raise Refused("The challenge has a wrong length: run the same release of Penstock on both.")
        if self.cluster_id and other.cluster_id and self.cluster_id != other.cluster_id:
            raise Refused(
                f"Node {other.node_id} belongs to cluster {other.cluster_id} and node {self.node_id} to cluster "
                f"{self.cluster_id}: correct --peers or --join, or give the node an empty data directory."
            )
        if other.node_id == self.node_id != NOT_A_NODE and other.instance != self.instance:
            raise Refused(f"Two nodes run with id {self.node_id}: give one of them another --node-id.")

    def _check_proof(self, proof: bytes, wanted: bytes) -> None:
        if not hmac.compare_digest(proof, wanted):
            raise Refused("The shared token is not the same on both nodes: set cluster.token to one value everywhere.")

    def _proof(self, role: bytes, challenge: bytes, answer: bytes, node_id: int) -> bytes:
        # Both nonces have a fixed length, so no two different inputs give the same bytes.
        told = b"penstock-peers/1\0" + challenge + answer + role + b"\0" + str(node_id).encode()
        if self.binding:
            told += b"\0" + self.binding
        return hmac.new((self.token or "").encode(), told, hashlib.sha256).digest()


log = logging.getLogger(__name__)

StructT = TypeVar("StructT", bound=msgspec.Struct)

CONNECT_TIMEOUT_S: Final = 2.0
_FIRST_BYTES_S: Final = 0.02  # for a client that speaks first, and so is no node
_WAITING_MAX: Final = 256  # that have not told yet who they are
GREETING_BYTES_MAX: Final = 4096  # until the other end has told who it is
_ACCEPTED_SILENT_TURNS_MAX: Final = 12  # the end that connected asks for signs of life; this one only waits for them

_CHALLENGE: Final = "challenge"
_INTRODUCTION: Final = "introduction"
_WELCOME: Final = "welcome"
_REFUSAL: Final = "refusal"


Secure = Callable[[socket.socket], TlsChannel]


def check_certificate(certificate: PeerCertificate | None, node_id: int) -> None:
    """Refuse a node whose certificate is another's; without TLS there is nothing to check."""
    if certificate is None or node_id in certificate.node_ids:
        return
    ids = ", ".join(map(str, sorted(certificate.node_ids)))
    shown = f"node {ids}" if ids else "no node"
    raise Refused(
        f"It claims to be node {node_id}, and its certificate ({certificate.subject}) names {shown}: give the node a "
        f"certificate with the DNS name node-{node_id}.penstock."
    )


# In plain, for a node that waits for a challenge where TLS is to begin.
WITHOUT_TLS: Final = encode_head(
    FrameKind.GREETING,
    0,
    _REFUSAL,
    Refusal("Nodes of this cluster speak TLS to each other: set security.tls.internal on this node as well."),
    0,
)


async def connect(
    host: str,
    port: int,
    identity: NodeIdentity,
    *,
    expected_id: int | None,
    is_bulk: bool,
    secure: Secure | None = None,
) -> Link:
    """Open a link to an address and shake hands, or raise `PeerUnavailable` with why not.

    ``secure`` puts TLS on the socket, where nodes speak it.
    """
    where = f"{host}:{port}" if expected_id is None else f"node {expected_id} at {host}:{port}"
    link: Link | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            sock = await _open(host, port)
            channel = PlainChannel(sock) if secure is None else await _secured(secure(sock))
            link = Link(channel, FrameBuffer(limit=GREETING_BYTES_MAX), name=where)
            await _greet(link, identity, expected_id=expected_id, is_bulk=is_bulk)
    except Refused as refused:
        raise Refused(f"Refused by {where}, or refusing it: {refused.message}") from refused
    except PeerUnavailable as error:
        raise PeerUnavailable(f"Cannot connect to {where}: {error.message}") from error
    except TimeoutError as error:
        raise PeerUnavailable(f"Cannot connect to {where}: no answer within {CONNECT_TIMEOUT_S:g} s.") from error
    except ssl.SSLError as error:
        raise PeerUnavailable(f"Cannot connect to {where}: {_tls_reason(error)}.") from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise PeerUnavailable(f"Cannot connect to {where}: {reason}.") from error
    else:
        opened, link = link, None
        return opened
    finally:
        if link is not None:
            link.close("it was not opened")


async def _open(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first of the host's addresses that takes it."""
    loop = asyncio.get_running_loop()
    problem = OSError("the host has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)  # noqa: FBT003
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem


async def _secured(channel: TlsChannel) -> TlsChannel:
    """The channel when its handshake is over."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            try:
                channel.shake()
            except (BlockingIOError, InterruptedError):
                moved = loop.create_future()
                channel.watch_readable(partial(_settle, moved, None))
                try:
                    await moved
                finally:
                    channel.ignore_readable()
            else:
                return channel
    except BaseException:
        channel.close()
        raise


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted ({error.verify_message}): the authority that signed it has to be in "
            "security.tls.ca"
        )
    if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
        return "it does not speak TLS: set security.tls.internal to one value on all nodes"
    return f"TLS failed ({(error.reason or str(error)).lower().replace('_', ' ')})"


async def _greet(link: Link, identity: NodeIdentity, *, expected_id: int | None, is_bulk: bool) -> None:
    identity = identity.on(link.channel)
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    steps: list[tuple[Challenge, Introduction]] = []

    def on_frame(frame: Frame) -> None:
        try:
            if frame.kind == FrameKind.GREETING and frame.method == _CHALLENGE and not steps:
                challenge: Challenge = _read(Challenge, frame)
                check_certificate(link.channel.peer_certificate, challenge.node_id)
                introduction = identity.introduce(
                    challenge, os.urandom(NONCE_BYTES), expected_id=expected_id, is_bulk=is_bulk
                )
                steps.append((challenge, introduction))
                link.send(FrameKind.GREETING, 0, _INTRODUCTION, introduction)
            elif frame.kind == FrameKind.GREETING and frame.method == _WELCOME and steps:
                identity.accept(*steps[0], _read(Welcome, frame))
                link.allow(FRAME_BYTES_MAX)
                _settle(opened, None)
            elif frame.kind == FrameKind.GREETING and frame.method == _REFUSAL:
                raise Refused(_read(Refusal, frame).reason)
            else:
                raise CorruptFrame("It does not greet as a Penstock node does; is this the address of its --internal?")
        except Refused as refused:
            _settle(opened, refused)

    link.on_frame = on_frame
    link.on_closed = lambda reason: _settle(opened, PeerUnavailable(f"{reason}."))
    link.start()
    await opened
    # Nothing can come in before the first call, save a ping; the owner sets its listeners in this turn of the loop.
    link.watch(is_asking=True)


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class HandshakeServer:
    """The accepting side: greets what connects, and hands the link on once it is admitted.

    ``check`` raises `Refused` where a node cannot be what it says it is.
    """

    def __init__(
        self,
        identity: Callable[[], NodeIdentity],
        check: Callable[[Introduction], None],
        on_admitted: Callable[[Link, Introduction], None],
        ports: Ports,
    ) -> None:
        self._identity = identity
        self._check = check
        self._on_admitted = on_admitted
        self.guide = Guide("the internal port, for other nodes,", None, ports)
        self._waiting: dict[Link, asyncio.TimerHandle] = {}
        self._told: dict[str, str] = {}  # the last refusal of each host, so that its next tries are not logged again

    def receive(self, sock: socket.socket) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            sock.close()  # a node tries again; a flood of connections gets no memory
            return
        sock.setblocking(False)  # noqa: FBT003
        link, challenge = self._expect(PlainChannel(sock))
        loop = asyncio.get_running_loop()
        self._waiting[link] = loop.call_later(_FIRST_BYTES_S, self._begin_plain, link, sock, challenge)

    def receive_secured(self, channel: TlsChannel) -> None:
        """The same for a connection with TLS on it."""
        if len(self._waiting) >= _WAITING_MAX:
            channel.close()
            return
        self._begin(*self._expect(channel))

    def _expect(self, channel: Channel) -> tuple[Link, Challenge]:
        host, port = channel.sock.getpeername()[:2]
        link = Link(channel, FrameBuffer(limit=GREETING_BYTES_MAX), name=f"{host}:{port}")
        challenge = self._identity().challenge(os.urandom(NONCE_BYTES))
        link.on_frame = lambda frame: self._on_frame(link, host, challenge, frame)
        link.on_closed = lambda _: self._leave(link)
        return link, challenge

    def _begin_plain(self, link: Link, sock: socket.socket, challenge: Challenge) -> None:
        """Speak first, unless the other end did: no node does so, but clients of the other doors."""
        host = sock.getsockname()[0]
        with suppress(OSError):
            answer = self.guide.answer(sock.recv(64, socket.MSG_PEEK), client=link.name, host=host)
            if answer is not None:
                self._leave(link)
                link.channel.dismiss(answer)
                return
        self._begin(link, challenge)

    def _begin(self, link: Link, challenge: Challenge) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[link] = loop.call_later(CONNECT_TIMEOUT_S, link.close, "it did not tell who it is")
        link.start()
        link.send(FrameKind.GREETING, 0, _CHALLENGE, challenge)

    def close(self) -> None:
        for link in tuple(self._waiting):
            link.close("this node stops")

    def _leave(self, link: Link) -> None:
        timer = self._waiting.pop(link, None)
        if timer is not None:
            timer.cancel()

    def _on_frame(self, link: Link, host: str, challenge: Challenge, frame: Frame) -> None:
        if frame.kind != FrameKind.GREETING or frame.method != _INTRODUCTION:
            raise CorruptFrame("It does not greet as a Penstock node does; only nodes may connect to --internal.")
        introduction: Introduction = _read(Introduction, frame)
        try:
            check_certificate(link.channel.peer_certificate, introduction.node_id)
            welcome = self._identity().on(link.channel).welcome(challenge, introduction)
            self._check(introduction)
        except Refused as refused:
            told = f"Refusing node {introduction.node_id} at {host}: {refused.message}"
            log.log(logging.DEBUG if self._told.get(host) == told else logging.ERROR, "%s", told)
            self._told[host] = told
            link.send(FrameKind.GREETING, 0, _REFUSAL, Refusal(refused.message))
            link.close_when_sent("it was refused")
            return
        self._told.pop(host, None)
        self._leave(link)
        link.name = f"node {introduction.node_id} from {link.name}"
        link.send(FrameKind.GREETING, 0, _WELCOME, welcome)
        link.allow(FRAME_BYTES_MAX)
        link.watch(is_asking=False, turns_max=_ACCEPTED_SILENT_TURNS_MAX)
        self._on_admitted(link, introduction)


def _read(kind: type[StructT], frame: Frame) -> StructT:
    try:
        step: StructT = decode_structure(kind, frame.structure)
    except msgspec.DecodeError as error:
        raise CorruptFrame(f"A step of its greeting cannot be read: {error}.") from error
    return step
