"""A node with security on, and clients of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import asdict
from tests.integration.http.conftest import DoorInThread, http_config

from penstock.access.acls import CLUSTER_NAME, Acl, AclAction, AclFilter, AclResource
from penstock.config.settings import SecuritySettings
from penstock.consensus.commands import AddAcls, RemoveAcls

ROOT = ("root", "the password of root")
NOBODY = ("nobody", "the password of nobody")
KEEPER = Acl(principal="User:keeper", action=AclAction.ALTER, resource=AclResource.CLUSTER, name=CLUSTER_NAME)
ALICE = ("alice", "the password of alice")


class SecureDoor(DoorInThread):
    """A door that asks who calls. Rules are changed through the controller, as over any door."""

    def __init__(self, directory: Path, **more: Any) -> None:
        bootstrap = directory / "bootstrap"
        bootstrap.parent.mkdir(parents=True, exist_ok=True)
        bootstrap.write_text(f"{ROOT[1]}\n")
        security = SecuritySettings(enabled=True, super_users=("User:root",), bootstrap_password_file=bootstrap, **more)
        super().__init__(directory / "data", http_config(), security=security)
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.root = self.client_of(ROOT)
        for user, password in (NOBODY, ALICE):
            self.root.put(f"/v1/users/{user}", json={"password": password}).raise_for_status()

    def client_of(self, login: tuple[str, str] | str | None) -> httpx.Client:
        """A client with a name and password, with a token, or without anything."""
        if isinstance(login, str):
            token = {"Authorization": f"Bearer {login}"}
            return httpx.Client(base_url=self.url, timeout=60, headers=token, verify=False)
        return httpx.Client(base_url=self.url, timeout=60, auth=login, verify=False)

    def ensure_topic(self, name: str) -> None:
        if not self.look(lambda broker: name in broker.metadata.topics):
            self.root.post("/v1/topics", json={"name": name, "partitions": 1}).raise_for_status()

    def set_rules(self, wanted: Iterable[Acl]) -> None:
        """These rules about the users of the tests, and no others; the last administrator cannot be removed."""
        acls = list(wanted)
        users = ("User:alice", "User:nobody", "User:*")
        self.run(self.broker.command(AddAcls(acls=(*acls, KEEPER))))
        going = {acl for acl in self.look(lambda broker: list(broker.metadata.access.acls)) if acl.principal in users}
        filters = tuple(AclFilter(**asdict(acl)) for acl in going - set(acls))
        if filters:
            self.run(self.broker.command(RemoveAcls(filters=filters)))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureDoor]:
    door = SecureDoor(tmp_path_factory.mktemp("secure"))
    yield door
    door.close()
