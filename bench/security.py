"""`./dev bench security`: what access control and TLS cost a node, and TLS next to Apache Kafka's, in one run.

Two nodes run at once, one open and one where a user without super powers logs in and is checked, and take turns; so
do a Penstock and a Kafka that speak TLS. Beside the rates is the processor time of the node for a million messages:
on a machine that others use it says more. Medians of the rounds count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from rich.console import Console
from tests.support.certificates import Authority
from tests.support.node import Node
from tests.support.tls_node import TlsNode

from bench import access
from bench.client import LoadGenerator, build_generator
from bench.kafka import Kafka
from bench.process import free_port
from bench.report import Grid

USER, ADMIN, PASSWORD = "alice", "admin", "correct horse battery"
SECONDS_MAX = 120.0
ACCESS_GOAL = 1.05  # of what it costs without
TLS_GOAL = 1.0  # of what Kafka does


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to do on a topic of its own."""

    name: str
    mode: str
    size: int
    partitions: int
    options: Mapping[str, Any] = field(default_factory=dict)


PRODUCE = Work("produce 1 KB", "produce", 1000, 3)
CONSUME = Work("consume 1 KB", "consume", 1000, 3)
ONE = Work("one message a request", "produce", 100, 1, {"batch_messages": 1, "linger_ms": 0, "window": 1000})


@dataclass
class Contender:
    """A node that is up, and how to get at it."""

    name: str
    brokers: str
    cpu_seconds: Callable[[], float]
    admin: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)

    def create(self, topic: str, partitions: int) -> None:
        admin = AdminClient(dict(self.admin))
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)

    def play(self, generator: LoadGenerator, work: Work, topic: str, count: int) -> None:
        target: Any = SimpleNamespace(brokers=self.brokers)
        before = self.cpu_seconds()
        told = {"topic": topic, "partitions": work.partitions, "size": work.size, "count": count}
        result = generator.run(work.mode, target, SECONDS_MAX, **told, **work.options, **self.options)
        if "note" in result:
            raise SystemExit(f"{self.name}: {work.name}: {result['note']}")
        spent = self.cpu_seconds() - before
        self.rates.setdefault(work.name, []).append(result["messages"] / result["seconds"])
        self.costs.setdefault(work.name, []).append(spent / result["messages"] * 1e6)


def cpu_of(pid: int | None) -> Callable[[], float]:
    process = psutil.Process(pid)
    return lambda: float(sum(process.cpu_times()[:2]))


@contextmanager
def access_contenders(directory: Path) -> Iterator[list[Contender]]:
    """The same node twice, open and with access control; the loads are a user's that has rules and no more."""
    opened, guarded = Node(directory / "open"), Node(directory / "guarded")
    with opened, guarded:
        admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
        for user in (ADMIN, USER):
            scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            change = UserScramCredentialUpsertion(user, scram, PASSWORD.encode())
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(30)
        guarded.stop()
        guarded.settings = {"security__enabled": "true", "security__super_users": f"User:{ADMIN}"}
        guarded.restart()
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.password": PASSWORD}
        settings = {"bootstrap.servers": guarded.bootstrap, **login, "sasl.username": ADMIN}
        allow_everything_by_prefix(settings)
        yield [
            Contender("open", opened.bootstrap, cpu_of(opened.pid), {"bootstrap.servers": opened.bootstrap}),
            Contender("access control", guarded.bootstrap, cpu_of(guarded.pid), settings, {"user": USER}),
        ]


def allow_everything_by_prefix(settings: Mapping[str, Any]) -> None:
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    rules = [
        AclBinding(
            ResourceType.TOPIC, "b", ResourcePatternType.PREFIXED, f"User:{USER}", "*", action, AclPermissionType.ALLOW
        )
        for action in (AclOperation.READ, AclOperation.WRITE)
    ]
    admin = AdminClient(dict(settings))
    for future in admin.create_acls(rules).values():
        future.result(30)


