"""The scenario "security", second part: Kafka's own tools make users, rules and quotas, and a client is held to them.

It has a node of `secure init`, and everything goes over TLS with a login. The administrator makes a user and quotas by
`kafka-configs` and rules by `kafka-acls`; the user produces and consumes with each SCRAM mechanism, and is refused what
it has no rule for. Only a Penstock node plays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from tests.support.secured_node import SecuredNode

from bench.compat.brokers import Running
from bench.compat.steps import Result, StepFailedError, step
from bench.targets import Penstock

ADMIN, USER, TOPIC, GROUP = "admin", "alice", "orders", "readers"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_PASSWORD = "alice-secret"
_QUOTAS = {"producer_byte_rate": "1048576", "consumer_byte_rate": "2097152", "request_percentage": "50"}


@runtime_checkable
class Administers(Protocol):
    """A client that comes with Kafka's tools. ``settings`` is a file of properties for the login, if there is one."""

    name: str

    def configure(self, bootstrap: str, settings: Path | None, *arguments: str) -> list[str]:
        """``kafka-configs``"""

    def rule(self, bootstrap: str, settings: Path, *arguments: str) -> list[str]:
        """``kafka-acls``"""

    def make_topic(self, bootstrap: str, settings: Path, topic: str) -> list[str]:
        """``kafka-topics --create``"""

    def write(self, bootstrap: str, settings: Path, topic: str, lines: Sequence[str]) -> list[str]:
        """``kafka-console-producer``"""

    def read(self, bootstrap: str, settings: Path, topic: str, group: str, count: int) -> list[str]:
        """``kafka-console-consumer``"""


def play(client: Administers, broker: Running) -> Iterator[Result]:
    if not isinstance(broker.broker.target, Penstock):
        return
    scene = Scene(client, broker.scratch / "security")
    try:
        yield step(client.name, "a node of secure init", scene.start)
        yield step(client.name, "users by kafka-configs", scene.manage_users)
        yield step(client.name, "rules by kafka-acls", scene.manage_rules)
        yield step(client.name, "quotas by kafka-configs", scene.manage_quotas)
        for mechanism in MECHANISMS:
            yield step(client.name, f"produce and consume with {mechanism}", partial(scene.use, mechanism))
        yield step(client.name, "refusals", scene.be_refused)
    finally:
        scene.stop()


class Scene:
    """A node with security, and the files that its clients log in with."""

    def __init__(self, client: Administers, directory: Path) -> None:
        self._client = client
        self._directory = directory
        self._node: SecuredNode | None = None

    @property
    def _bootstrap(self) -> str:
        return f"localhost:{self._secured.kafka_port}"

    @property
    def _secured(self) -> SecuredNode:
        assert self._node is not None, "the node is not up"
        return self._node

    def start(self) -> None:
        self._node = SecuredNode(self._directory)
        self._node.start()

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()
            self._node = None

    def _login(self, user: str, mechanism: str = MECHANISMS[0], password: str | None = None) -> Path:
        path = self._directory / f"{user}-{mechanism}-{'wrong' if password else 'right'}.properties"
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        secret = password or (self._secured.password if user == ADMIN else _PASSWORD)
        path.touch(mode=0o600)
        path.write_text(
            "security.protocol=SASL_SSL\n"
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self._secured.ca}\n"
            f"sasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} required username="{user}" password="{secret}";\n'
        )
        return path

    def _set_user(self, user: str, settings: Path | None) -> None:
        for mechanism in MECHANISMS:
            value = f"{mechanism}=[iterations=8192,password={_PASSWORD}]"
            named = ("--entity-type", "users", "--entity-name", user)
            self._client.configure(self._bootstrap, settings, "--alter", "--add-config", value, *named)

    def manage_users(self) -> None:
        admin = self._login(ADMIN)
        self._set_user(USER, admin)
        said = " ".join(self._client.configure(self._bootstrap, admin, "--describe", "--entity-type", "users"))
        for user in (ADMIN, USER):
            _expect(f"'{user}'" in said and "iterations=8192" in said, f"{user} is not described: {said}")

    def manage_quotas(self) -> None:
        """Of a user, of a client id of a user, and the default of all users; set, shown and taken away again."""
        admin, configure = self._login(ADMIN), self._client.configure
        entities = (
            ("--entity-type", "users", "--entity-name", USER),
            ("--entity-type", "users", "--entity-name", USER, "--entity-type", "clients", "--entity-name", "app"),
            ("--entity-type", "users", "--entity-default"),
        )
        for entity in entities:
            given = ",".join(f"{name}={value}" for name, value in _QUOTAS.items())
            configure(self._bootstrap, admin, "--alter", "--add-config", given, *entity)
            said = " ".join(configure(self._bootstrap, admin, "--describe", *entity))
            for name, value in _QUOTAS.items():
                _expect(f"{name}={value}" in said, f"{name} of {entity} is not described: {said}")
            configure(self._bootstrap, admin, "--alter", "--delete-config", ",".join(_QUOTAS), *entity)
            said = " ".join(configure(self._bootstrap, admin, "--describe", *entity))
            _expect("byte_rate" not in said, f"the quotas of {entity} are still there: {said}")

    def manage_rules(self) -> None:
        admin = self._login(ADMIN, MECHANISMS[1])
        self._client.make_topic(self._bootstrap, admin, TOPIC)
        add = ("--add", "--allow-principal", f"User:{USER}")
        self._client.rule(self._bootstrap, admin, *add, "--producer", "--topic", TOPIC)
        self._client.rule(self._bootstrap, admin, *add, "--consumer", "--topic", TOPIC, "--group", GROUP)
        prefixed = ("--operation", "Read", "--topic", "app.", "--resource-pattern-type", "prefixed")
        self._client.rule(self._bootstrap, admin, *add, *prefixed)
        said = "\n".join(self._client.rule(self._bootstrap, admin, "--list"))
        for part in (f"name={TOPIC}", f"name={GROUP}", "patternType=PREFIXED", f"principal=User:{USER}"):
            _expect(part in said, f"{part} is not listed: {said}")
        gone = ("--remove", "--force", "--allow-principal", f"User:{USER}", *prefixed)
        self._client.rule(self._bootstrap, admin, *gone)
        said = "\n".join(self._client.rule(self._bootstrap, admin, "--list"))
        _expect("PREFIXED" not in said, f"the rule is still listed: {said}")

    def use(self, mechanism: str) -> None:
        login = self._login(USER, mechanism)
        sent = [f"{mechanism} {number}" for number in range(10)]
        self._client.write(self._bootstrap, login, TOPIC, sent)
        got = self._client.read(self._bootstrap, login, TOPIC, GROUP, len(sent))
        _expect(got == sent, f"read {got}")

    def be_refused(self) -> None:
        user = self._login(USER)
        client, bootstrap = self._client, self._bootstrap
        _fails(
            "SaslAuthenticationException", partial(client.rule, bootstrap, self._login(USER, password="no"), "--list")
        )
        _fails("ClusterAuthorizationException", partial(client.rule, bootstrap, user, "--list"))
        _fails("GroupAuthorizationException", partial(client.read, bootstrap, user, TOPIC, "others", 1))
        _fails("TopicAuthorizationException", partial(client.make_topic, bootstrap, user, "another"))


def _expect(is_so: bool, said: str) -> None:
    if not is_so:
        raise StepFailedError(said)


def _fails(reason: str, do: Callable[[], list[str]]) -> None:
    try:
        said = do()
    except StepFailedError as error:
        _expect(reason in str(error), f"expected {reason}: {error}")
        return
    _expect(any(reason in line for line in said), f"expected {reason}, but it worked: {said}")
