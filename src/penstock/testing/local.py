"""A real broker in the process of your tests: a node with its doors on free ports, in a thread of its own.

Nothing of it is a stand-in. Kafka clients, HTTP clients and `penstock.Client` reach it as they reach any other node.
Its data is in a temporary directory that goes with it, and nothing is synced unless you ask for that: tests need the
promises of a broker, not that they outlive a power cut.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from penstock.config.settings import SETTINGS, Settings, build
from penstock.errors import InvalidConfig
from penstock.extras import needs

if TYPE_CHECKING:
    from penstock.client.generated.sync import Client
    from penstock.node.server import Node

_DEFAULTS: Final[Mapping[str, object]] = {
    "broker.kafka": "127.0.0.1:0",
    "broker.http": "127.0.0.1:0",
    "storage.fsync": "none",
    "defaults.topic.partitions": 1,
    "groups.initial_delay_ms": 0,
}
_PATIENCE_S: Final = 30.0


class LocalBroker:
    """One node. Use it as a context manager, or call `start` and `stop`.

    ``settings`` are those of the configuration by their full names, as in ``{"defaults.topic.partitions": 6}``. The
    gRPC door stays closed unless ``grpc`` is true, because its library takes a while to load. Give a ``data_dir`` to
    keep the data.
    """

    def __init__(
        self, *, settings: Mapping[str, object] | None = None, data_dir: Path | None = None, grpc: bool = False
    ) -> None:
        self._chosen: dict[str, object] = {**_DEFAULTS, "broker.grpc": "127.0.0.1:0" if grpc else "null"}
        self._chosen |= settings or {}
        self._data_dir = data_dir
        self._scratch: Path | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._node: Node | None = None

    def __repr__(self) -> str:
        return f"<LocalBroker at {self.url}>" if self._thread is not None else "<LocalBroker, not running>"

    def __enter__(self) -> LocalBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- where it is --------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """For `penstock.Client`, REST and WebSocket clients."""
        return f"http://{self._running().http_address}"

    @property
    def bootstrap(self) -> str:
        """For Kafka clients: their ``bootstrap.servers``."""
        return str(self._running().kafka_address)

    @property
    def grpc(self) -> str:
        """The target for gRPC channels."""
        address = self._running().grpc_address
        if address is None:
            raise InvalidConfig("The gRPC door of this broker is closed. Make it with LocalBroker(grpc=True).")
        return str(address)

    def client(self) -> Client:
        """A client of this broker. Close it when you are done with it."""
        from penstock.client.generated.sync import Client

        return Client(self.url)

    def _running(self) -> Node:
        if self._node is None:
            raise RuntimeError("This broker is not running. Use it as a context manager, or call start() first.")
        return self._node

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> LocalBroker:
        """Start the node; it serves when this returns."""
        if self._thread is not None:
            raise RuntimeError("This broker runs already.")
        if self._data_dir is None and self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="penstock-"))
        settings = self._settings()
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(settings, ready), name="penstock", daemon=True)
        self._thread.start()
        try:
            ready.result(_PATIENCE_S)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the node in good order, and remove its data unless it has a directory of its own."""
        self._end()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def restart(self) -> None:
        """Stop and start again, with the same data and on the same ports."""
        node = self._running()
        kept = {"broker.kafka": node.kafka_address, "broker.http": node.http_address, "broker.grpc": node.grpc_address}
        self._chosen |= {name: address for name, address in kept.items() if address is not None}
        self._end()
        self.start()

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join(_PATIENCE_S)
        self._node = self._loop = self._stopping = None

    def _settings(self) -> Settings:
        values = {}
        for name, value in {**self._chosen, "broker.data_dir": self._data_dir or self._scratch}.items():
            setting = SETTINGS.get(name)
            if setting is None:
                raise InvalidConfig(f"There is no setting {name!r}; docs/reference/configuration.md lists them.")
            try:
                values[name] = setting.kind.parse(str(value))
            except ValueError as error:
                raise InvalidConfig(f"Setting {name} cannot be {value!r}: {error}") from None
        return build(values)

    def _run(self, settings: Settings, ready: Future[None]) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve(settings, ready))

    async def _serve(self, settings: Settings, ready: Future[None]) -> None:
        stopping = asyncio.Event()
        try:
            with needs("server", "A broker for tests"):
                from penstock.node.server import Node
            node = Node(settings)
            await node.start()
        except BaseException as error:
            ready.set_exception(error)
            return
        self._node, self._loop, self._stopping = node, asyncio.get_running_loop(), stopping
        ready.set_result(None)
        await stopping.wait()
        await node.stop()