@contextmanager
def tls_contenders(directory: Path, *, has_kafka: bool) -> Iterator[list[Contender]]:
    """A Penstock and a Kafka node with certificates of one authority."""
    authority = Authority(directory / "authority")
    trust = {"security.protocol": "ssl", "ssl.ca.location": str(authority.ca)}
    options = {"ca": authority.ca}
    with ExitStack() as stack:
        node = TlsNode(directory / "penstock", authority)
        stack.enter_context(node)
        admin = {"bootstrap.servers": node.bootstrap, **trust}
        found = [Contender("penstock", node.bootstrap, cpu_of(node.pid), admin, options)]
        if has_kafka:
            found.insert(0, start_kafka(directory / "kafka", authority, trust, stack))
        yield found


def start_kafka(directory: Path, authority: Authority, trust: Mapping[str, str], stack: ExitStack) -> Contender:
    directory.mkdir()
    pair = authority.issue("kafka")
    both = directory / "kafka.pem"
    both.write_text(pair.key.read_text() + pair.certificate.read_text())
    port = free_port()
    extra = (
        f"listeners=PLAINTEXT://127.0.0.1:{{broker}},CONTROLLER://127.0.0.1:{{controller}},SSL://127.0.0.1:{port}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{{broker}},SSL://127.0.0.1:{port}\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={both}\n"
    )
    kafka = Kafka("kafka", "with TLS", None, extra)
    kafka.prepare()
    node = kafka.start(directory)
    stack.callback(node.process.stop)
    brokers = f"127.0.0.1:{port}"
    return Contender(
        "kafka", brokers, node.process.cpu_seconds, {"bootstrap.servers": brokers, **trust}, {"ca": authority.ca}
    )


def play(contenders: Sequence[Contender], works: Sequence[Work], rounds: int, count: int) -> None:
    """Every work by each contender in turn, round by round; the first round warms up and does not count."""
    generator = build_generator()
    for turn in range(rounds + 1):
        for work in works:
            topic = f"b{turn}-{work.size}-{work.partitions}"
            order = contenders if turn % 2 else list(reversed(contenders))
            for contender in order:
                if work.mode != "consume":
                    contender.create(topic, work.partitions)
                contender.play(generator, work, topic, count)
        if turn == 0:
            for contender in contenders:
                contender.rates.clear()
                contender.costs.clear()


def rows(contenders: Sequence[Contender], works: Sequence[Work]) -> list[list[str]]:
    """A line a work: the median rate and cost of each, and how the second stands to the first."""
    found = []
    for work in works:
        rates = [statistics.median(each.rates[work.name]) for each in contenders]
        costs = [statistics.median(each.costs[work.name]) for each in contenders]
        line = [work.name]
        for rate, cost in zip(rates, costs, strict=True):
            line += [f"{rate:,.0f}", f"{cost:.2f}"]
        if len(contenders) > 1:
            line += [f"{rates[1] / rates[0]:.2f}", f"{costs[1] / costs[0]:.2f}"]
        found.append(line)
    return found


def grid(title: str, contenders: Sequence[Contender], works: Sequence[Work]) -> Grid:
    columns = [""]
    for each in contenders:
        columns += [f"{each.name}: msg/s", f"{each.name}: CPU s a million"]
    if len(contenders) > 1:
        columns += ["rate: second/first", "CPU: second/first"]
    return Grid(title, columns, rows(contenders, works))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench security", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000, help="of each run (200,000)")
    parser.add_argument("--no-kafka", action="store_true", help="leave Apache Kafka out")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    os.environ["LOADGEN_PASSWORD"] = PASSWORD
    access.main()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-security-") as place:
        directory = Path(place)
        works = (PRODUCE, CONSUME, ONE)
        with access_contenders(directory) as contenders:
            play(contenders, works, options.rounds, options.messages)
            console.print(grid("Access control", contenders, works).as_table())
        console.print(f"goal: at most {ACCESS_GOAL:.2f} of the processor time of an open node")
        works = (PRODUCE, CONSUME)
        with tls_contenders(directory, has_kafka=not options.no_kafka) as contenders:
            play(contenders, works, options.rounds, options.messages)
            console.print(grid("TLS", contenders, works).as_table())
        console.print(f"goal: a rate of at least {TLS_GOAL:.1f} of Kafka's")
    console.print("load average {:.1f} {:.1f} {:.1f}".format(*os.getloadavg()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
