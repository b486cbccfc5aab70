"""Security on real nodes: every node knows who calls, whichever node serves; the command line; and no open node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.cluster import Cluster, eventually
from tests.support.node import Node, free_port, penstock_command

from penstock.access import api_keys
from penstock.access.scram import ScramMechanism, derive
from penstock.secure.bootstrap import Bootstrap

PASSWORD = "the first password"


def bootstrap() -> Bootstrap:
    """The first user, as `penstock secure init` writes it."""
    key_id, _, secret_hash = api_keys.make_text(b"i" * api_keys.ID_BYTES, b"s" * api_keys.SECRET_BYTES)
    return Bootstrap(
        user="root",
        credentials=tuple(derive(mechanism, PASSWORD, b"salt" * 4) for mechanism in ScramMechanism),
        key=api_keys.ApiKey(key_id=key_id, principal="User:root", secret_hash=secret_hash, created_ms=0),
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("secure")
    (directory / "bootstrap").write_bytes(bootstrap().encode())
    settings = {
        "security__enabled": "true",
        "security__super_users": "User:root",
        "security__bootstrap_file": directory / "bootstrap",
        "cluster__token": "a token of the cluster",
    }
    with Cluster(directory, 3, **settings) as running:
        yield running


def client(cluster: Cluster, number: int, user: str | None = "root", password: str = PASSWORD) -> httpx.Client:
    auth = None if user is None else (user, password)
    return httpx.Client(base_url=cluster.nodes[number].http_url, auth=auth, timeout=60, verify=False)


def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        check=False,
        timeout=120,
        env={**inherited, **environment, "NO_COLOR": "1"},
    )


def test_every_node_knows_who_calls_wherever_it_is_served(cluster: Cluster) -> None:
    root = client(cluster, 1)
    root.put("/v1/users/alice", json={"password": "hers"}).raise_for_status()
    root.post("/v1/topics", json={"name": "orders", "partitions": 3}).raise_for_status()
    for resource, name in (("topic", "orders"), ("group", "mine")):
        grant = {"role": "worker", "principal": "User:alice", "resource": resource, "name": name}
        root.post("/v1/roles/grant", json=grant).raise_for_status()
    for number in cluster.nodes:
        alice = client(cluster, number, "alice", "hers")
        eventually(lambda alice=alice: alice.get("/v1/topics/orders").status_code == 200, what=f"node {number}")
        assert alice.post("/v1/topics/orders/publish", json={"value": number}).status_code == 200
        # Two of the three nodes do not coordinate the group, and hand these on.
        joined = alice.post("/v1/groups/mine/join", json={"topics": ["orders"], "wait_ms": 5_000})
        assert joined.status_code == 200, joined.text
        left = alice.post("/v1/groups/mine/leave", json={"member_id": joined.json()["member_id"]})
        assert left.status_code == 204
        assert alice.post("/v1/groups/other/join", json={"topics": ["orders"]}).status_code == 403
        assert alice.get("/v1/groups/other").status_code == 403
        assert [group["group"] for group in alice.get("/v1/groups").json()["groups"]] == ["mine"]
        assert client(cluster, number, None).get("/v1/groups/mine").status_code == 401


def test_the_command_line_logs_in_and_gives_rights(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    url = cluster.nodes[2].http_url
    root = {"PENSTOCK_URL": url, "PENSTOCK_USER": "root", "PENSTOCK_PASSWORD_FILE": str(tmp_path / "password")}
    assert run("topic", "list", PENSTOCK_URL=url).returncode == 1
    assert "User:root" in run("user", "whoami", **root).stdout
    made = run("user", "set", "bob", "--password-file", "-", stdin="bobs password\n", **root)
    assert made.returncode == 0, made.stderr
    assert run("acl", "grant", "reader", "User:bob", "topic", "bills.", "--prefixed", **root).returncode == 0
    listed = run("acl", "list", "--name", "bills.x", "--pattern", "match", "-o", "json", **root)
    assert '"principal":"User:bob"' in listed.stdout.replace(" ", "")
    issued = run("key", "issue", "User:bob", "--expires-in", "1h", "-o", "table", **root)
    (tmp_path / "key").write_text(issued.stdout)
    bob = {"PENSTOCK_URL": url, "PENSTOCK_TOKEN_FILE": str(tmp_path / "key")}
    assert "User:bob" in run("user", "whoami", **bob).stdout
    assert run("user", "list", **bob).returncode == 1
    assert run("acl", "remove", "--principal", "User:bob", "--yes", **root).returncode == 0


def test_the_files_of_the_metadata_show_no_credential_to_the_command_line(cluster: Cluster) -> None:
    metadata = cluster.nodes[1].data_dir / "metadata"
    shown = run("log", "inspect", str(metadata), "--records").stdout
    assert "CredentialSet" in shown
    assert "..." in shown
    for line in shown.splitlines():
        if "CredentialSet" in line:
            assert "stored_key" in line
            assert line.count("...") >= 3
    assert PASSWORD not in shown


def test_a_node_that_others_reach_does_not_start_without_security(tmp_path: Path) -> None:
    arguments = ["serve", "--data-dir", str(tmp_path / "data"), "--http", f"0.0.0.0:{free_port()}"]
    arguments += ["--kafka", f"127.0.0.1:{free_port()}", "--grpc", "null"]
    refused = subprocess.run([penstock_command(), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "security.enabled: is needed where other machines reach the node (broker.http" in refused.stderr
    assert "security.insecure" in refused.stderr


def test_a_node_that_is_open_on_purpose_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path, security__insecure="true", broker__advertised_http="127.0.0.1:1")
    node.arguments = ["--http", f"0.0.0.0:{node.http_port}"]
    node.start()
    try:
        assert "INSECURE: broker.http" in node.log_text
        ready = httpx.get(f"{node.http_url}/readyz").json()
        assert [finding["code"] for finding in ready["warnings"]] == ["insecure"]
    finally:
        node.kill()
