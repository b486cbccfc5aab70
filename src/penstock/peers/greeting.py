"""The handshake of two nodes: who is there, of which cluster, and does it know the shared token.

Whoever accepts the connection speaks first, with a challenge. The other answers with who it is and a proof that it
knows the token; the first then proves the same. The token itself never travels, and a proof is about both challenges,
so one that was overheard opens nothing. Nothing here touches a socket: steps go in and steps come out.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.errors import PeerUnavailable

PROTOCOL_VERSION: Final = 1
NONCE_BYTES: Final = 32
NOBODY: Final = -1  # the id of a caller that is no node, such as a command-line tool


class Refused(PeerUnavailable):
    """The two sides do not belong together; the message says what to set right."""


class Challenge(msgspec.Struct, frozen=True):
    """The first step, of whoever was connected to."""

    version: int
    node_id: int
    cluster_id: str
    instance: bytes  # drawn anew when a process starts
    nonce: bytes


class Introduction(msgspec.Struct, frozen=True):
    """The second step, of whoever connected."""

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
class Identity:
    """Who this side is."""

    node_id: int
    cluster_id: str
    instance: bytes
    token: str | None = field(repr=False)

    def challenge(self, nonce: bytes) -> Challenge:
        return Challenge(PROTOCOL_VERSION, self.node_id, self.cluster_id, self.instance, nonce)

    def introduce(self, challenge: Challenge, nonce: bytes, *, expected_id: int | None, is_bulk: bool) -> Introduction:
        """Answer a challenge, if it is from whom we meant to reach."""
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
        if other.node_id == self.node_id != NOBODY and other.instance != self.instance:
            raise Refused(f"Two nodes run with id {self.node_id}: give one of them another --node-id.")

    def _check_proof(self, proof: bytes, wanted: bytes) -> None:
        if not hmac.compare_digest(proof, wanted):
            raise Refused("The shared token is not the same on both nodes: set cluster.token to one value everywhere.")

    def _proof(self, role: bytes, challenge: bytes, answer: bytes, node_id: int) -> bytes:
        # Both nonces have a fixed length, so no two different inputs give the same bytes.
        told = b"penstock-peers/1\0" + challenge + answer + role + b"\0" + str(node_id).encode()
        return hmac.new((self.token or "").encode(), told, hashlib.sha256).digest()
