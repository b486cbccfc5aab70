"""Node processes that need not import anything: each is forked from one process that has done so.

A node takes a second of processor time to import its 800 modules, and the tests start hundreds of nodes. Here a process
imports them once and then forks for each node that is asked for. What comes out is a process like any other: with its
own environment, directory and log, to be stopped, killed and waited for. Nothing in it ran before the fork but imports.

    python -m tests.support.nursery FD    # what `Nursery` starts; it takes orders from the socket FD
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_ROOT: Final = Path(__file__).parents[2]
_PAUSE_S: Final = 0.005


def die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A process of the nursery, with those verbs of `subprocess.Popen` that a node needs."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(_PAUSE_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # it is not reaped before it was polled, so the number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that nodes are forked from. It ends when nobody can give it orders any more, and they with it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        command = [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        #: Whether it can be forked, as it cannot if something that it imported has started threads.
        self.is_fit: bool = msgspec.json.decode(self._line.recv(1 << 16))

    def start(
        self, module: str, arguments: Sequence[str], log: Path, directory: Path, environment: Mapping[str, str]
    ) -> Child:
        """Run a module as ``python -m`` does, on a log that it is to append to."""
        order = {
            "module": module,
            "arguments": list(arguments),
            "log": str(log),
            "directory": str(directory),
            "environment": dict(environment),
        }
        return Child(self, self.ask(order))

    def ask(self, order: dict[str, Any]) -> Any:
        with self._lock:
            self._line.send(msgspec.json.encode(order))
            return msgspec.json.decode(self._line.recv(1 << 16))


@cache
def nursery() -> Nursery:
    """The one of this process."""
    return Nursery()


# -- in the process itself ---------------------------------------------------------------------------------------------


def _serve(line: socket.socket) -> None:
    codes: dict[int, int] = {}
    while order := line.recv(1 << 20):
        asked = msgspec.json.decode(order)
        if (pid := asked.get("poll")) is not None:
            if pid not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            line.send(msgspec.json.encode(codes.get(pid)))
        elif pid := os.fork():
            line.send(msgspec.json.encode(pid))
        else:
            line.close()
            _live(asked)


def _live(order: dict[str, Any]) -> None:
    """Become what was asked for, and never return."""
    die_with_parent()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    code = 1
    try:
        sys.argv = [order["module"], *order["arguments"]]
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _main() -> None:
    import uvloop  # noqa: F401 - what a node needs, all of it

    line = socket.socket(fileno=int(sys.argv[1]))
    line.send(msgspec.json.encode(len(os.listdir("/proc/self/task")) == 1))
    _serve(line)


if __name__ == "__main__":
    _main()
