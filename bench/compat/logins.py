"""The scenario "security", first part: a client logs in by every way it has, over TLS, to a node of `secure init`.

A user with rights to one topic produces one message and reads it back, by password in every mechanism, by certificate
and by token. It is refused with the right error with a wrong secret, without a login, and at a topic of others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.secured_node import SecuredNode

from bench.compat.brokers import Running
from bench.compat.steps import Result, StepFailedError, step
from bench.targets import Penstock

USER, PASSWORD, TOPIC, FORBIDDEN = "alice", "wonderland-4711", "orders", "secret"
ISSUER, AUDIENCE = "https://issuer.example", "penstock"
CERTIFICATE, NONE, TOKEN = "certificate", "none", "OAUTHBEARER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to log in: a SASL mechanism, by certificate, or not at all. Programs get it as a file of JSON."""

    bootstrap: str
    ca: str
    how: str
    user: str = USER
    password: str = field(default=PASSWORD, repr=False)
    certificate: str = ""
    key: str = ""
    token: str = field(default="", repr=False)

    @property
    def protocol(self) -> str:
        return "SSL" if self.how in (CERTIFICATE, NONE) else "SASL_SSL"

    def write(self, path: Path) -> Path:
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))
        return path

    def librdkafka(self) -> dict[str, str]:
        """The settings of librdkafka, but for tokens, which it asks its program for."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "ssl.ca.location": self.ca,
        }
        if self.how == CERTIFICATE:
            return {**settings, "ssl.certificate.location": self.certificate, "ssl.key.location": self.key}
        if self.how == NONE:
            return settings
        settings["sasl.mechanism"] = self.how
        return (
            settings
            if self.how == TOKEN
            else {
                **settings,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        )


@dataclass(frozen=True, slots=True)
class Refusals:
    """What a client says to a wrong secret, without a login, and at a topic that is not for it; any word of each."""

    wrong: Sequence[str]
    none: Sequence[str]
    forbidden: Sequence[str]
    wrong_token: Sequence[str] = ()  # beside those for a wrong secret: not every client knows the challenge of RFC 7628


@runtime_checkable
class LogsIn(Protocol):
    """A client that can log in."""

    name: str
    logins: Sequence[str]
    refusals: Refusals

    def round_trip(self, login: Login, directory: Path, topic: str, text: str) -> list[str]:
        """Produce the text and read the topic from its beginning up to it; what was read, line by line."""


def play(client: LogsIn, broker: Running) -> Iterator[Result]:
    if not isinstance(broker.broker.target, Penstock):
        return
    scene = Scene(client, broker.scratch / f"logins-{client.name}")
    started = step(client.name, "a node of secure init", scene.start)
    yield started
    if not started.passed:
        return
    try:
        for how in client.logins:
            yield step(client.name, f"login by {how}", partial(scene.log_in, how))
        for how in client.logins:
            if how != CERTIFICATE:
                yield step(client.name, f"wrong secret by {how}", partial(scene.be_refused, how))
        yield step(client.name, "no login", scene.be_refused_without)
        yield step(client.name, "no right to a topic", scene.be_denied)
    finally:
        scene.stop()


class Scene:
    """A secured node with a user, and the files that the user logs in with."""

    def __init__(self, client: LogsIn, directory: Path) -> None:
        self._client = client
        self._directory = directory
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._node: SecuredNode | None = None
        self._said = 0

    def start(self) -> None:
        node = SecuredNode(self._directory)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        keys = self._directory / "jwks.json"
        keys.write_text(json.dumps({"keys": [{**public, "kid": "one", "use": "sig"}]}))
        node.settings = {
            "security__sasl_mechanisms": f"PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,{TOKEN}",
            "security__oidc__issuer": ISSUER,
            "security__oidc__audience": AUDIENCE,
            "security__oidc__jwks_file": keys,
        }
        self._node = node
        node.start()
        for topic in (TOPIC, FORBIDDEN):
            self._call("POST", "/v1/topics", {"name": topic, "partitions": 1})
        self._call("PUT", f"/v1/users/{USER}", {"password": PASSWORD})
        for role, resource, name in (("writer", "topic", TOPIC), ("reader", "topic", TOPIC), ("reader", "group", "*")):
            granted = {"role": role, "principal": f"User:{USER}", "resource": resource, "name": name}
            self._call("POST", "/v1/roles/grant", granted)
        made = node.cli("secure", "add-client", node.secure, USER)
        _expect(made.returncode == 0, made.stderr)

    def _call(self, method: str, path: str, body: object) -> None:
        assert self._node is not None
        status, answer = self._node.call(method, path, body)
        _expect(status < 300, f"{method} {path}: {status} {answer}")

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()
            secrets = (PASSWORD, self._node.password, self._node.token)
            assert not any(secret in self._node.log_text for secret in secrets), "a secret is in the node's log"
            self._node = None

    def _login(self, how: str) -> Login:
        node = self._node
        assert node is not None
        now = time.time()
        claims = {"sub": USER, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 3600, "scope": "kafka"}
        return Login(
            bootstrap=f"localhost:{node.kafka_port}",
            ca=node.ca,
            how=how,
            certificate=str(node.secure / f"{USER}.pem"),
            key=str(node.secure / f"{USER}.key"),
            token=jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": "one"}),
        )

    def _round_trip(self, login: Login, topic: str = TOPIC) -> tuple[str, list[str]]:
        self._said += 1
        text = f"{login.how} {self._said}"
        return text, self._client.round_trip(login, self._directory, topic, text)

    def log_in(self, how: str) -> None:
        text, got = self._round_trip(self._login(how))
        _expect(got[-1:] == [text], f"read {got}")

    def be_refused(self, how: str) -> str:
        login = self._login(how)
        stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        claims = jwt.decode(login.token, options={"verify_signature": False})
        forged = jwt.encode(claims, stranger, algorithm="RS256", headers={"kid": "one"})
        refusals = self._client.refusals
        words = [*refusals.wrong, *(refusals.wrong_token if how == TOKEN else ())]
        return self._fails(replace(login, password="wrong", token=forged), words)

    def be_refused_without(self) -> str:
        return self._fails(self._login(NONE), self._client.refusals.none)

    def be_denied(self) -> str:
        return self._fails(self._login("SCRAM-SHA-256"), self._client.refusals.forbidden, FORBIDDEN)

    def _fails(self, login: Login, words: Sequence[str], topic: str = TOPIC) -> str:
        try:
            _, got = self._round_trip(login, topic)
        except StepFailedError as error:
            found = [word for word in words if word in str(error)]
            _expect(bool(found), f"expected {' or '.join(words)}: {error}")
            return found[0]
        raise StepFailedError(f"it worked, and read {got}")


def _expect(is_so: bool, said: str) -> None:
    if not is_so:
        raise StepFailedError(said)
