"""A page of the tutorial, taken at its word: what it tells to do is done, and what it shows must be what comes.

A page tells each step for several *doors*. A line with a door's name alone, in bold, begins what is told for that door;
a heading ends it. Blocks outside of any door are not run. In a door there are:

- ``sh``: run by bash. A ``json`` or ``text`` block behind it is what it prints. If there is none, it prints nothing.
- ``python``: run, all of a door in one module; what it prints is shown in a ``text`` block behind it.
- ``websocket NAME``: frames of one connection, ``>`` to the node and ``<`` from it; a line that begins with a blank
  goes on with the one before.

``eventually`` after ``sh`` has it run again until what is shown comes, for things that take a moment.

What is shown may leave out: ``…`` stands for any text in a string or a line, and as the last member of an object or an
array for more of it. A string of capitals such as ``"RECEIPT-A"`` stands for what is there when it is met first, and
for the same wherever it is written later.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.node import Node, penstock_command
from websockets.sync.client import ClientConnection, connect

DOORS = ("curl", "WebSocket", "gRPC", "Python")
_NAME = re.compile(r"[A-Z][A-Z0-9]*(-[A-Z0-9]+)+")
_MORE = "…"
_PATIENCE_S = 60.0
_GRPCURL = Path(__file__).with_name("grpcurl.py")


class PageDiffers(AssertionError):
    """The page shows something else than what came."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: in which step and for which door, and on which line it begins."""

    step: str
    door: str
    kind: str
    options: tuple[str, ...]
    text: str
    line: int


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of all doors, in order."""
    step = door = ""
    fence: list[str] | None = None
    info, begun = "", 0
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            if fence is None:
                fence, info, begun = [], line[3:], number
                continue
            kind, *options = info.split()
            if door:
                yield Block(step, door, kind, tuple(options), "\n".join(fence), begun)
            fence = None
        elif fence is not None:
            fence.append(line)
        elif line.startswith("#"):
            step, door = line.lstrip("# "), ""
        elif line.strip("*") in DOORS and line == f"**{line.strip('*')}**":
            door = line.strip("*")


# -- comparing ---------------------------------------------------------------------------------------------------------


def documents(text: str) -> list[Any]:
    """JSON values one after the other, with dots where something is left out."""
    text = re.sub(r"([{,]\s*)…\s*}", rf'\1"{_MORE}": null}}', text)
    text = re.sub(r"([\[,]\s*)…\s*]", rf'\1{{"{_MORE}{_MORE}": null}}]', text)
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def is_shown(shown: Any, came: Any, names: dict[str, str]) -> bool:
    """Whether what came is what is shown; names that are met for the first time are learned."""
    if isinstance(shown, dict) and isinstance(came, dict):
        members = {name: value for name, value in shown.items() if name != _MORE}
        if not members.keys() <= came.keys() or (_MORE not in shown and members.keys() != came.keys()):
            return False
        return all(is_shown(value, came[name], names) for name, value in members.items())
    if isinstance(shown, list) and isinstance(came, list):
        has_more = bool(shown) and shown[-1] == {_MORE * 2: None}
        items = shown[:-1] if has_more else shown
        if len(items) > len(came) or (not has_more and len(items) != len(came)):
            return False
        return all(is_shown(item, there, names) for item, there in zip(items, came, strict=False))
    if isinstance(shown, str) and _NAME.fullmatch(shown) and isinstance(came, str):
        return names.setdefault(shown, came) == came
    if shown == _MORE:
        return True
    if isinstance(shown, str) and isinstance(came, str):
        return is_text_shown(shown, came)
    return bool(shown == came) and type(shown) is type(came)


def is_text_shown(shown: str, came: str) -> bool:
    pattern = ".*".join(map(re.escape, shown.split(_MORE)))
    return re.fullmatch(pattern, came, re.DOTALL) is not None


def lines_of(text: str) -> list[str]:
    """The lines of a text as they are compared: columns may be apart by more or fewer blanks."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def are_lines_shown(shown: str, came: str) -> bool:
    """Whether all lines are there, in order."""
    wanted, there = lines_of(shown), lines_of(came)
    return len(wanted) == len(there) and all(map(is_text_shown, wanted, there))


# -- doing -------------------------------------------------------------------------------------------------------------


