"""Pages as a reader works through them: one after the other, on one node that keeps what every page leaves behind.

All ``sh`` and ``python`` blocks of a page run, in their order, in a directory that looks like a clone whose
environment is active. A page has one shell and one Python. Words after ``sh`` or ``python`` in a fence say how a reader
goes about it:

- ``eventually``: run it again until what is shown comes;
- ``ctrl-c``: it goes on for ever; Ctrl-C once it printed as many lines as are shown;
- ``elsewhere``: it is for other machines, or another terminal; not run.

A ``text`` or ``json`` block behind it is what it prints, with the rules of `tests.support.tutorial`; without one it may
print anything. A block whose first line is ``# NAME.yaml`` or ``# NAME.py`` is a file that the reader saves. Of a step
that is told for several doors, the first is taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.node import Node, free_port, penstock_command
from tests.support.nursery import die_with_parent
from tests.support.tutorial import DOORS, PageDiffers, are_lines_shown, documents, is_shown, lines_of

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 900.0  # with one block, in which Spark may be started on a busy machine; a test has its own limit
_NAME = re.compile(r"[A-Z][A-Z0-9]*(-[A-Z0-9]+)+")
_FILE = re.compile(r"# (\w[\w.-]*\.(?:yaml|py|json))")
_OPTIONS = {"eventually", "ctrl-c", "elsewhere"}
_SHOWS = {"text", "json"}
# What a reader has to install is there; whether what the page says would do is seen without asking an index.
# Editable or not makes no difference to that, but needs a package more.
_PIP = """#!/bin/sh
for each in "$@"; do
    shift
    [ "$each" = -e ] || set -- "$@" "$each"
done
exec {python} -m pip "$@" --quiet --dry-run --no-index --no-build-isolation
"""


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block and where it begins."""

    line: int
    kind: str
    options: frozenset[str]
    text: str

    @property
    def file_name(self) -> str | None:
        found = _FILE.match(self.text)
        return found[1] if found else None

    @property
    def runs(self) -> bool:
        return self.kind in {"sh", "python"} and "elsewhere" not in self.options and self.file_name is None


def fences_of(page: str) -> list[Fence]:
    """The blocks of a page, for the first of its doors."""
    fences: list[Fence] = []
    door: str | None = None
    text: list[str] | None = None
    info, begun = "", 0
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            if text is None:
                text, info, begun = [], line[3:], number
                continue
            kind, *options = info.split()
            if door in {None, DOORS[0]}:
                fences.append(Fence(begun, kind, frozenset(options), "\n".join(text)))
            text = None
        elif text is not None:
            text.append(line)
        elif line.startswith("#"):
            door = None
        elif line.strip("*") in DOORS and line == f"**{line.strip('*')}**":
            door = line.strip("*")
    return fences


def _as_from_a_terminal() -> None:
    """Where the tests themselves are a background job of a shell, the signal is ignored, and children inherit that."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Terminal(ABC):
    """What a reader types into for one page: a child that runs blocks one after the other, and Ctrl-C."""

    _END: Final = "\0"

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._errors = (directory / "errors").open("w+")
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            cwd=directory, env=environment, start_new_session=True, preexec_fn=_as_from_a_terminal,
        )  # fmt: skip

    @abstractmethod
    def encode(self, block: str) -> str:
        """The block as the child takes it: it prints what the block does, and then a line with the end and a code."""

    def run(self, block: str, stop_after: str | None) -> str:
        """What the block prints; with ``stop_after``, Ctrl-C once it printed that. Other lines end the page."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._errors.seek(0)
        self._errors.truncate()
        self._child.stdin.write(self.encode(block))
        self._child.stdin.flush()
        printed = ""
        watchdog = threading.Timer(PATIENCE_S, self._signal, [signal.SIGKILL])
        watchdog.start()
        try:
            for line in self._child.stdout:
                if line.startswith(self._END):
                    if line.strip() == f"{self._END}0":
                        return printed
                    break
                printed += line
                if stop_after is not None and len(lines_of(printed)) >= len(lines_of(stop_after)):
                    if not are_lines_shown(stop_after, printed):  # and never will be: lines are only added
                        raise PageDiffers(f"shown:\n{stop_after}\ncame:\n{printed[-4000:]}")
                    self._signal(signal.SIGINT)
                    stop_after = None
        finally:
            watchdog.cancel()
        self._errors.seek(0)
        raise PageDiffers(f"it failed, or took too long: {self._errors.read()[-4000:]}{printed[-4000:]}")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def close(self) -> None:
        """End it, and all that it left running."""
        self._signal(signal.SIGKILL)
        self._child.communicate()
        self._errors.close()


class Shell(Terminal):
    """A reader's shell. A command that fails ends the page."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        super().__init__(["bash", "-euo", "pipefail", "-s"], directory, environment)

    def encode(self, block: str) -> str:
        # With a trap for it, Ctrl-C ends what the shell waits for and not the shell.
        return f"trap : INT\n{{\n{block}\n}} </dev/null\nprintf '\\n\\0%s\\n' 0\n"


class Console(Terminal):
    """A reader's Python, where `await` is allowed as in ``python -m asyncio``."""

    _LOOP: Final = """
import ast, asyncio, inspect, json, sys, traceback
space = {"__name__": "page"}
for line in sys.stdin:
    code = 0
    try:
        outcome = eval(compile(json.loads(line), "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    print(f"\\n\\0{code}", flush=True)
"""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        super().__init__([sys.executable, "-u", "-c", self._LOOP], directory, environment)

    def encode(self, block: str) -> str:
        return json.dumps(block) + "\n"


