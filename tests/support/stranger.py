"""What a stranger can say at the port between nodes: a raw socket, TLS if it has any, and frames made by hand."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from pathlib import Path

import msgspec

from penstock.network.frames import Frame, FrameBuffer, FrameKind, decode_structure, encode_head
from penstock.network.handshake import NONCE_BYTES, Challenge, NodeIdentity, Refusal

_PATIENCE_S = 30.0


class Stranger:
    """One connection to a node's internal port."""

    def __init__(self, address: str, pair: tuple[Path, Path] | None = None, *, has_tls: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        self._frames = FrameBuffer()
        self._ready: list[Frame] = []
        self.binding = b""
        if has_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # it takes any node that lets it in
            if pair is not None:
                context.load_cert_chain(*pair)
            self._sock = context.wrap_socket(self._sock)
            self.binding = self._sock.get_channel_binding("tls-unique") or b""

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *exc: object) -> None:
        self._sock.close()

    def send(self, kind: FrameKind, method: str, structure: msgspec.Struct, body: bytes = b"", number: int = 1) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):  # it is shown the door already
            self._sock.sendall(encode_head(kind, number, method, structure, len(body)) + body)

    def hear(self) -> Frame | None:
        """The next frame; None once the node has closed the connection."""
        while not self._ready:
            try:
                received = self._sock.recv_into(self._frames.space())
            except (ssl.SSLError, ConnectionResetError):
                return None
            if not received:
                return None
            self._ready += self._frames.take(received)
        return self._ready.pop(0)

    def challenge(self) -> Challenge | None:
        """What the node greets with; None if it says nothing."""
        frame = self.hear()
        if frame is None or frame.method != "challenge":
            return None
        found: Challenge = decode_structure(Challenge, frame.structure)
        return found

    def introduce(self, challenge: Challenge, node_id: int, token: str, *, expected_id: int | None = None) -> str:
        """Answer a challenge as this node; the reason of the refusal, and nothing if it is welcome."""
        identity = NodeIdentity(
            node_id=node_id,
            cluster_id=challenge.cluster_id,
            instance=challenge.instance,  # as good a lie as there is: it was told
            token=token,
            binding=self.binding,
        )
        told = identity.introduce(challenge, os.urandom(NONCE_BYTES), expected_id=expected_id, is_bulk=True)
        self.send(FrameKind.GREETING, "introduction", told, number=0)
        frame = self.hear()
        assert frame is not None, "closed without a word"
        if frame.method == "welcome":
            return ""
        reason: str = decode_structure(Refusal, frame.structure).reason
        return reason
