"""kcat, on the librdkafka that Debian ships. It has no admin: naming a topic creates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compat.codecs import Reader
from bench.compat.logins import CERTIFICATE, Login, Refusals
from bench.compat.steps import StepFailedError, run
from bench.install import ensure_command


class Kcat:
    """kcat, a program already."""

    name = "kcat"

    def install(self) -> str:
        ensure_command("kcat", "kcat")
        return next(line.split()[1] for line in run(["kcat", "-V"]) if line.startswith("Version"))

    def create(self, bootstrap: str, topic: str) -> None:
        listed = run(["kcat", "-b", bootstrap, "-L", "-t", topic, "-X", "allow.auto.create.topics=true"])
        if not any(f'topic "{topic}"' in line for line in listed):
            raise StepFailedError(f"the topic is not listed: {listed}")

    def produce(self, bootstrap: str, topic: str, codec: str, lines: Sequence[str]) -> None:
        settings = ["-X", "enable.idempotence=true", "-X", "acks=all", "-X", "batch.num.messages=100"]
        run(["kcat", "-b", bootstrap, "-P", "-t", topic, "-p", "0", "-z", codec, *settings], given=lines)

    # A token would have to come from an identity provider that runs: kcat asks for it by itself.
    logins = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", CERTIFICATE)
    refusals = Refusals(
        ("SASL authentication error", "Authentication failure"),
        ("All broker connections are down", "Connection closed", "Disconnected", "disconnected", "timed out"),
        ("Topic authorization failed",),
    )

    def round_trip(self, login: Login, directory: Path, topic: str, text: str) -> list[str]:
        settings = {**login.librdkafka(), "message.timeout.ms": "10000"}
        path = directory / "kcat.conf"
        path.touch(mode=0o600)
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        where = ["-F", path, "-t", topic, "-p", "0"]
        run(["kcat", *where, "-P"], given=[text])
        return run(["kcat", *where, "-C", "-o", "beginning", "-e", "-q"])

    @property
    def readers(self) -> Mapping[str, Reader]:
        return {"partition": self._read, "group": self._read_group}

    def _read(self, bootstrap: str, topic: str, count: int) -> list[str]:
        where = ["-t", topic, "-p", "0", "-o", "beginning", "-c", str(count)]
        return run(["kcat", "-b", bootstrap, "-C", *where, "-q", "-X", "check.crcs=true"])

    def _read_group(self, bootstrap: str, topic: str, count: int) -> list[str]:
        settings = ["-X", "auto.offset.reset=earliest", "-c", str(count), "-q"]
        return run(["kcat", "-b", bootstrap, *settings, "-G", f"compat-{topic}", topic])