class Connection:
    """A WebSocket, and the frames that came but were not shown yet."""

    def __init__(self, url: str) -> None:
        self._socket: ClientConnection = connect(url, legacy=True)
        self._waiting: list[Any] = []

    def send(self, frame: str) -> None:
        json.loads(frame)  # a slip of the page is found here
        self._socket.send(frame)

    def expect(self, shown: Any, names: dict[str, str]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            for at, frame in enumerate(self._waiting):
                learned = dict(names)
                if is_shown(shown, frame, learned):
                    names.update(learned)
                    del self._waiting[at]
                    return
            try:
                self._waiting.append(json.loads(self._socket.recv(max(deadline - time.monotonic(), 0))))
            except TimeoutError:
                raise PageDiffers(f"shown: {shown}\ncame:  {self._waiting}") from None

    def expect_nothing(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._waiting.append(json.loads(self._socket.recv(0.1)))
        if self._waiting:
            raise PageDiffers(f"came, and is not shown: {self._waiting}")

    def close(self) -> None:
        self._socket.close()


class Reader:
    """Follows one door through a page, against a node of its own."""

    def __init__(self, node: Node, directory: Path, *, patience_s: float = 60.0) -> None:
        self._node = node
        self._directory = directory
        self._patience_s = patience_s
        self._names: dict[str, str] = {}
        self._module: dict[str, Any] = {"__name__": "tutorial"}
        self._connections: dict[str, Connection] = {}
        self._environment = self._make_environment()

    def _make_environment(self) -> Mapping[str, str]:
        tools = self._directory / "bin"
        tools.mkdir()
        (tools / "grpcurl").write_text(f'#!/bin/sh\nexec {sys.executable} {_GRPCURL} "$@"\n')
        (tools / "penstock").write_text(f'#!/bin/sh\nexec {penstock_command()} "$@"\n')
        for tool in tools.iterdir():
            tool.chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        return {
            **inherited,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PENSTOCK_URL": self._node.http_url,
            "PYTHONPATH": str(_GRPCURL.parents[2]),
        }

    def follow(self, blocks: list[Block]) -> None:
        """Do it all."""
        shown: Block | None
        for at, block in enumerate(blocks):
            shown = blocks[at + 1] if at + 1 < len(blocks) and blocks[at + 1].kind in {"json", "text"} else None
            try:
                self._do(block, shown)
            except Exception as error:
                raise PageDiffers(f"line {block.line}, {block.step}, {block.door}: {error}") from error
        for connection in self._connections.values():
            connection.expect_nothing()
            connection.close()

    def _do(self, block: Block, shown: Block | None) -> None:
        text = self._here(block.text)
        if block.kind == "sh":
            self._run(text, shown, is_patient="eventually" in block.options)
        elif block.kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, f"{block.step}, line {block.line}", "exec"), self._module)  # noqa: S102
            self._compare(shown, printed.getvalue())
        elif block.kind == "websocket":
            self._talk(block.options[0] if block.options else "", text)
        elif block.kind not in {"json", "text"}:
            raise PageDiffers(f"nobody knows what to do with a block of {block.kind!r}")

    def _here(self, text: str) -> str:
        """The text with this node's addresses, and with what names stand for."""
        for address, port in (("localhost:8080", self._node.http_port), ("localhost:9000", self._node.grpc_port)):
            text = text.replace(address, f"127.0.0.1:{port}")
        return _NAME.sub(lambda found: self._names.get(found[0], found[0]), text)

    def _run(self, script: str, shown: Block | None, *, is_patient: bool) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                capture_output=True, text=True, timeout=self._patience_s, env=self._environment, cwd=self._directory,
            )  # fmt: skip
            if done.returncode != 0:
                raise PageDiffers(f"it ended with {done.returncode}: {done.stderr}{done.stdout}")
            try:
                return self._compare(shown, done.stdout)
            except PageDiffers:
                if not is_patient or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _compare(self, shown: Block | None, printed: str) -> None:
        if shown is None:
            is_right = not printed.strip()
        elif shown.kind == "json":
            wanted = documents(shown.text)
            learned = dict(self._names)
            is_right = is_shown(wanted, documents(printed), learned)
            if is_right:
                self._names.update(learned)
        else:
            is_right = are_lines_shown(shown.text, printed)
        if not is_right:
            raise PageDiffers(f"shown:\n{shown.text if shown else 'nothing'}\ncame:\n{printed}")

    def _talk(self, name: str, text: str) -> None:
        if name not in self._connections:
            self._connections[name] = Connection(self._node.http_url.replace("http", "ws") + "/v1/ws")
        connection = self._connections[name]
        for line in re.sub(r"\n(?=[ ])", "", text).splitlines():
            if line.startswith("> "):
                connection.send(self._here(line[2:]))  # with what a line above may have told
            elif line.startswith("< "):
                (shown,) = documents(line[2:])
                connection.expect(shown, self._names)
            else:
                raise PageDiffers(f"neither sent nor received: {line}")
        connection.expect_nothing()
