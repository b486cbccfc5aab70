"""``./dev compat``: the clients of other languages against a real node.

Each client creates a topic, produces to it idempotently with every codec in turn, and reads everything back, in order,
in every way it knows: by partition, and as a member of a group. Clients are installed by their registries' ordinary
tools, into ``.cache``. Exit code 1 if any step of any client fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from bench.install import InstallError, ensure_command
from bench.kafka import fetch
from bench.process import BrokerError
from bench.targets import CACHE, Penstock
from penstock.records import Codec, iter_batches
from penstock.records.header import CODEC_MASK

SOURCES = Path(__file__).with_suffix("")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LINES_A_CODEC = 500
STEP_LIMIT_S = 60.0
INSTALL_LIMIT_S = 600.0

Reader = Callable[[str, str, int], list[str]]


class StepFailedError(Exception):
    """A client said no, was silent too long, or read something else than what was written."""


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table."""

    client: str
    step: str
    passed: bool
    seconds: float
    detail: str = ""


class Client(Protocol):
    """A client of another language, driven through its own program."""

    name: str

    def install(self) -> str:
        """Make it ready; its version."""

    def create(self, bootstrap: str, topic: str) -> None: ...
    def produce(self, bootstrap: str, topic: str, codec: str, lines: Sequence[str]) -> None: ...

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Each way to read a whole topic of one partition, by name: (bootstrap, topic, count) to values."""


def run(
    command: Sequence[str | Path],
    *,
    given: Sequence[str] = (),
    cwd: Path | None = None,
    limit_s: float = STEP_LIMIT_S,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Run a program on some lines of input; the lines of its output."""
    text = "".join(f"{line}\n" for line in given)
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            input=text,
            capture_output=True,
            text=True,
            timeout=limit_s,
            cwd=cwd,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")[-300:]
        raise StepFailedError(f"no end after {limit_s:.0f} s; it said: {said}") from None
    if done.returncode:
        raise StepFailedError(f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout.splitlines()


# -- the clients -------------------------------------------------------------------------------------------------------


class Kcat:
    """kcat, on the librdkafka that Debian ships. It has no admin: naming a topic creates it."""

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

    @property
    def readers(self) -> Mapping[str, Reader]:
        return {"partition": self._read, "group": self._read_group}

    def _read(self, bootstrap: str, topic: str, count: int) -> list[str]:
        where = ["-t", topic, "-p", "0", "-o", "beginning", "-c", str(count)]
        return run(["kcat", "-b", bootstrap, "-C", *where, "-q", "-X", "check.crcs=true"])

    def _read_group(self, bootstrap: str, topic: str, count: int) -> list[str]:
        settings = ["-X", "auto.offset.reset=earliest", "-c", str(count), "-q"]
        return run(["kcat", "-b", bootstrap, *settings, "-G", f"compat-{topic}", topic])


class KafkaJs:
    """kafkajs, with pure JavaScript or WebAssembly codecs. It reads only as a member of a group."""

    name = "kafkajs"
    _home = CACHE / "compat" / "kafkajs"

    def install(self) -> str:
        ensure_command("node", "nodejs")
        ensure_command("npm", "npm")
        self._home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "client.js"):
            shutil.copy(SOURCES / "kafkajs" / name, self._home / name)
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


