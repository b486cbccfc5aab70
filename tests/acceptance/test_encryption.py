"""Encryption at rest, on real nodes: nothing readable on disk, keys checked and rotated, damage found."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
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
