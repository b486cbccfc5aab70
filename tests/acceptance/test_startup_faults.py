"""A node that cannot start says why, in one sentence, and ends; it harms nothing."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import Message
from tests.support.disk import Disk, can_mount
from tests.support.node import Node

from penstock.storage.state_files import decode_checked, encode_checked


def refusal_of(node: Node) -> str:
    """What the node says when it does not start."""
    before = len(node.log_text)
    node.launch()
    assert node.wait_for_exit() == 1
    said = node.log_text[before:]
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("door", ["kafka", "http"])
def test_a_port_in_use_is_named(make_node: NodeMaker, door: str) -> None:
    node = make_node()
    port = node.kafka_port if door == "kafka" else node.http_port
    with socket.create_server(("127.0.0.1", port)):
        said = refusal_of(node)
    assert f"127.0.0.1:{port}" in said
    assert f"--{door}" in said
    with node:
        assert node.is_ready(), "a failed start leaves nothing behind that hinders the next"


def test_a_data_directory_of_another_node_is_refused(make_node: NodeMaker) -> None:
    node = make_node().start()
    node.stop()
    said = refusal_of(make_node(data_dir=node.data_dir, node_id=2))
    assert "belongs to node 1" in said
    node.restart()


def test_a_data_directory_of_another_version_is_refused(make_node: NodeMaker) -> None:
    node = make_node().start()
    node.stop()
    identity = node.data_dir / "node"
    body = decode_checked(identity.read_bytes())
    assert body is not None
    identity.write_bytes(encode_checked(msgspec.json.encode(msgspec.json.decode(body) | {"format_version": 99})))
    assert "format 99" in refusal_of(node)


def test_a_damaged_identity_is_refused(make_node: NodeMaker) -> None:
    node = make_node().start()
    node.stop()
    identity = node.data_dir / "node"
    identity.write_bytes(identity.read_bytes()[:-5])
    assert "damaged" in refusal_of(node)


def test_a_second_process_on_the_same_directory_is_refused_and_the_first_goes_on(
    make_node: NodeMaker, topic: str
) -> None:
    first = make_node().start()
    assert "Another process is using" in refusal_of(make_node(data_dir=first.data_dir))
    assert ConfluentClient(first.bootstrap).produce(topic, [Message(b"still here")]) == [0]


def test_a_data_directory_that_is_a_file_is_refused(make_node: NodeMaker, tmp_path: Path) -> None:
    path = tmp_path / "a-file"
    path.write_text("not a directory")
    assert str(path) in refusal_of(make_node(data_dir=path))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if not can_mount():
        pytest.skip("this needs the right to mount a file system")
    with Disk(tmp_path / "disk", size_mb=8) as mounted:
        yield mounted


def test_a_read_only_data_directory_is_refused(make_node: NodeMaker, disk: Disk) -> None:
    disk.make_read_only()
    said = refusal_of(make_node(data_dir=disk.path / "data"))
    assert "Read-only file system" in said
    assert "--data-dir" in said


def test_a_data_directory_that_became_read_only_is_refused(make_node: NodeMaker, disk: Disk) -> None:
    node = make_node(data_dir=disk.path / "data").start()
    node.stop()
    disk.make_read_only()
    assert "Read-only file system" in refusal_of(node)


@pytest.mark.parametrize("flags", [["--kafka", "nonsense"], ["--node-id", "-4"], ["--no-such-flag"]])
def test_flags_that_make_no_sense_are_refused_before_anything_is_touched(tmp_path: Path, flags: list[str]) -> None:
    from tests.support.node import penstock_command

    command = [penstock_command(), "serve", "--data-dir", str(tmp_path / "data"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
