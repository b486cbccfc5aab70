"""The composition root: settings become a running node.

Here, and nowhere else, the layers are put together, each with its section of the settings (`penstock.node.configs`). A
node starts from the inside out (data, broker, doors) and stops from the outside in, so that a request taken is a
request answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Union

from penstock import __version__
from penstock.broker.broker import Broker
from penstock.broker.reports import serve_report
from penstock.broker.surroundings import Surroundings
from penstock.clock import Clock, SystemClock
from penstock.config.kinds import Address
from penstock.config.settings import Settings, exposed_doors
from penstock.consensus.commands import BeginAccess
from penstock.doors.kafka.server import KafkaServer
from penstock.doors.rest.server import HttpServer
from penstock.network.certificates import Certificates
from penstock.network.tcp import TcpPeers
from penstock.node.addresses import Listeners
from penstock.node.configs import broker_config, grpc_config, http_config, kafka_config
from penstock.node.encryption import Encryption
from penstock.node.limits import SPARE_DESCRIPTORS, keep_heap, raise_file_limit, settle_memory, warn_of_limits
from penstock.operations.asking import OperationService
from penstock.operations.services import Services
from penstock.secure.bootstrap import read_bootstrap
from penstock.storage.files import DiskFiles, Files

if TYPE_CHECKING:
    from penstock.doors.grpc.server import GrpcServer

log = logging.getLogger(__name__)

_CERTIFICATES_LOOK_S: Final = 1.0

OnReady = Callable[["Node"], Awaitable[None]]
Door = Union[KafkaServer, HttpServer, "GrpcServer"]


class Node:
    """One node: a broker and its doors. Constructing it opens the data directory."""

    def __init__(self, settings: Settings, files: Files | None = None, clock: Clock | None = None) -> None:
        self.settings = settings
        self._listeners = listeners = Listeners.choose(settings.broker)
        self.kafka_address, self.http_address, self.grpc_address = listeners.kafka, listeners.http, listeners.grpc
        tls = settings.security.tls
        clock, ports = clock or SystemClock(), listeners.ports(has_tls=tls.is_on)
        self._certificates = certificates = Certificates(tls) if tls.is_on else None
        self._peers = TcpPeers(
            settings.broker.node_id,
            host="" if listeners.internal is None else listeners.internal.host,
            port=None if listeners.internal is None else listeners.internal.port,
            token=settings.cluster.token,
            clock=clock,
            ports=ports,
            certificates=certificates,
            tls=tls,
        )
        self._own_files: DiskFiles | None = None
        if files is None:
            files = self._own_files = DiskFiles(spares=SPARE_DESCRIPTORS)
        self.encryption = Encryption(settings, files)
        files = self.encryption.files
        surroundings = Surroundings(peers=self._peers, files=files, clock=clock)
        self.broker = Broker(broker_config(settings, listeners.endpoints(settings.broker)), surroundings)
        serve_report(self.broker)
        self._kafka = KafkaServer(self.broker, kafka_config(settings, self.kafka_address, ports), certificates)
        self.services = Services.of(self.broker, master_keys=self.encryption.ring)
        self._operations = OperationService(self.services)
        self._http = HttpServer(self.services, http_config(settings, self.http_address, ports), certificates)
        self._grpc = None if self.grpc_address is None else self._make_grpc(self.grpc_address)
        self._doors: list[Door] = []  # those that are open
        self._looking: asyncio.Task[None] | None = None
        if certificates is not None:
            self.services.concerns["tls_files"] = lambda: certificates.problem

    async def start(self) -> None:
        """Take part in the cluster and open the doors. If anything fails, all is closed again before the error is
        raised. The HTTP and gRPC doors open first: they can tell what the node is waiting for.
        """
        self._listeners.check_free()
        self._tell_exposure()
        asyncio.get_running_loop().set_exception_handler(self.broker.supervision.note_unhandled)
        try:
            if self._grpc is not None:
                await self._open(self._grpc)
            # As soon as other nodes can call, this one has to be about to answer.
            await self._peers.start()
            await self._open(self._http)
            await self.broker.start(self._begin_access)
            await self._open(self._kafka)
            if self._certificates is not None:
                self._looking = self.broker.supervision.start("certificates", self._look_at_certificates)
            if self._grpc is not None:
                self._grpc.announce_start()
        except BaseException:
            await self.stop()
            raise

    async def _begin_access(self) -> None:
        """Give a new cluster its first user."""
        path = self.settings.security.bootstrap_file
        access = self.broker.metadata.access
        if path is not None and not access.credentials and not access.keys:
            first = read_bootstrap(path)
            await self.broker.command(BeginAccess(user=first.user, credentials=first.credentials, key=first.key))

    def _tell_exposure(self) -> None:
        """Say loudly what the settings accept in silence."""
        security, exposed = self.settings.security, exposed_doors(self.settings.broker)
        if exposed and not security.enabled:
            log.warning(
                "INSECURE: %s can be reached by other machines, and every client may do everything "
                "(security.insecure). Turn on security.enabled.",
                ", ".join(exposed),
            )

    def _make_grpc(self, address: Address) -> GrpcServer:
        # The library is large: only a node with a gRPC door loads it, and before anything runs.
        from penstock.doors.grpc.server import GrpcServer

        return GrpcServer(self.services, grpc_config(self.settings, address), self._certificates)

    async def _look_at_certificates(self) -> None:
        """Read them again when they change: they expire, and a node should not have to restart for it."""
        assert self._certificates is not None, "TLS is on"
        while True:
            await asyncio.sleep(_CERTIFICATES_LOOK_S)
            self._certificates.look()

    async def _open(self, door: Door) -> None:
        await door.start()
        self._doors.append(door)

    async def stop(self) -> None:
        """Hand over what is led, take nothing more, answer what was taken, and close everything in good order."""
        if self._looking is not None:
            self._looking.cancel()
        grace_seconds = self.settings.broker.grace_ms / 1000
        if self._grpc is not None:
            await self._grpc.announce_stop()
        await self.broker.leave()
        self._operations.stop()
        doors, self._doors = self._doors, []
        await self.broker.groups.stop()  # members waiting for each other would hold their connections open
        try:
            async with asyncio.timeout(grace_seconds):
                await asyncio.gather(*(door.stop() for door in doors))
        except TimeoutError:
            log.warning("Some clients did not finish within %.0f s and are cut off.", grace_seconds)
        finally:
            await self.broker.close()
            await self._peers.stop()
            if self._own_files is not None:
                self._own_files.close()


def run(settings: Settings, on_ready: OnReady | None = None) -> int:
    """Run a node until SIGTERM or SIGINT, and return the exit code. A second signal ends it at once."""
    raise_file_limit()
    warn_of_limits(settings)
    keep_heap()
    node = Node(settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(node, on_ready))


async def _serve(node: Node, on_ready: OnReady | None) -> int:
    is_stopping = asyncio.Event()
    _listen_for_signals(is_stopping)
    if node.encryption.ring is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, node.encryption.ring.rotate_soon)
    if not await _start(node, is_stopping):
        return 0
    settle_memory()
    log.info(
        "Penstock is ready.",
        extra={
            "version": __version__,
            "node_id": node.settings.broker.node_id,
            "kafka": str(node.kafka_address),
            "http": str(node.http_address),
            "grpc": None if node.grpc_address is None else str(node.grpc_address),
            "data_dir": str(node.settings.broker.data_dir),
            "partitions": len(node.broker.replicas),
        },
    )
    try:
        if on_ready is not None:
            await on_ready(node)
        await is_stopping.wait()
    finally:
        log.info("Stopping.")
        exit_code = await _stop_in_time(node)
    return exit_code


async def _start(node: Node, is_stopping: asyncio.Event) -> bool:
    """Start the node; False if it was told to stop before it was ready, as while it waits for its cluster."""
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(is_stopping.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    log.info("Stopped before the node was ready.")
    return False


async def _stop_in_time(node: Node) -> int:
    seconds = node.settings.broker.shutdown_timeout_ms / 1000
    try:
        async with asyncio.timeout(seconds):
            await node.stop()
    except TimeoutError:
        # A thread may hang in a sync that never returns; nothing acknowledged is lost by leaving it.
        log.error("Could not stop in good order within %.0f s; the next start recovers the logs.", seconds)
        os._exit(1)
    log.info("Stopped.")
    return 0


def _listen_for_signals(is_stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if is_stopping.is_set():
            os._exit(128 + number)
        is_stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
