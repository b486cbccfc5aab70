"""One host, several processes: ``penstock serve --shards N`` runs a node for each core and looks after them.

Python uses one core a process, so a host with many cores runs many nodes, and the cluster does the rest: partitions and
coordinators spread over them as over any nodes. Shard 0 is the node that was asked for, with its id, addresses and data
directory. The others join it: shard *k* of node *n* is node *n* x 1000 + *k*, listens *k* ports further on, and keeps
its data in ``shards/k`` below the data directory. All are in one rack, so that no two replicas of a partition share the
host while there is another one. A shard that dies is started again; the others go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Final

from penstock.config.kinds import Address
from penstock.config.settings import SETTINGS, Settings, value_at
from penstock.errors import StartupError

log = logging.getLogger(__name__)

SHARDS_MAX: Final = 64
_IDS_PER_NODE: Final = 1_000
_BACKOFF_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
_STEADY_S: Final = 30.0  # a shard that lived this long starts over with the shortest pause


def shard_environments(settings: Settings, shards: int) -> list[dict[str, str]]:
    """The settings in which each shard differs from the node that was asked for, as environment variables."""
    broker = settings.broker
    if broker.node_id >= _IDS_PER_NODE:
        raise StartupError(f"A node with shards needs an id below {_IDS_PER_NODE}, not {broker.node_id}.")
    internal = broker.internal or Address("127.0.0.1", _free_port("127.0.0.1"))
    if not internal.port:
        internal = Address(internal.host, _free_port(internal.host))
    rack = broker.rack or f"host-{broker.node_id}"
    reached_at = broker.advertised_internal or internal
    shared = {"broker.rack": rack}
    if not settings.cluster.peers and settings.cluster.join is None:
        # One host: no other process of it would outlive its power cut, so neither votes nor copies are worth anything.
        shared |= {"cluster.voters": "1", "cluster.internal_replication_factor": "1"}
        if settings.defaults.topic.replication_factor is None:
            shared["defaults.topic.replication_factor"] = "1"
    environments = [{"broker.internal": str(internal), **shared}]
    for shard in range(1, shards):
        chosen = {
            "broker.node_id": str(broker.node_id * _IDS_PER_NODE + shard),
            "broker.data_dir": str(broker.data_dir / "shards" / str(shard)),
            "broker.kafka": str(_further(broker.kafka, shard)),
            "broker.http": str(_further(broker.http, shard)),
            "broker.grpc": "null" if broker.grpc is None else str(_further(broker.grpc, shard)),
            "broker.internal": str(_further(internal, shard)),
            "cluster.peers": "",
            "cluster.join": str(reached_at),
            **shared,
        }
        for name in ("advertised_kafka", "advertised_http", "advertised_grpc", "advertised_internal"):
            advertised = getattr(broker, name)
            if advertised is not None:
                chosen[f"broker.{name}"] = str(_further(advertised, shard))
        environments.append(chosen)
    return [_variables(chosen) for chosen in environments]


def _further(address: Address, shard: int) -> Address:
    return Address(address.host, address.port + shard) if address.port else address


def _variables(chosen: Mapping[str, str]) -> dict[str, str]:
    return {"PENSTOCK_" + path.upper().replace(".", "__"): value for path, value in chosen.items()}


def _free_port(host: str) -> int:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        port: int = probe.getsockname()[1]
        return port


class ShardProcess:
    """One process, started again whenever it ends before it is told to."""

    def __init__(self, number: int, environment: Mapping[str, str]) -> None:
        self.number = number
        self._environment = {**os.environ, **environment}
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, is_stopping: asyncio.Event) -> int:
        """Keep the process alive until told to stop; its last exit code."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock", "serve", env=self._environment, stdin=asyncio.subprocess.DEVNULL
            )
            code = await self._process.wait()
            if is_stopping.is_set():
                return code
            failures = 0 if loop.time() - began > _STEADY_S else failures + 1
            pause = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
            log.error("Shard %d ended with %d; it is started again in %.1f s.", self.number, code, pause)
            try:
                async with asyncio.timeout(pause):
                    await is_stopping.wait()
            except TimeoutError:
                continue
            return code

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


def run_shards(settings: Settings, shards: int) -> int:
    """Run all shards of a node until SIGTERM or SIGINT; 0 if all of them stopped in good order."""
    return asyncio.run(_run_all(settings, shards))


async def _run_all(settings: Settings, shards: int) -> int:
    common = {setting.variable: setting.kind.show(value_at(settings, path)) for path, setting in SETTINGS.items()}
    environments = shard_environments(settings, shards)
    running = [ShardProcess(number, {**common, **environment}) for number, environment in enumerate(environments)]
    is_stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        is_stopping.set()
        for shard in running:
            shard.signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    codes = await asyncio.gather(*(shard.run(is_stopping) for shard in running))
    return max(codes, key=abs)
