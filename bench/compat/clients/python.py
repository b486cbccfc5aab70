"""The Python clients, for what the everyday tests leave to this command: transactions."""

from __future__ import annotations

import importlib.metadata
import sys


class PythonClient:
    """One of the Python clients, which the development lock file has installed already."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._program = [sys.executable, "-m", "bench.compat.programs.python.worker", "--client", name]

    def install(self) -> str:
        return importlib.metadata.version(self.name)

    @property
    def worker(self) -> list[str]:
        return [*self._program, "--do", "work"]

    @property
    def reader(self) -> list[str]:
        return [*self._program, "--do", "read"]