class Walk:
    """A reader with a node, and what the reader has on disk."""

    def __init__(self, node: Node, directory: Path) -> None:
        self._node = node
        self._directory = directory
        self._bin = directory / ".venv" / "bin"
        self._bin.mkdir(parents=True)
        for name in ("examples", "pyproject.toml", "src", "README.md", "LICENSE", "docs"):
            (directory / name).symlink_to(ROOT / name)
        self._install("penstock", f'#!/bin/sh\nexec {penstock_command()} "$@"\n')
        self._install("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self._install("pytest", f'#!/bin/sh\nexec {sys.executable} -m pytest "$@"\n')
        self._install("pip", _PIP.format(python=sys.executable))
        self._install("activate", f"PATH={self._bin}:$PATH\n")
        bases = [self._consecutive(4) for _ in range(4)]
        self._cluster = dict(zip(("909", "808", "900", "919"), bases, strict=True))

    def _install(self, name: str, script: str) -> None:
        (self._bin / name).write_text(script)
        (self._bin / name).chmod(0o755)

    @staticmethod
    def _consecutive(count: int) -> int:
        """The number before ``count`` free ports in a row."""
        ports = [free_port()]
        while len(ports) < count:
            found = free_port()
            ports = [*ports, found] if found == ports[-1] + 1 else [found]
        return ports[0] - 1

    def environment(self) -> Mapping[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        extra = {"PATH": f"{self._bin}:{os.environ['PATH']}", "PENSTOCK_URL": self._node.http_url}
        extra["XDG_CONFIG_HOME"] = str(self._directory / "config")
        return {**inherited, **extra, "PYTHONPATH": ""}

    def follow(self, page: Path, *, fences: Sequence[Fence] | None = None) -> None:
        """Do all that a page says."""
        names: dict[str, str] = {}
        terminals: dict[str, Terminal] = {}
        found = list(fences if fences is not None else fences_of(page.read_text()))
        try:
            for at, fence in enumerate(found):
                assert fence.options <= _OPTIONS, f"{page.name}, line {fence.line}: {sorted(fence.options)}"
                shown = found[at + 1] if at + 1 < len(found) and found[at + 1].kind in _SHOWS else None
                try:
                    self._do(fence, shown, names, terminals)
                except PageDiffers as error:
                    raise PageDiffers(f"{page.relative_to(ROOT)}, line {fence.line}:\n{fence.text}\n{error}") from error
        finally:
            for terminal in terminals.values():
                terminal.close()

    def _do(self, fence: Fence, shown: Fence | None, names: dict[str, str], terminals: dict[str, Terminal]) -> None:
        if fence.file_name is not None:
            (self._directory / fence.file_name).write_text(self._here(fence.text, names) + "\n")
        if fence.runs:
            self._type(fence, shown, names, terminals)

    def _type(self, fence: Fence, shown: Fence | None, names: dict[str, str], terminals: dict[str, Terminal]) -> None:
        if fence.kind not in terminals:
            terminals[fence.kind] = (Shell if fence.kind == "sh" else Console)(self._directory, self.environment())
        stop_after = shown.text if shown is not None and "ctrl-c" in fence.options else None
        deadline = time.monotonic() + PATIENCE_S
        while True:
            printed = terminals[fence.kind].run(self._here(fence.text, names), stop_after)
            try:
                return self._compare(shown, printed, names)
            except PageDiffers:
                if "eventually" not in fence.options or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _here(self, text: str, names: Mapping[str, str]) -> str:
        """The text with this node's addresses, its own places on disk, and what names stand for."""
        for port, real in ((8080, self._node.http_port), (9000, self._node.grpc_port), (9092, self._node.kafka_port)):
            text = re.sub(rf"(localhost|127\.0\.0\.1):{port}\b", f"127.0.0.1:{real}", text)
        text = re.sub(r"python (examples/first_steps\.py)", rf"python \1 {self._node.bootstrap}", text)
        text = re.sub(r"python (examples/(?!first_steps)\w+\.py)", rf"python \1 {self._node.http_url}", text)
        for usual, base in self._cluster.items():
            text = re.sub(rf"127\.0\.0\.1:{usual}\$n", f"127.0.0.1:$(({base} + n))", text)
            text = re.sub(
                rf"127\.0\.0\.1:{usual}([1234])\b", lambda found, base=base: f"127.0.0.1:{base + int(found[1])}", text
            )
        text = text.replace("/tmp/penstock", f"{self._directory}/penstock")
        return _NAME.sub(lambda found: names.get(found[0], found[0]), text)

    def _compare(self, shown: Fence | None, printed: str, names: dict[str, str]) -> None:
        if shown is None:
            return
        if shown.kind == "json":
            learned = dict(names)
            is_right = is_shown(documents(shown.text), documents(printed), learned)
            if is_right:
                names.update(learned)
        else:
            is_right = are_lines_shown(shown.text, printed)
        if not is_right:
            raise PageDiffers(f"shown:\n{shown.text}\ncame:\n{printed[-4000:]}")