class Java:
    """Java's kafka-clients, through the console tools that come with Apache Kafka."""

    name = "java"

    def __init__(self) -> None:
        self._classpath = ""

    def install(self) -> str:
        ensure_command("java", "default-jre-headless")
        version = fetch(None)
        self._classpath = f"{CACHE}/kafka-{version}/libs/*"
        return version

    def _run(self, main: str, *arguments: str, given: Sequence[str] = ()) -> list[str]:
        quiet = ["-Dlog4j2.level=ERROR", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
        return run(["java", *quiet, "-cp", self._classpath, f"org.apache.kafka.tools.{main}", *arguments], given=given)

    def create(self, bootstrap: str, topic: str) -> None:
        self._run("TopicCommand", "--bootstrap-server", bootstrap, "--create", "--topic", topic, "--partitions", "1")

    def produce(self, bootstrap: str, topic: str, codec: str, lines: Sequence[str]) -> None:
        where = ["--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec]
        settings = ["--request-required-acks", "all", "--command-property", "enable.idempotence=true"]
        self._run("ConsoleProducer", *where, *settings, given=lines)

    def _consume(self, bootstrap: str, topic: str, count: int, *how: str) -> list[str]:
        limits = ["--max-messages", str(count), "--timeout-ms", "30000"]
        where = ["--bootstrap-server", bootstrap, "--topic", topic]
        return self._run("consumer.ConsoleConsumer", *where, *limits, *how)

    @property
    def readers(self) -> Mapping[str, Reader]:
        return {
            "partition": lambda b, t, n: self._consume(b, t, n, "--partition", "0", "--offset", "earliest"),
            "group": lambda b, t, n: self._consume(b, t, n, "--from-beginning", "--group", f"compat-{t}"),
        }


class FranzGo:
    """franz-go, built from the module proxy."""

    name = "franz-go"
    _home = CACHE / "compat" / "franz"

    def install(self) -> str:
        ensure_command("go", "golang-go")
        shutil.copytree(SOURCES / "franz", self._home, dirs_exist_ok=True)
        run(["go", "build", "-o", "franz", "."], cwd=self._home, limit_s=INSTALL_LIMIT_S)
        listed = run(["go", "list", "-m", "github.com/twmb/franz-go"], cwd=self._home)
        return listed[0].split()[-1].removeprefix("v")

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


CLIENTS: dict[str, Callable[[], Client]] = {
    Kcat.name: Kcat,
    KafkaJs.name: KafkaJs,
    Java.name: Java,
    FranzGo.name: FranzGo,
}


# -- the steps ---------------------------------------------------------------------------------------------------------


def check(client: Client, bootstrap: str, data_dir: Path) -> Iterator[Result]:
    """Every step of one client. Those after a failed one still run: they tell more."""
    topic = f"compat-{client.name}"
    lines = {codec: [f"{codec} {number} ".ljust(100, "x") for number in range(LINES_A_CODEC)] for codec in CODECS}
    installed = _step(client, "install", client.install)
    yield installed
    if not installed.passed:
        return
    yield _step(client, "create topic", partial(client.create, bootstrap, topic))
    written: list[str] = []
    for codec in CODECS:
        result = _step(
            client, f"produce {codec}", lambda codec=codec: client.produce(bootstrap, topic, codec, lines[codec])
        )
        written += lines[codec] if result.passed else []
        yield result
    yield _step(client, "codecs are used", partial(_check_stored, data_dir / "logs" / topic / "0"))
    for name, reader in client.readers.items():
        yield _step(client, f"read by {name}", partial(_compare, reader, bootstrap, topic, written))


def _compare(reader: Reader, bootstrap: str, topic: str, written: list[str]) -> str:
    read = reader(bootstrap, topic, len(written))
    if read == written:
        return f"{len(read)} in order"
    if sorted(read) == sorted(written):
        raise StepFailedError("everything is there, but not in order")
    first = next(
        (n for n, (a, b) in enumerate(zip(read, written, strict=False)) if a != b), min(len(read), len(written))
    )
    raise StepFailedError(f"read {len(read)} of {len(written)}; they differ from line {first} on")


def _check_stored(directory: Path) -> str:
    """Clients drop a codec, or idempotence, without a word where they think that a broker cannot do it."""
    files = [path.read_bytes() for path in sorted(directory.glob("*.log"))]
    headers = [header for data in files for _, header in iter_batches(memoryview(data))]
    found = {Codec(header.attributes & CODEC_MASK).name.lower() for header in headers}
    if found != set(CODECS):
        raise StepFailedError(f"the stored batches have only these codecs: {', '.join(sorted(found))}")
    if not all(header.is_idempotent for header in headers):
        raise StepFailedError("some stored batches come from a producer without an id")
    return f"{len(headers)} batches"


def _step(client: Client, name: str, do: Callable[[], str | None]) -> Result:
    began = time.monotonic()
    try:
        detail = do() or ""
    except (StepFailedError, InstallError, BrokerError, OSError, subprocess.SubprocessError) as error:
        return Result(client.name, name, passed=False, seconds=time.monotonic() - began, detail=str(error))
    return Result(client.name, name, passed=True, seconds=time.monotonic() - began, detail=detail)


def table(results: Sequence[Result]) -> Table:
    shown = Table("client", "step", "", "seconds", "", title="Clients against a Penstock node")
    for result in results:
        verdict = "[green]pass[/]" if result.passed else "[red]FAIL[/]"
        shown.add_row(result.client, result.step, verdict, f"{result.seconds:.1f}", result.detail)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev compat", description=__doc__)
    parser.add_argument("--client", action="append", choices=list(CLIENTS), help="only this one; may be repeated")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="penstock-compat-") as directory:
        node = Penstock("penstock", "as shipped").start(Path(directory))
        try:
            for name in options.client or CLIENTS:
                for result in check(CLIENTS[name](), node.brokers, node.data_dir):
                    results.append(result)
                    print(f"{result.client}: {result.step}: {'pass' if result.passed else 'FAIL'}", file=sys.stderr)
        finally:
            node.process.stop()
    if options.output == "json":
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(results))
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
