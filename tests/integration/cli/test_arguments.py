"""What every command has in common: exit codes for what is wrong, completion of names, plain output where asked for."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from tests.support.cluster import eventually

from penstock.cli.exits import Exit
from penstock.cli.main import cli, run

_numbers = count()


@pytest.fixture
def topic(node: Any) -> Iterator[str]:
    name = f"arguments-{next(_numbers)}"
    assert node.run("topic", "create", name, "--partitions", 2).returncode == Exit.OK
    yield name
    node.run("topic", "delete", name, "--yes", "--if-exists")


def settled(node: Any, *words: object) -> Any:
    """What a command ends with, once the node has read the logs of its coordinators."""
    done: list[Any] = []
    eventually(lambda: done.append(node.run(*words)) or done[-1].returncode != Exit.UNAVAILABLE)
    return done[-1]


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command there is, with the words that lead to it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


ALL = dict(commands(cli))
NOWHERE = "http://127.0.0.1:1"
SAMPLES = {"shell": "bash", "place": "0:0", "expression": "@daily", "target": "nowhere:app", "total": "5"}
# What each needs beside its arguments to be a whole request.
MORE = {
    ("group", "reset"): ("--to", "earliest"),
    ("group", "delete"): ("--yes",),
    ("group", "delete-offsets"): ("--yes",),
    ("topic", "delete"): ("--yes",),
    ("topic", "alter"): ("--config", "retention.ms=1"),
    ("topic", "reassign"): ("--nodes", "1"),
    ("cluster", "remove"): ("--yes",),
    ("schedule", "add"): ("--delay", "1h"),
    ("schedule", "reschedule"): ("--delay", "1h"),
    ("dlq", "redrive"): ("--yes",),
    ("dlq", "purge"): ("--yes",),
    ("queue", "purge"): ("--yes",),
    ("queue", "seek"): ("--to", "earliest"),
    ("queue", "delete"): ("--yes",),
    ("txn", "abort"): ("--yes",),
}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_an_option_that_is_not_there_is_2(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--no-such-option"]) == Exit.USAGE
    assert "No such option" in capsys.readouterr().err


WITH_URL = [path for path, command in ALL.items() if any(each.name == "url" for each in command.params)]


def words_of(path: tuple[str, ...]) -> list[str]:
    """A command with arguments that make sense."""
    needed = [each for each in ALL[path].params if isinstance(each, click.Argument) and each.required]
    given = [SAMPLES.get(each.name or "", "1" if isinstance(each.type, click.IntRange) else "x") for each in needed]
    return [*path, *given, *MORE.get(path, ())]


@pytest.mark.parametrize("path", WITH_URL, ids=" ".join)
def test_a_node_that_is_not_there_is_5_and_a_url_that_is_none_is_2(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = tmp_path / "input"
    given.write_text("x:0:0:1:nonce\n")
    with given.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run([*words_of(path), "--url", "ftp://x"]) == Exit.USAGE, capsys.readouterr().err
        stdin.seek(0)
        assert run([*words_of(path), "--url", NOWHERE]) in {Exit.UNAVAILABLE, Exit.USAGE}, capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", "a b"),
        ("topic", "create", "t-codes", "-c", "retention.ms=soon"),
        ("topic", "alter", "TOPIC", "-c", "no.such.setting=1"),
        ("topic", "add-partitions", "TOPIC", "1"),
        ("consume", "TOPIC", "-p", "0", "--from", "999"),
        ("group", "reset", "g", "TOPIC", "--to", "999", "--yes"),
        ("schedule", "add", "TOPIC", "m", "--cron", "at noon"),
        ("schedule", "add", "TOPIC", "m", "--delay", "1h", "--id", "no blanks"),
        ("queue", "seek", "TOPIC", "--to", "999"),
        ("group", "reset", "nobody-knows-it", "TOPIC", "--to", "earliest"),
    ],
)
def test_an_argument_that_the_node_refuses_is_2(node: Any, topic: str, words: tuple[str, ...]) -> None:
    result = settled(node, *(topic if word == "TOPIC" else word for word in words))
    assert result.returncode == Exit.USAGE, result.stderr


def test_a_group_that_is_not_there_is_begun_only_if_asked_to(node: Any, topic: str) -> None:
    words = ("group", "reset", f"{topic}-new", topic, "--to", "earliest")
    refused = settled(node, *words)
    assert refused.returncode == Exit.USAGE
    assert b"There is no group" in refused.stderr
    assert b"--yes" in refused.stderr
    assert settled(node, *words, "--yes").returncode == Exit.OK
    assert node.run(*words).returncode == Exit.OK, "it is there now"


def test_lists_of_groups_tell_their_kinds_apart(node: Any, topic: str) -> None:
    node.run("produce", topic, stdin=b"1\n2\n")
    settled(node, "group", "reset", f"{topic}-k", topic, "--to", "earliest", "--yes")
    settled(node, "queue", "receive", topic, "-g", f"{topic}-q", "--ack")
    with httpx.Client(base_url=node.url, timeout=60) as rest:
        joined = rest.post(f"/v1/groups/{topic}-r/join", json={"topics": [topic]})
        assert joined.status_code == 200, joined.text
        report = {"topic": topic, "partition": 0, "offset": 1, "metadata": "spark"}
        assert rest.post(f"/v1/groups/{topic}-s/offsets", json={"offsets": [report]}).status_code == 200

        def kinds() -> dict[str, str]:
            lines = node.run("group", "list", "-o", "json").stdout.splitlines()
            return {each["group"]: each["kind"] for each in map(json.loads, lines) if each["group"].startswith(topic)}

        wanted = {f"{topic}-k": "classic", f"{topic}-r": "rest", f"{topic}-s": "spark", f"{topic}-q": "queue"}
        eventually(lambda: kinds() == wanted, what=f"{wanted}")  # what a queue has done is told a moment later
        rest.post(f"/v1/groups/{topic}-r/leave", json={"member_id": joined.json()["member_id"]})


def completed(*words: str, **more: str) -> list[str]:
    """What a shell offers behind these words, the last of them begun."""
    environ = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("penstock", *words)),
        "COMP_CWORD": str(len(words)),
        **more,
    }
    done = subprocess.run([sys.executable, "-m", "penstock"], env=environ, capture_output=True, timeout=60)
    return [line.partition(",")[2] for line in done.stdout.decode().splitlines()]


def test_a_shell_completes_names_of_topics_and_groups(node: Any, topic: str) -> None:
    settled(node, "group", "reset", f"{topic}-g", topic, "--to", "earliest", "--yes")
    offered = partial(completed, PENSTOCK_URL=node.url)
    assert offered("topic", "describe", topic) == [topic]
    assert offered("consume", topic[:-1])[-1:] == [topic]
    assert offered("group", "describe", f"{topic}-") == [f"{topic}-g"]
    assert offered("group", "reset", f"{topic}-g", topic) == [topic]


def test_a_shell_completes_from_the_node_that_the_options_name(node: Any, topic: str, tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "profiles.json").write_text(json.dumps({"here": {"url": node.url}}))
    offered = partial(completed, XDG_CONFIG_HOME=str(tmp_path), PENSTOCK_URL="")
    assert offered("topic", "describe", "--profile", "here", topic) == [topic]
    assert offered("topic", "describe", "--url", node.url, topic) == [topic]


def test_no_color_means_no_bold_either(node: Any, topic: str) -> None:
    def shown(**more: str) -> bytes:
        main, side = pty.openpty()
        words = [sys.executable, "-m", "penstock", "topic", "describe", topic, "--url", node.url]
        environ = {**{key: text for key, text in os.environ.items() if key != "NO_COLOR"}, "TERM": "xterm", **more}
        with subprocess.Popen(words, stdout=side, env=environ) as process:
            os.close(side)
            output = b""
            try:
                while piece := os.read(main, 65_536):
                    output += piece
            except OSError:  # the other side was closed
                pass
            os.close(main)
            assert process.wait(60) == 0
        return output

    assert b"\x1b[1m" in shown()
    assert b"\x1b[" not in shown(NO_COLOR="1")
