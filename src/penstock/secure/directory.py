"""The directory of a secured node: its settings, certificates, keys and, for the first node, the admin's credentials.

``init`` makes one for the first node, with the cluster's authority in it; ``add_node`` makes those of further nodes,
each to be carried to its machine. Every file can be read by its owner alone. Nothing is ever overwritten but
certificates that are issued anew, and those are replaced as a whole, so that a node never reads half of one.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from penstock.access import api_keys
from penstock.access.principal import Principal, check_name
from penstock.access.scram import SALT_BYTES, ScramMechanism, derive
from penstock.errors import InvalidRequest
from penstock.secure.authority import CERTIFICATE_DAYS, Authority, KeyPair, expiry_of, identity_of, make_authority
from penstock.secure.bootstrap import Bootstrap

ADMIN: Final = "admin"
SETTINGS: Final = "penstock.yaml"
_PASSWORD_BYTES: Final = 24
_TOKEN_BYTES: Final = 32
_MASTER_KEY_BYTES: Final = 32
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """A node that is to be: its id, the hosts that clients and nodes reach it by, and where it listens."""

    node_id: int = 1
    hosts: Sequence[str] = ()
    kafka: str = "127.0.0.1:9092"
    http: str = "127.0.0.1:8080"
    grpc: str = "127.0.0.1:9000"
    internal: str | None = None
    join: str | None = None


@dataclass(frozen=True, slots=True)
class CertificateStatus:
    """A certificate of the directory, and until when it is good."""

    path: Path
    expires: datetime

    def days_left(self, now: datetime) -> int:
        return (self.expires - now).days


class SecureDirectory:
    """What `penstock secure` keeps in one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def init(self, plan: NodePlan) -> None:
        """Make the directory of the first node, with everything on."""
        self._claim()
        now = datetime.now(UTC)
        authority = make_authority(now)
        self._write("ca.pem", authority.certificate)
        self._write("ca.key", authority.key)
        signer = Authority(authority)
        self._write_pair(ADMIN, signer.issue_client(ADMIN, now))
        self._write_admin(int(now.timestamp() * 1000))
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._write("cluster.token", f"{token}\n".encode())
        self._write_node(plan, signer, token, now)

    def add_node(self, target: SecureDirectory, plan: NodePlan) -> None:
        """Make the directory of another node of the same cluster."""
        signer = self._authority()
        token = self._read("cluster.token").decode().strip()
        target._claim()
        target._write("ca.pem", self._read("ca.pem"))
        target._write_node(plan, signer, token, datetime.now(UTC))

    def add_client(self, name: str) -> tuple[Path, Path]:
        """Make a certificate that the user of that name logs in with; its files."""
        check_name(name)
        if any(sign in name for sign in "/\\") or name in {"ca", "node", ADMIN, ".", ".."}:
            raise InvalidRequest(f"{name!r} cannot be the name of the files; choose another one.")
        pair = self._authority().issue_client(name, datetime.now(UTC))
        return self._write_pair(name, pair)

    def rotate(self, target: SecureDirectory | None = None) -> list[Path]:
        """Issue certificates anew, here or in a directory that `add_node` made; nodes take them without a restart."""
        signer, now = self._authority(), datetime.now(UTC)
        target = target or self
        pairs = {"node": signer.issue_node(*identity_of(target._read("node.pem")), now)}
        if target.path == self.path:
            pairs[ADMIN] = signer.issue_client(ADMIN, now)
        for name, pair in pairs.items():
            # The key first: a node that looks in between keeps what it has, because the two do not match.
            target._replace(f"{name}.key", pair.key)
            target._replace(f"{name}.pem", pair.certificate)
        return [target.path / f"{name}.pem" for name in pairs]

    def certificates(self) -> Iterator[CertificateStatus]:
        """Every certificate in the directory."""
        self._read(SETTINGS)
        for path in sorted(self.path.glob("*.pem")):
            yield CertificateStatus(path, expiry_of(path.read_bytes()))

    def exposed(self) -> list[Path]:
        """Files that others than their owner can read."""
        return [path for path in sorted(self.path.iterdir()) if path.is_file() and path.stat().st_mode & 0o077]

    # -- writing ------------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Make the directory, or refuse one in which there is anything."""
        try:
            self.path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            self.path.chmod(_DIRECTORY_MODE)
            taken = next(self.path.iterdir(), None)
        except OSError as error:
            raise InvalidRequest(f"{self.path} cannot be used: {error.strerror}. Choose another directory.") from error
        if taken is not None:
            raise InvalidRequest(
                f"{self.path} is not empty ({taken.name} is there), and nothing in it is overwritten. "
                "Choose another directory; `penstock secure rotate` issues new certificates in an existing one."
            )

    def _write_node(self, plan: NodePlan, signer: Authority, token: str, now: datetime) -> None:
        hosts = [*LOCAL_HOSTS, *plan.hosts]
        self._write_pair("node", signer.issue_node(plan.node_id, hosts, now, CERTIFICATE_DAYS))
        key = base64.b64encode(secrets.token_bytes(_MASTER_KEY_BYTES)).decode()
        self._write("master.key", f"1:{key}\n".encode())
        self._write(SETTINGS, self._settings_text(plan, token).encode())

    def _settings_text(self, plan: NodePlan, token: str) -> str:
        broker = {
            "node_id": plan.node_id,
            "data_dir": str(self.path / "data"),
            "kafka": plan.kafka,
            "http": plan.http,
            "grpc": plan.grpc,
        }
        cluster = {"token": token}
        if plan.internal is not None:
            broker["internal"] = plan.internal
        if plan.join is not None:
            cluster["join"] = plan.join
        security: dict[str, object] = {
            "enabled": True,
            "super_users": str(Principal(ADMIN)),
            "sasl_mechanisms": ",".join(_MECHANISMS),
            "tls": {
                "certificate": str(self.path / "node.pem"),
                "key": str(self.path / "node.key"),
                "ca": str(self.path / "ca.pem"),
                "client_auth": "want",
                "internal": plan.internal is not None,
            },
            "encryption": {"master_key_file": str(self.path / "master.key")},
        }
        if (self.path / "bootstrap.json").exists():
            security["bootstrap_file"] = str(self.path / "bootstrap.json")
        body = yaml.safe_dump({"broker": broker, "cluster": cluster, "security": security}, sort_keys=False)
        return f"# Run this node with: penstock serve --config {self.path / SETTINGS}\n{body}"

    def _write_admin(self, now_ms: int) -> None:
        """The first user, with a password and an API key: for people in the clear, for the node hashed."""
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        key_id, text, secret_hash = api_keys.make_text(
            secrets.token_bytes(api_keys.ID_BYTES), secrets.token_bytes(api_keys.SECRET_BYTES)
        )
        bootstrap = Bootstrap(
            user=ADMIN,
            credentials=tuple(
                derive(mechanism, password, secrets.token_bytes(SALT_BYTES)) for mechanism in ScramMechanism
            ),
            key=api_keys.ApiKey(
                key_id=key_id,
                principal=str(Principal(ADMIN)),
                secret_hash=secret_hash,
                created_ms=now_ms,
                description="made by penstock secure init",
            ),
        )
        self._write("admin.credentials", f"{ADMIN}\n{password}\n".encode())
        self._write("admin.token", f"{text}\n".encode())
        self._write("bootstrap.json", bootstrap.encode())

    def _write_pair(self, name: str, pair: KeyPair) -> tuple[Path, Path]:
        return self._write(f"{name}.pem", pair.certificate), self._write(f"{name}.key", pair.key)

    def _write(self, name: str, data: bytes) -> Path:
        """A new file, never readable by others, not even for a moment."""
        path = self.path / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        except FileExistsError as error:
            raise InvalidRequest(f"{path} exists; move it away first.") from error
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _replace(self, name: str, data: bytes) -> None:
        aside = self.path / f".{name}.new"
        aside.unlink(missing_ok=True)
        self._write(aside.name, data).replace(self.path / name)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _authority(self) -> Authority:
        return Authority(KeyPair(self._read("ca.pem"), self._read("ca.key")))

    def _read(self, name: str) -> bytes:
        path = self.path / name
        try:
            return path.read_bytes()
        except OSError as error:
            hint = " Only the directory of the first node has the authority's key." if name == "ca.key" else ""
            raise InvalidRequest(
                f"{path} cannot be read: {error.strerror}. Is {self.path} a directory of `penstock secure init`?{hint}"
            ) from error
