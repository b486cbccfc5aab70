"""Encryption at rest, on real nodes: nothing readable on disk, keys checked and rotated, damage found."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import Message
from tests.support.cluster import eventually
from tests.support.ledger import read_partition
from tests.support.node import Node, penstock_command

CANARY = b"canary-7c1f0e9b-do-not-find-me"


def _keys(path: Path, *versions: int) -> Path:
    lines = [f"{version}:{base64.b64encode(bytes([version]) * 32).decode()}\n" for version in versions]
    path.write_text("".join(lines))
    return path


def _encrypted(make_node: NodeMaker, tmp_path: Path, **settings: object) -> Node:
    return make_node(security__encryption__master_key_file=_keys(tmp_path / "keys", 1), **settings)


def _holding(directory: Path, needle: bytes) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()]


def _publish_everywhere(node: Node, topic: str) -> None:
    """The canary as key, value and header, in a queue with a group, and in a schedule for later."""
    client = ConfluentClient(node.bootstrap)
    client.create_topic(topic)
    client.produce(topic, [Message(CANARY, key=CANARY, headers=(("canary", CANARY),))])
    text = CANARY.decode()
    with httpx.Client(base_url=node.http_url, timeout=60) as http:
        received = http.post(f"/v1/queues/{topic}/receive", json={"group": "workers", "wait_ms": 1000})
        assert received.status_code == 200, received.text
        later = {"topic": topic, "key": text, "value": text, "delay_ms": 3_600_000}
        scheduled = http.post("/v1/schedules", json=later)
        assert scheduled.status_code in (200, 201), scheduled.text


def test_nothing_of_a_message_is_readable_on_disk(make_node: NodeMaker, tmp_path: Path, topic: str) -> None:
    node = _encrypted(make_node, tmp_path).start()
    _publish_everywhere(node, topic)
    assert node.stop() == 0
    assert _holding(node.data_dir, CANARY) == []
    assert _holding(node.data_dir, base64.b64encode(CANARY).rstrip(b"=")) == []
    node.start()
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == [CANARY]


def _snapshot(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("keys", ["none", "another", "older"])
def test_a_wrong_or_missing_key_is_refused_and_changes_nothing(
    make_node: NodeMaker, tmp_path: Path, topic: str, keys: str
) -> None:
    node = _encrypted(make_node, tmp_path).start()
    ConfluentClient(node.bootstrap).produce(topic, [Message(b"kept")])
    node.stop()
    before = _snapshot(node.data_dir)
    right = (tmp_path / "keys").read_text()
    if keys == "none":
        node.settings = {}
    else:
        version = 1 if keys == "another" else 7
        (tmp_path / "keys").write_text(f"{version}:{base64.b64encode(os.urandom(32)).decode()}")
    node.launch()
    assert node.wait_for_exit() != 0
    assert "aster key 1" in node.log_text
    assert _snapshot(node.data_dir) == before
    (tmp_path / "keys").write_text(right)
    node.settings = {"security__encryption__master_key_file": tmp_path / "keys"}
    node.start()
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == [b"kept"]


def _key_status(node: Node) -> str:
    done = subprocess.run(
        [penstock_command(), "secure", "keys", "status", "--data-dir", str(node.data_dir), "-o", "json"],
        capture_output=True,
        check=True,
        timeout=120,
    )
    return done.stdout.decode()


def test_a_plain_directory_goes_on_encrypted_and_an_encrypted_one_plain(
    make_node: NodeMaker, tmp_path: Path, topic: str
) -> None:
    node = make_node(storage__segment_bytes=4096).start()
    client = ConfluentClient(node.bootstrap)
    client.create_topic(topic)
    values = [b"record %d " % number + b"." * 300 for number in range(90)]
    client.produce(topic, [Message(value) for value in values[:30]], batch_messages=5)
    node.stop()
    key = {"security__encryption__master_key_file": _keys(tmp_path / "keys", 1), "storage__segment_bytes": 4096}
    node.settings = key
    node.start()
    ConfluentClient(node.bootstrap).produce(topic, [Message(value) for value in values[30:60]], batch_messages=5)
    node.stop()
    assert _holding(node.data_dir, b"record 1 ")
    assert not _holding(node.data_dir, b"record 59 ")
    node.settings = {**key, "security__encryption__enabled": "false"}
    node.start()
    ConfluentClient(node.bootstrap).produce(topic, [Message(value) for value in values[60:]], batch_messages=5)
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == values
    node.stop()
    assert _holding(node.data_dir, b"record 89 ")


def test_a_running_node_rotates_its_keys_and_needs_the_old_one_no_more(
    make_node: NodeMaker, tmp_path: Path, topic: str
) -> None:
    node = _encrypted(make_node, tmp_path).start()
    client = ConfluentClient(node.bootstrap)
    client.produce(topic, [Message(b"before")])
    assert '"versions":[1]' in _key_status(node).replace(" ", "")
    _keys(tmp_path / "keys", 1, 2)
    assert node.pid is not None
    os.kill(node.pid, signal.SIGHUP)
    eventually(lambda: "The keys are rotated" in node.log_text)
    client.produce(topic, [Message(b"after")])
    assert '"versions":[2]' in _key_status(node).replace(" ", "")
    node.kill()
    _keys(tmp_path / "keys", 2)
    node.start()
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == [b"before", b"after"]


def test_a_running_node_rotates_when_it_is_asked_and_tells_the_versions(
    make_node: NodeMaker, tmp_path: Path, topic: str
) -> None:
    node = _encrypted(make_node, tmp_path).start()
    client = ConfluentClient(node.bootstrap)
    client.produce(topic, [Message(b"before")])
    with httpx.Client(base_url=node.http_url, timeout=60) as http:
        told = {"node_id": 1, "encrypting": True, "version": 1, "versions": [1]}
        assert http.get("/v1/security/keys").json() == told
        _keys(tmp_path / "keys", 2)
        refused = http.post("/v1/security/keys/rotate")
        assert (refused.status_code, refused.json()["code"]) == (409, "keys_not_rotated")
        assert "aster key 1" in refused.json()["detail"]
        _keys(tmp_path / "keys", 1, 2)
        done = http.post("/v1/security/keys/rotate").json()
        assert (done["version"], done["versions"]) == (2, [2])
        assert done["rewrapped"] > 3
        assert http.get("/v1/security/keys").json() == told | {"version": 2, "versions": [2]}
    client.produce(topic, [Message(b"after")])
    node.kill()
    _keys(tmp_path / "keys", 2)
    node.start()
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == [b"before", b"after"]


def _penstock(*args: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [penstock_command(), *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | environ,
    )


def test_keys_from_a_variable_or_a_command_are_rotated_while_no_node_runs(
    make_node: NodeMaker, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEYS", _keys(tmp_path / "keys", 1).read_text())
    node = make_node(security__encryption__master_key_env="SOME_KEYS").start()
    ConfluentClient(node.bootstrap).produce(topic, [Message(b"kept")])
    rotate = ("secure", "keys", "rotate", "--data-dir", node.data_dir)
    in_use = _penstock(*rotate, "--master-key-env", "SOME_KEYS")
    assert in_use.returncode != 0
    assert "A node uses this directory" in in_use.stderr
    node.stop()
    by_variable = _penstock(*rotate, "--master-key-env", "SOME_KEYS", SOME_KEYS=_keys(tmp_path / "k", 1, 2).read_text())
    assert by_variable.returncode == 0, by_variable.stderr
    assert "In use: 2." in by_variable.stdout
    by_command = _penstock(*rotate, "--master-key-command", f"cat {_keys(tmp_path / 'k', 2, 3)}")
    assert by_command.returncode == 0, by_command.stderr
    assert "In use: 3." in by_command.stdout
    refused = _penstock(*rotate, "--master-key-env", "SOME_KEYS")
    assert refused.returncode != 0
    assert "aster key 3" in refused.stderr
    node.settings = {"security__encryption__master_key_command": f"cat {_keys(tmp_path / 'k', 3)}"}
    node.start()
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == [b"kept"]


def test_encrypted_logs_are_inspected_with_their_key_and_left_as_they_are(
    make_node: NodeMaker, tmp_path: Path, topic: str
) -> None:
    node = _encrypted(make_node, tmp_path).start()
    ConfluentClient(node.bootstrap).produce(topic, [Message(CANARY)])
    node.stop()
    before = _snapshot(node.data_dir)
    inspect = ("log", "inspect", node.partition_dir(topic), "--records", "-o", "json")
    without = _penstock(*inspect)
    assert without.returncode != 0
    assert "is encrypted" in without.stderr
    config = tmp_path / "node.yaml"
    config.write_text(f"security:\n  encryption:\n    master_key_file: {tmp_path / 'keys'}\n")
    for option, value in (("--master-key-file", tmp_path / "keys"), ("--config", config)):
        shown = _penstock(*inspect, option, value)
        assert shown.returncode == 0, shown.stderr
        assert CANARY.decode() in shown.stdout
    verified = _penstock("log", "inspect", node.data_dir, "--verify", "--master-key-file", tmp_path / "keys")
    assert verified.returncode == 0, verified.stderr
    wrong = _penstock(*inspect, "--master-key-file", _keys(tmp_path / "others", 2))
    assert wrong.returncode != 0
    assert "master key 1" in wrong.stderr
    assert _snapshot(node.data_dir) == before


def test_the_keys_of_a_plain_directory_are_told_without_cryptography(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("plain")
    code = (
        "import sys; sys.modules['cryptography'] = None; sys.argv[0] = 'penstock'\n"
        "from penstock.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "secure", "keys", "status", "--data-dir", str(tmp_path), "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert '"plain_files":1' in done.stdout.replace(" ", "")


def test_a_flipped_bit_is_found_and_only_what_it_hit_is_lost(make_node: NodeMaker, tmp_path: Path, topic: str) -> None:
    node = _encrypted(make_node, tmp_path, storage__segment_bytes=65536).start()
    client = ConfluentClient(node.bootstrap)
    client.create_topic(topic)
    values = [b"record %d " % number + b"." * 300 for number in range(400)]
    client.produce(topic, [Message(value) for value in values], batch_messages=20)
    node.stop()
    segment = min(node.partition_dir(topic).glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[20_000] ^= 1
    segment.write_bytes(data)
    node.start()
    found = [value for _, value in read_partition(node.bootstrap, topic, 0)]
    assert set(found) < set(values)
    assert len(found) == len(values) - 20  # one batch
    assert "is corrupt in bytes" in node.log_text
