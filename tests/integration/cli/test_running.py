"""A node as a process: how it starts, why it does not, how it stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.cli.exits import Exit

# Processor time, which a busy neighbour stretches by little: about 1 s, and 3 s where every module has to be compiled.
START_CPU_S_MAX = 6.0
IDLE_MB_MAX = 80.0


def test_a_node_starts_fast_and_small(start_node: Any) -> None:
    node = start_node()
    time.sleep(0.2)
    process = psutil.Process(node.process.pid)
    cpu_s = sum(process.cpu_times()[:2])
    rss_mb = process.memory_info().rss / 1e6
    print(f"\nstart to ready {node.ready_s * 1000:.0f} ms, {cpu_s:.1f} s of work, idle {rss_mb:.1f} MB resident")
    assert cpu_s < START_CPU_S_MAX
    assert rss_mb < IDLE_MB_MAX


def test_sigterm_stops_in_good_order_and_data_stays(start_node: Any) -> None:
    node = start_node()
    node.run("topic", "create", "kept", "-p", 1)
    node.run("produce", "kept", stdin=b"1\n2\n")
    assert node.stop() == Exit.OK
    index = node.data_dir / "logs" / "kept" / "0" / "00000000000000000000.index"
    assert index.exists(), "a clean stop leaves the index that spares the next start a scan"
    again = start_node(data_dir=node.data_dir)
    assert again.run("consume", "kept", "-o", "value").stdout == b"1\n2\n"
    assert again.stop(signal.SIGINT) == Exit.OK


def test_logs_are_json_lines_with_fields(start_node: Any) -> None:
    node = start_node()
    node.stop()
    records = [json.loads(line) for line in node.log.read_text().splitlines()]
    ready = next(record for record in records if record["message"] == "Penstock is ready.")
    assert (ready["level"], ready["node_id"], ready["kafka"]) == ("info", 1, f"127.0.0.1:{node.kafka_port}")
    assert ready["ts"].endswith("Z")
    assert records[-1]["message"] == "Stopped."


def test_settings_reach_the_node(start_node: Any, tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("defaults: {topic: {partitions: 7, retention_ms: 2h}}\n")
    environ = {"PENSTOCK_DEFAULTS__TOPIC__RETENTION_BYTES": "5MiB", "PENSTOCK_LOGGING__FORMAT": "text"}
    node = start_node("--set", "storage.segment_bytes=1MiB", **environ)
    detail = json.loads(node.run("topic", "create", "t").stdout)
    assert detail["partitions"] == 7
    assert detail["settings"]["retention.ms"] == "7200000"
    assert detail["settings"]["retention.bytes"] == str(5 << 20)
    assert detail["settings"]["segment.bytes"] == str(1 << 20)
    assert "INFO" in node.log.read_text()


def test_port_zero_takes_a_free_port(start_node: Any) -> None:
    node = start_node("--kafka", "127.0.0.1:0")
    wait_for(lambda: "Penstock is ready." in node.log.read_text())
    records = [json.loads(line) for line in node.log.read_text().splitlines()]
    ready = next(record for record in records if record["message"] == "Penstock is ready.")
    port = int(ready["kafka"].rpartition(":")[2])
    assert port > 0
    socket.create_connection(("127.0.0.1", port), 30).close()


def test_dev_greets_and_has_a_sample_topic(start_node: Any) -> None:
    node = start_node(command="dev")
    wait_for(lambda: "In another terminal" in node.log.read_text())
    greeting = node.log.read_text()
    assert f"127.0.0.1:{node.kafka_port}" in greeting
    assert f"penstock consume hello --url {node.url}" in greeting
    messages = [json.loads(line) for line in node.run("consume", "hello").stdout.splitlines()]
    assert len(messages) == 3
    assert node.stop(signal.SIGINT) == Exit.OK
    again = start_node(command="dev", data_dir=node.data_dir)
    wait_for(lambda: "In another terminal" in again.log.read_text())
    assert len(again.run("consume", "hello").stdout.splitlines()) == 3, "the sample is made once"


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- why a node does not start -----------------------------------------------------------------------------------------


def refused(result: subprocess.CompletedProcess[bytes], *parts: str, code: Exit = Exit.FAILURE) -> None:
    message = result.stderr.decode()
    assert result.returncode == code, message
    assert "Traceback" not in message
    for part in parts:
        assert part in message


def test_a_port_in_use_is_told_before_anything_is_opened(command: Any, tmp_path: Path) -> None:
    doors = ("--kafka", "--http", "--grpc", "--internal")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for door in doors:
            others = [argument for each in doors if each != door for argument in (each, "127.0.0.1:0")]
            result = command("serve", "--data-dir", tmp_path / "d", door, address, *others)
            refused(result, address, "in use", door, f"broker.{door[2:]}")
            assert not list(tmp_path.glob("d/logs/*")), "nothing was opened"


def test_a_data_directory_in_use_is_told(command: Any, start_node: Any) -> None:
    node = start_node()
    result = command("serve", "--data-dir", node.data_dir, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")
    refused(result, "Another process is using the data directory", "--data-dir")
    assert node.process.poll() is None


def test_a_data_directory_of_another_node_is_told(command: Any, start_node: Any) -> None:
    node = start_node()
    node.stop()
    result = command(
        "serve", "--data-dir", node.data_dir, "--node-id", 2, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"
    )
    refused(result, "belongs to node 1, not to node 2", "--node-id 1")


def test_a_data_directory_that_is_a_file_is_told(command: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(command("serve", "--data-dir", tmp_path / "file"), "cannot be used", "--data-dir")


def test_a_read_only_disk_is_told(command: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs to mount a read-only file system")
    try:
        refused(command("serve", "--data-dir", disk), "Read-only file system", "Make it writable")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_address_of_another_machine_is_told(command: Any, tmp_path: Path) -> None:
    serve = ("serve", "--data-dir", tmp_path / "d", "--kafka", "192.0.2.1:9092")
    refused(command(*serve, "--set", "security.insecure=true"), "192.0.2.1:9092", "--kafka")


def test_a_node_without_security_does_not_listen_to_other_machines(command: Any, tmp_path: Path) -> None:
    serve = ("serve", "--data-dir", tmp_path / "d", "--kafka", "0.0.0.0:0", "--http", "127.0.0.1:0")
    refused(command(*serve), "security.enabled", "penstock secure init", "security.insecure", code=Exit.USAGE)


def test_wrong_settings_are_told(command: Any, tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("storage:\n  fsnc: every\nbroker:\n  node_id: x\n")
    result = command("serve", cwd=tmp_path)
    refused(result, "penstock.yaml:2: storage.fsnc", "'fsync'", "penstock.yaml:4: broker.node_id", code=Exit.USAGE)
    refused(command("serve", "--config", "nowhere.yaml", cwd=tmp_path), "nowhere.yaml", code=Exit.USAGE)
    refused(command("serve", cwd=tmp_path, PENSTOCK_BROKER__DATADIR="x"), "PENSTOCK_BROKER__DATA_DIR", code=Exit.USAGE)


# -- the command itself ------------------------------------------------------------------------------------------------


def test_help_costs_no_more_than_click(command: Any) -> None:
    def seconds() -> float:
        before = time.perf_counter()
        assert command("--help").returncode == Exit.OK
        return time.perf_counter() - before

    fastest = min(seconds() for _ in range(5))
    print(f"\npenstock --help: {fastest * 1000:.0f} ms")
    report = command("--help", PYTHONPROFILEIMPORTTIME="1").stderr.decode()
    imported = {line.rpartition("|")[2].strip() for line in report.splitlines()}
    assert "click" in imported
    assert not imported & {"msgspec", "rich", "asyncio", "uvloop", "yaml", "http.client", "penstock.node"}


def test_version(command: Any) -> None:
    from penstock import __version__

    assert command("--version").stdout.decode() == f"penstock {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(command: Any, shell: str) -> None:
    assert b"_PENSTOCK_COMPLETE" in command("completion", shell).stdout


def test_completion_knows_the_commands(command: Any) -> None:
    environ = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock topic de", "COMP_CWORD": "2"}
    result = command(**environ)
    assert result.stdout.decode().split() == ["plain,delete", "plain,describe"]
