"""Topics and messages from the command line, against a real node."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.exits import Exit

_numbers = count()


@pytest.fixture
def topic(node: Any) -> Iterator[str]:
    name = f"topic-{next(_numbers)}"
    assert node.run("topic", "create", name, "--partitions", 2).returncode == Exit.OK
    yield name
    node.run("topic", "delete", name, "--yes", "--if-exists")


def json_lines(result: subprocess.CompletedProcess[bytes]) -> list[Any]:
    assert result.returncode == Exit.OK, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def consumed(node: Any, *args: object) -> list[tuple[object, object]]:
    return [(message["key"], message["value"]) for message in json_lines(node.run("consume", *args))]


# -- topics ------------------------------------------------------------------------------------------------------------


def test_a_topic_lives_and_dies(node: Any) -> None:
    [made] = json_lines(node.run("topic", "create", "life", "-p", 2, "-c", "retention.ms=60000"))
    assert (made["name"], made["partitions"], made["configs"]) == ("life", 2, {"retention.ms": "60000"})
    assert "life" in [found["name"] for found in json_lines(node.run("topic", "list"))]
    [changed] = json_lines(node.run("topic", "alter", "life", "-c", "segment.bytes=1048576", "--unset", "retention.ms"))
    assert changed["configs"] == {"segment.bytes": "1048576"}
    [grown] = json_lines(node.run("topic", "add-partitions", "life", 5))
    assert grown["partitions"] == 5
    [described] = json_lines(node.run("topic", "describe", "life"))
    assert [found["partition"] for found in described["partition_details"]] == [0, 1, 2, 3, 4]
    assert node.run("topic", "delete", "life", "--yes").returncode == Exit.OK
    assert node.run("topic", "describe", "life").returncode == Exit.NOT_FOUND


def test_tables_are_plain_columns_without_a_terminal(node: Any, topic: str) -> None:
    listed = node.run("topic", "list", "-o", "table").stdout.decode()
    assert listed.splitlines()[0].split() == ["TOPIC", "PARTITIONS", "REPLICATION", "MESSAGES", "BYTES"]
    described = node.run("topic", "describe", topic, "-o", "table").stdout.decode()
    assert "retention.ms" in described
    assert "\x1b" not in listed + described


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("topic", "describe", "nowhere"), Exit.NOT_FOUND, "There is no topic 'nowhere'"),
        (("topic", "delete", "nowhere", "--yes"), Exit.NOT_FOUND, "There is no topic 'nowhere'"),
        (("topic", "delete", "nowhere", "--yes", "--if-exists"), Exit.OK, ""),
        (("topic", "delete", "nowhere"), Exit.USAGE, "pass --yes"),
        (("topic", "create", "a b"), Exit.USAGE, "not allowed"),
        (("topic", "create", "x", "-c", "retention.mss=1"), Exit.USAGE, "Did you mean 'retention.ms'?"),
        (("topic", "create", "x", "-c", "retention"), Exit.USAGE, "is not KEY=VALUE"),
        (("topic", "create", "x", "-p", "0"), Exit.USAGE, "--partitions"),
        (("topic", "create", "x", "-r", "3"), Exit.USAGE, "needs as many nodes"),
        (("topic", "alter", "x"), Exit.USAGE, "Nothing to change"),
        (("topic", "add-partitions", "nowhere", "3"), Exit.NOT_FOUND, "There is no topic"),
        (("topic", "creat", "x"), Exit.USAGE, "No such command"),
        (("consume", "nowhere"), Exit.NOT_FOUND, "There is no topic"),
        (("consume", "x", "--from", "yesterday"), Exit.USAGE, "not earliest, latest or an offset"),
        (("consume", "x", "--since", "yesterday"), Exit.USAGE, "is not a time"),
        (("consume", "x", "--since", "1h", "--from", "3"), Exit.USAGE, "exclude each other"),
        (("produce", "x", "--json", "--whole"), Exit.USAGE, "exclude each other"),
        (("produce", "x", "/nowhere"), Exit.USAGE, "does not exist"),
    ],
)
def test_exit_codes_and_messages(node: Any, args: tuple[str, ...], code: Exit, message: str) -> None:
    result = node.run(*args)
    assert (result.returncode, result.stdout) == (code, b"")
    assert message in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()


def test_creating_twice_is_a_conflict_unless_that_is_fine(node: Any, topic: str) -> None:
    assert node.run("topic", "create", topic).returncode == Exit.CONFLICT
    [found] = json_lines(node.run("topic", "create", topic, "--if-not-exists"))
    assert found["name"] == topic


# -- messages ----------------------------------------------------------------------------------------------------------


def test_lines_come_back_in_order(node: Any, topic: str) -> None:
    lines = [f"line {number}" for number in range(2_500)]
    [sent] = json_lines(node.run("produce", topic, "-p", 1, "-o", "json", stdin="\n".join(lines).encode()))
    assert sent == {
        "topic": topic,
        "messages": 2_500,
        "partitions": [{"partition": 1, "first_offset": 0, "last_offset": 2_499, "messages": 2_500}],
    }
    assert node.run("consume", topic, "-o", "value").stdout.decode().splitlines() == lines


def test_keys_headers_and_bytes_come_back(node: Any, topic: str) -> None:
    node.run("produce", topic, "-K", ": ", "-H", "source=test", stdin=b"k1: v: 1\nk2: \n")
    node.run("produce", topic, "-k", "k3", stdin=b"\xff\xfe\n")
    messages = {message["key"]: message for message in json_lines(node.run("consume", topic))}
    assert (messages["k1"]["value"], messages["k1"]["headers"]) == ("v: 1", {"source": "test"})
    assert messages["k2"]["value"] == ""
    assert base64.b64decode(messages["k3"]["value_base64"]) == b"\xff\xfe"
    assert b"\xff\xfe\n" in node.run("consume", topic, "-o", "value").stdout


def test_a_key_keeps_its_partition_and_order(node: Any, topic: str) -> None:
    lines = "\n".join(f"key{number % 7}:{number}" for number in range(200))
    node.run("produce", topic, "-K", ":", stdin=lines.encode())
    by_key: dict[object, list[int]] = {}
    places: dict[object, set[int]] = {}
    for message in json_lines(node.run("consume", topic)):
        by_key.setdefault(message["key"], []).append(int(message["value"]))
        places.setdefault(message["key"], set()).add(message["partition"])
    assert all(values == sorted(values) for values in by_key.values())
    assert sum(map(len, by_key.values())) == 200
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 2


def test_what_consume_writes_produce_reads(node: Any, topic: str) -> None:
    node.run("produce", topic, "-K", ":", "-H", "a=b", stdin=b"k:v\nl:w\n")
    node.run("produce", topic, stdin=b"\xff\n")
    copied = node.run("consume", topic).stdout
    assert node.run("topic", "create", f"{topic}-copy", "-p", 2).returncode == Exit.OK
    assert node.run("produce", f"{topic}-copy", "--json", stdin=copied).returncode == Exit.OK
    kept = [{**message, "topic": ""} for message in json_lines(node.run("consume", topic))]
    assert [{**message, "topic": ""} for message in json_lines(node.run("consume", f"{topic}-copy"))] == kept


def test_files_are_read_in_turn_or_whole(node: Any, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3")
    node.run("produce", topic, "-p", 0, tmp_path / "a", "-", tmp_path / "b", stdin=b"x\n")
    node.run("produce", topic, "-p", 0, "--whole", tmp_path / "a")
    assert [value for _, value in consumed(node, topic)] == ["1", "2", "x", "3", "1\n2\n"]


@pytest.mark.parametrize(
    ("args", "line", "reason"),
    [
        (("--json",), b"{", "standard input, line 2, is not JSON"),
        (("--json",), b"3", "line 2, is not a JSON object"),
        (("--json",), b'{"value": "v", "kee": "k"}', "unknown member 'kee'"),
        (("-K", ":"), b"nothing", "has no ':' between key and value"),
    ],
)
def test_a_bad_line_is_named(node: Any, topic: str, args: tuple[str, ...], line: bytes, reason: str) -> None:
    good = b'{"value": "v"}' if "--json" in args else b"k:v"
    result = node.run("produce", topic, *args, stdin=good + b"\n" + line + b"\n")
    assert result.returncode == Exit.FAILURE
    assert reason in result.stderr.decode()
    assert "Nothing was stored." in result.stderr.decode()


def test_a_message_that_is_too_large_is_refused(node: Any, topic: str) -> None:
    result = node.run("produce", topic, stdin=b"x" * (2 << 20))
    assert result.returncode == Exit.FAILURE
    assert "max.message.bytes" in result.stderr.decode()


def test_reading_starts_where_it_is_told_to(node: Any, topic: str) -> None:
    node.run("produce", topic, "-p", 0, stdin=b"\n".join(b"%d" % number for number in range(10)))

    def values(*args: object) -> list[object]:
        return [value for _, value in consumed(node, topic, *args)]

    assert values("--from", "earliest", "--max", 2) == ["0", "1"]
    assert values("--from", 7) == ["7", "8", "9"]
    assert values("--from", "-2") == ["8", "9"]
    assert values("--from", "latest") == []
    assert values("--max", 0) == []
    assert values("-p", 1) == []
    assert node.run("consume", topic, "-p", 0, "--from", 11).returncode == Exit.USAGE
    assert node.run("consume", topic, "-p", 2).returncode == Exit.NOT_FOUND


def test_reading_starts_at_a_time(node: Any, topic: str) -> None:
    node.run("topic", "alter", topic, "-c", "retention.ms=-1")  # these are old: retention would take them
    lines = [
        json.dumps({"value": str(hour), "partition": hour % 2, "timestamp": f"2025-01-31T{hour:02}:00:00Z"})
        for hour in range(24)
    ]
    node.run("produce", topic, "--json", stdin="\n".join(lines).encode())
    late = consumed(node, topic, "--since", "2025-01-31T20:30:00Z")
    assert [value for _, value in late] == ["21", "22", "23"]
    assert [value for _, value in consumed(node, topic)] == [str(hour) for hour in range(24)]
    assert consumed(node, topic, "--since", "1h") == []
    epoch_ms = int(datetime(2025, 1, 31, 23, tzinfo=UTC).timestamp() * 1000)
    assert [value for _, value in consumed(node, topic, "--since", epoch_ms)] == ["23"]


def start_consume(node: Any, *args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "consume", *map(str, args), "--url", node.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell has its background jobs ignore this signal, and they hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize("partition", [(), ("-p", "0")])
def test_following_shows_messages_as_they_come_until_interrupted(
    node: Any, topic: str, partition: tuple[str, ...]
) -> None:
    node.run("produce", topic, "-p", 0, stdin=b"before\n")
    reader = start_consume(node, topic, "--follow", "--from", "earliest", "-o", "value", *partition)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"before\n"
    node.run("produce", topic, "-p", 0, stdin=b"after\n")
    assert reader.stdout.readline() == b"after\n"
    time.sleep(0.1)  # into its next wait, which the signal must break
    reader.send_signal(signal.SIGINT)
    _, errors = reader.communicate(timeout=60)
    assert (reader.returncode, errors) == (Exit.OK, b"")


def test_following_finds_new_partitions(node: Any, topic: str) -> None:
    reader = start_consume(node, topic, "--follow", "--from", "earliest", "-o", "value", "--max", "2")
    node.run("produce", topic, stdin=b"old\n")
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"old\n"
    node.run("topic", "add-partitions", topic, 3)
    node.run("produce", topic, "-p", 2, stdin=b"new\n")
    output, _ = reader.communicate(timeout=60)
    assert (reader.returncode, output) == (Exit.OK, b"new\n")


def test_a_reader_that_has_seen_enough_is_no_error(node: Any, topic: str) -> None:
    node.run("produce", topic, stdin=b"\n".join(b"x" * 100 for _ in range(20_000)))
    script = f"set -o pipefail; {sys.executable} -m penstock consume {topic} --url {node.url} | head -n 1"
    result = subprocess.run(["bash", "-c", script], capture_output=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (Exit.OK, b"")
    assert result.stdout.count(b"\n") == 1


def test_messages_cannot_play_tricks_on_a_terminal(node: Any, topic: str) -> None:
    node.run("produce", topic, stdin=b"\x1b[31mred\x07\n")
    shown = node.run("consume", topic, "-o", "text").stdout
    assert b"\x1b" not in shown
    assert rb"\x1b[31mred\x07" in shown


# -- no node there -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("topic", "list"), ("consume", "x"), ("produce", "x")])
def test_an_unreachable_node_has_its_own_exit_code(command: Any, args: tuple[str, ...]) -> None:
    result = command(*args, "--url", "http://127.0.0.1:1", stdin=b"x\n")
    assert (result.returncode, result.stdout) == (Exit.UNAVAILABLE, b"")
    assert "Cannot reach a node at http://127.0.0.1:1" in result.stderr.decode()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999"])
def test_a_url_that_is_none_is_wrong_usage(command: Any, url: str) -> None:
    result = command("topic", "list", "--url", url)
    assert result.returncode == Exit.USAGE
    assert "Traceback" not in result.stderr.decode()
