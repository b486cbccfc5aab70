"""How clients log in to the cluster under test: not at all, or as the admin of a secured one.

Client processes get it as the path of a file in their environment, so that no password is among their arguments.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "CHAOS_LOGIN"


@dataclass(frozen=True, slots=True)
class Login:
    """``kafka`` are librdkafka's settings beside the addresses; ``ca`` and ``token_file`` are for HTTP."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca: Path | None = None
    token_file: Path | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.ca else "http"

    @property
    def context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.ca) if self.ca else None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token_file.read_text().strip()}"} if self.token_file else {}

    @property
    def options(self) -> list[str]:
        """For Penstock's own commands."""
        ca = ["--ca", str(self.ca)] if self.ca else []
        return ca + (["--token-file", str(self.token_file)] if self.token_file else [])

    def environment(self, directory: Path) -> dict[str, str]:
        """What a client process is to be started with."""
        if not self.kafka:
            return {}
        path = directory / "login.json"
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self.kafka))
        return {VARIABLE: str(path)}


def kafka_login() -> dict[str, str]:
    """In a client process: the settings that it logs in with."""
    path = os.environ.get(VARIABLE)
    return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, str]) if path else {}
