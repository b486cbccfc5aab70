"""What the process asks of the operating system: open files, memory, and how often garbage is collected."""

from __future__ import annotations

import ctypes
import gc
import logging
import platform
import resource
from contextlib import suppress
from typing import Final

from penstock.config.settings import Settings

log = logging.getLogger(__name__)

SPARE_DESCRIPTORS: Final = 32  # for the node's own files, when connections have taken all others
# How much of the limit on open files the connections of a door may take; the rest is for segments and other nodes.
_KAFKA_SHARE: Final = 0.4
_HTTP_SHARE: Final = 0.2
_GRPC_SHARE: Final = 0.1
_CONNECTIONS_MIN: Final = 16
# From malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 * 1024 * 1024
# Batches and frames hold no cycles, so the collector finds next to nothing however often it runs.
_GC_THRESHOLDS: Final = (50_000, 20, 50)


def raise_file_limit() -> None:
    """Allow as many open files as the system does: each segment and each connection takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def kafka_connections(configured: int) -> int:
    """How many connections the Kafka door takes."""
    return _within_open_files(configured, _KAFKA_SHARE)


def http_connections(configured: int) -> int:
    """How many connections the HTTP door takes."""
    return _within_open_files(configured, _HTTP_SHARE)


def grpc_connections(configured: int) -> int:
    """As many connections as the gRPC door may take."""
    return _within_open_files(configured, _GRPC_SHARE)


def _within_open_files(configured: int, share: float) -> int:
    """As many connections as are configured, but no more than their share of the files that may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return configured
    return min(configured, max(int(soft * share), _CONNECTIONS_MIN))


def warn_of_limits(settings: Settings) -> None:
    """Warn where the limit on open files leaves fewer connections than are configured."""
    configured = settings.broker.max_connections
    kafka, http = kafka_connections(configured), http_connections(configured)
    if min(kafka, http) < configured:
        log.warning(
            "At most %d files may be open (ulimit -n), so the Kafka door takes %d connections and the HTTP door %d, "
            "not %d each (broker.max_connections).",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            kafka,
            http,
            configured,
        )


def keep_heap() -> None:
    """Have the C library hold on to a few free megabytes.

    It gives memory back as soon as a large request is done, and the next one of half a megabyte then waits for the
    kernel to clear its pages: a third of the processor time of publishing in bulk.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    library.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES // 4)  # or the first setting would have all large ones mapped apart


def settle_memory() -> None:
    """Take what start-up made out of the garbage collector's sight, let it run less often, give back what is free.

    Start-up leaves holes all over the heap, most of all where modules had to be compiled: more than ten megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
