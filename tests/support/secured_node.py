"""A node as `penstock secure init` sets it up, as a process of its own, and its admin."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.node import Node, penstock_command


def penstock(*arguments: str | Path, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """One command, with a configuration directory of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [penstock_command(), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        env={**inherited, "XDG_CONFIG_HOME": str(home)},
        timeout=120,
        check=False,
    )


class SecuredNode(Node):
    """The first node of a secured cluster."""

    def __init__(self, directory: Path, node_id: int = 1) -> None:
        super().__init__(directory, node_id=node_id)
        self.secure = directory / "secure"
        self.home = directory / "home"
        self._make()
        self.data_dir = self.secure / "data"
        self.arguments = ("--config", str(self.secure / "penstock.yaml"))
        user, self.password = (self.admin_directory / "admin.credentials").read_text().splitlines()
        assert user == "admin"
        self.token = (self.admin_directory / "admin.token").read_text().strip()

    def _make(self) -> None:
        made = penstock("secure", "init", self.secure, home=self.home)
        assert made.returncode == 0, made.stderr

    @property
    def admin_directory(self) -> Path:
        """Where the admin's credentials are."""
        return self.secure

    @property
    def http_url(self) -> str:
        return f"https://127.0.0.1:{self.http_port}"

    @property
    def ca(self) -> str:
        return str(self.secure / "ca.pem")

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.http_url}/readyz", timeout=1, context=self.context()) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def call(self, method: str, path: str, body: object = None, *, token: str | None = None) -> tuple[int, Any]:
        """A REST call by its status and answer; as the admin unless a token is given, and as no one with ''."""
        token = self.token if token is None else token
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.http_url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context()) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.loads(refusal.read() or b"null")

    def cli(self, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return penstock(*arguments, home=self.home, stdin=stdin)

    def sasl(self, mechanism: str, user: str, password: str) -> dict[str, str | int]:
        """librdkafka's settings to log in with a password."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def certificate(self, name: str) -> dict[str, str | int]:
        """librdkafka's settings to log in with a certificate."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": str(self.secure / f"{name}.pem"),
            "ssl.key.location": str(self.secure / f"{name}.key"),
        }


def eventually(check: Any, patience_s: float = 30.0) -> None:
    """Wait until a check holds; its own error if it never does."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


Settings = Mapping[str, "str | int"]
