"""Java's kafka-clients: through the console tools that come with Apache Kafka, and through programs of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compat.codecs import Reader
from bench.compat.logins import CERTIFICATE, NONE, TOKEN, Login, Refusals
from bench.compat.steps import PROGRAMS, run
from bench.install import ensure_command
from bench.kafka import fetch
from bench.targets import CACHE

_QUIET = ("-Dlog4j2.level=ERROR", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


class Java:
    """kafka-clients from Maven Central."""

    name = "java"
    strategies = ("range", "cooperative-sticky", "consumer")
    _home = CACHE / "compat" / "java"

    def __init__(self) -> None:
        self._java = ["java"]

    def install(self) -> str:
        ensure_command("javac", "default-jdk-headless")
        version = fetch(None)
        libraries = f"{CACHE}/kafka-{version}/libs/*"
        self._home.mkdir(parents=True, exist_ok=True)
        run(["javac", "-d", self._home, "-cp", libraries, *sorted((PROGRAMS / "java").glob("*.java"))])
        self._java = ["java", *_QUIET, "-cp", f"{self._home}:{libraries}"]
        return version

    def _run(self, main: str, *arguments: str, given: Sequence[str] = ()) -> list[str]:
        return run([*self._java, f"org.apache.kafka.tools.{main}", *arguments], given=given)

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

    logins = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", CERTIFICATE, TOKEN)
    refusals = Refusals(
        ("SaslAuthenticationException",),
        ("TimeoutException", "DisconnectException", "SslAuthenticationException"),
        ("TopicAuthorizationException",),
    )

    def round_trip(self, login: Login, directory: Path, topic: str, text: str) -> list[str]:
        settings = directory / "login.properties"
        settings.touch(mode=0o600)
        settings.write_text("".join(f"{name}={value}\n" for name, value in properties(login, directory).items()))
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token_file(directory).as_uri()}"
        return run([*self._java[:1], allowed, *self._java[1:], "Login", settings, topic, text])

    # -- Kafka's tools, with a login ----------------------------------------------------------------------------------

    def configure(self, bootstrap: str, settings: Path | None, *arguments: str) -> list[str]:
        login = () if settings is None else ("--command-config", str(settings))
        return run([*self._java, "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, *login, *arguments])

    def rule(self, bootstrap: str, settings: Path, *arguments: str) -> list[str]:
        return self._run("AclCommand", "--bootstrap-server", bootstrap, "--command-config", str(settings), *arguments)

    def make_topic(self, bootstrap: str, settings: Path, topic: str) -> list[str]:
        where = ["--bootstrap-server", bootstrap, "--command-config", str(settings)]
        return self._run("TopicCommand", *where, "--create", "--topic", topic, "--partitions", "1")

    def write(self, bootstrap: str, settings: Path, topic: str, lines: Sequence[str]) -> list[str]:
        where = ["--bootstrap-server", bootstrap, "--command-config", str(settings), "--topic", topic]
        return self._run("ConsoleProducer", *where, given=lines)

    def read(self, bootstrap: str, settings: Path, topic: str, group: str, count: int) -> list[str]:
        where = ["--bootstrap-server", bootstrap, "--command-config", str(settings), "--topic", topic]
        limits = ["--max-messages", str(count), "--timeout-ms", "30000", "--from-beginning", "--group", group]
        return self._run("consumer.ConsoleConsumer", *where, *limits)

    def member(self, strategy: str) -> list[str]:
        return [*self._java, "Member", "--strategy", strategy]

    @property
    def worker(self) -> list[str]:
        return [*self._java, "Worker", "--do", "work"]

    @property
    def reader(self) -> list[str]:
        return [*self._java, "Worker", "--do", "read"]


def token_file(directory: Path) -> Path:
    return directory / "token.jwt"


def properties(login: Login, directory: Path) -> dict[str, str]:
    """The settings of a Java client that logs in; files in PEM, which it takes without a keystore."""
    found = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": login.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": login.ca,
    }
    if login.how == CERTIFICATE:
        both = directory / "keystore.pem"
        both.touch(mode=0o600)
        both.write_text(Path(login.key).read_text() + Path(login.certificate).read_text())
        return {**found, "ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    if login.how == NONE:
        return found
    found["sasl.mechanism"] = login.how
    security = "org.apache.kafka.common.security"
    if login.how == TOKEN:
        path = token_file(directory)
        path.touch(mode=0o600)
        path.write_text(login.token)
        return {
            **found,
            "sasl.jaas.config": f"{security}.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{security}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }
    module = "plain.PlainLoginModule" if login.how == "PLAIN" else "scram.ScramLoginModule"
    names = f'username="{login.user}" password="{login.password}"'
    return {**found, "sasl.jaas.config": f"{security}.{module} required {names};"}
