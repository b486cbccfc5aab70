"""Penstock with everything on, as `penstock secure` sets it up: TLS at the doors and between nodes, logins, encryption.

The directories of certificates and keys lie beside those of the nodes: a node that loses its disk keeps its identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.login import Login
from bench.chaos.software import PenstockNodes, Place, records_in
from penstock.secure.directory import SETTINGS, NodePlan, SecureDirectory
from penstock.storage.encryption.directory import open_encrypted
from penstock.storage.encryption.keys import KeySource
from penstock.storage.files import DiskFiles

_FIRST = 1  # the node with the authority


@dataclass(frozen=True, slots=True)
class SecuredNodes(PenstockNodes):
    """A secured cluster; ``home`` is where the directories of its nodes are made."""

    home: Path = Path("secure")

    @property
    def login(self) -> Login:
        first = self._directory(_FIRST)
        user, password = (first / "admin.credentials").read_text().splitlines()
        settings = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(first / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        }
        return Login(settings, first / "ca.pem", first / "admin.token")

    def command(self, place: Place, first: Sequence[Place]) -> tuple[list[str], Mapping[str, str]]:
        settings = self._settings_of(place)
        command, environment = PenstockNodes.command(self, place, first)
        open_to_all = ("PENSTOCK_CLUSTER__TOKEN", "PENSTOCK_SECURITY__INSECURE")
        kept = {name: value for name, value in environment.items() if name not in open_to_all}
        return [*command, "--config", str(settings)], kept

    def replica(self, place: Place, topic: str, partition: int) -> Iterator[tuple[int, bytes]]:
        keys = KeySource(self._directory(place.number) / "master.key", None, None)
        files = open_encrypted(DiskFiles(), place.data_dir, keys, is_encrypting=False)
        yield from records_in(place.data_dir / "logs" / topic / str(partition), files)

    def _directory(self, number: int) -> Path:
        return self.home / f"node-{number}"

    def _settings_of(self, place: Place) -> Path:
        """The settings of a node, which are made with its certificate when it is started for the first time."""
        directory = SecureDirectory(self._directory(place.number))
        if not (directory.path / SETTINGS).exists():
            plan = NodePlan(
                node_id=place.number,
                hosts=[place.host],
                kafka=place.kafka,
                http=place.http,
                internal=place.internal,
            )
            if place.number == _FIRST:
                directory.init(plan)
            else:
                SecureDirectory(self._directory(_FIRST)).add_node(directory, plan)
        return directory.path / SETTINGS
