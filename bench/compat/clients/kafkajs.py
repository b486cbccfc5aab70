"""kafkajs, with pure JavaScript or WebAssembly codecs. It reads only as a member of a group, and only of eager ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence

from bench.compat.codecs import Reader
from bench.compat.steps import INSTALL_LIMIT_S, PROGRAMS, run
from bench.install import ensure_command
from bench.targets import CACHE


class KafkaJs:
    """kafkajs from the npm registry."""

    name = "kafkajs"
    strategies = ("roundrobin",)
    _home = CACHE / "compat" / "kafkajs"

    def install(self) -> str:
        ensure_command("node", "nodejs")
        ensure_command("npm", "npm")
        shutil.copytree(PROGRAMS / "kafkajs", self._home, dirs_exist_ok=True)
        run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=self._home, limit_s=INSTALL_LIMIT_S)
        return str(json.loads((self._home / "node_modules/kafkajs/package.json").read_text())["version"])

    def _run(self, verb: str, *arguments: str, given: Sequence[str] = ()) -> list[str]:
        silence = {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return run(["node", "client.js", verb, *arguments], cwd=self._home, given=given, env=silence)

    def create(self, bootstrap: str, topic: str) -> None:
        self._run("create", bootstrap, topic)

    def produce(self, bootstrap: str, topic: str, codec: str, lines: Sequence[str]) -> None:
        self._run("produce", bootstrap, topic, codec, given=lines)

    @property
    def readers(self) -> Mapping[str, Reader]:
        return {"group": lambda bootstrap, topic, count: self._run("group", bootstrap, topic, str(count))}

    def member(self, strategy: str) -> list[str]:
        return ["node", str(self._home / "member.js"), "--strategy", strategy]

    @property
    def worker(self) -> list[str]:
        return ["node", str(self._home / "worker.js"), "--do", "work"]

    @property
    def reader(self) -> list[str]:
        return ["node", str(self._home / "worker.js"), "--do", "read"]
