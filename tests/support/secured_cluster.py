"""Three nodes as `penstock secure init` and `penstock secure add-node` set them up, as processes, and their admin."""

from __future__ import annotations

import base64
import os
import secrets
import signal
from pathlib import Path

from tests.support.cluster import eventually
from tests.support.node import free_port
from tests.support.secured_node import SecuredNode, penstock


class SecuredMember(SecuredNode):
    """A node of a secured cluster: the first makes the authority, and the others are made by it."""

    def __init__(self, directory: Path, first: SecuredMember | None = None, node_id: int = 1) -> None:
        self.internal = f"127.0.0.1:{free_port()}"
        self.first = first or self
        super().__init__(directory, node_id=node_id)

    def _make(self) -> None:
        if self.first is self:
            made = penstock("secure", "init", self.secure, "--internal", self.internal, home=self.home)
        else:
            named = ("--node-id", str(self.node_id), "--internal", self.internal, "--join", self.first.internal)
            made = penstock("secure", "add-node", self.first.secure, self.secure, *named, home=self.home)
        assert made.returncode == 0, made.stderr

    @property
    def admin_directory(self) -> Path:
        return self.first.secure

    def rotate_certificates(self) -> None:
        """Issue them anew, and wait until the node has taken them."""
        known = self.log_text.count("new handshakes use the changed certificate")
        target = () if self.first is self else (self.secure,)
        done = self.cli("secure", "rotate", self.first.secure, *target)
        assert done.returncode == 0, done.stderr
        eventually(
            lambda: self.log_text.count("new handshakes use the changed certificate") > known,
            what=f"the new certificate of node {self.node_id}",
        )

    def rotate_master_key(self) -> None:
        """Give it a further master key, and wait until all data keys are wrapped by it."""
        path = self.secure / "master.key"
        lines = path.read_text().splitlines()
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        path.write_text("\n".join([*lines, f"{len(lines) + 1}:{key}"]) + "\n")
        known = self.log_text.count("The keys are rotated.")
        assert self.pid is not None
        os.kill(self.pid, signal.SIGHUP)
        eventually(
            lambda: self.log_text.count("The keys are rotated.") > known, what=f"new keys of node {self.node_id}"
        )


class SecuredCluster:
    """A cluster with everything on."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        first = SecuredMember(directory / "node-1")
        others = [SecuredMember(directory / f"node-{number}", first, number) for number in range(2, count + 1)]
        self.nodes = {node.node_id: node for node in (first, *others)}

    @property
    def first(self) -> SecuredMember:
        return self.nodes[1]

    @property
    def running(self) -> list[SecuredMember]:
        return [node for node in self.nodes.values() if node.is_running]

    @property
    def log_text(self) -> str:
        return "".join(node.log_text for node in self.nodes.values())

    def sasl(self, mechanism: str = "SCRAM-SHA-512") -> dict[str, str | int]:
        """librdkafka's settings for the admin, at every node."""
        bootstrap = ",".join(node.bootstrap for node in self.nodes.values())
        return {**self.first.sasl(mechanism, "admin", self.first.password), "bootstrap.servers": bootstrap}

    def leader(self, topic: str, partition: int = 0) -> int:
        status, answer = self.running[0].call("GET", f"/v1/topics/{topic}")
        assert status == 200, answer
        return int(answer["partition_details"][partition]["leader"])

    def is_in_sync(self, topic: str) -> bool:
        status, answer = self.running[0].call("GET", f"/v1/topics/{topic}")
        return status == 200 and all(len(each["in_sync"]) == 3 for each in answer["partition_details"])

    def __enter__(self) -> SecuredCluster:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.await_ready()
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.running:
            node.kill()
