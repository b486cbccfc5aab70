"""A node that speaks TLS, as a process of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.certificates import Authority, Pair
from tests.support.node import Node
from tests.support.wire import api_versions, read_response


def tls_settings(pair: Pair, client_auth: str = "none", *, internal: bool = False) -> dict[str, object]:
    return {
        "security__tls__certificate": pair.certificate,
        "security__tls__key": pair.key,
        "security__tls__ca": pair.ca,
        "security__tls__client_auth": client_auth,
        "security__tls__internal": internal,
    }


class TlsNode(Node):
    """A node with a certificate of the authority given."""

    def __init__(
        self, directory: Path, authority: Authority, *, client_auth: str = "none", node_id: int = 1, **settings: object
    ) -> None:
        self.authority = authority
        self.pair = authority.issue(f"node-{node_id}", node_id=node_id, file=f"{directory.name}-{node_id}")
        self.own = authority.issue("prober")
        super().__init__(directory, node_id=node_id, **tls_settings(self.pair, client_auth), **settings)

    @property
    def http_url(self) -> str:
        return f"https://127.0.0.1:{self.http_port}"

    def context(self) -> ssl.SSLContext:
        return self.own.client_context()

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.http_url}{path}", timeout=30, context=self.context()) as answer:
            return json.load(answer)

    def is_ready(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.http_url}/readyz", timeout=1, context=self.context()) as answer,
        ):
            return answer.status == 200 and self._answers_kafka()
        return False

    def _answers_kafka(self) -> bool:
        with (
            socket.create_connection(("127.0.0.1", self.kafka_port), timeout=1) as plain,
            self.context().wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            secured.sendall(api_versions())
            return read_response(secured) is not None
