"""Channels to the gRPC doors of other nodes, for calls that those have to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, cast

import grpc.aio
from grpc import StatusCode

from penstock.doors.grpc.statuses import ERROR_TRAILER, RETRIABLE_TRAILER, Refusal, Status
from penstock.errors import PeerNotReached, PeerUnavailable

Address = tuple[str, int]
Metadata = tuple[tuple[str, str], ...]

_CONNECT_SECONDS: Final = 1.0


class Upstreams:
    """One channel to each node that was asked so far."""

    def __init__(self, message_bytes_max: int) -> None:
        self._options = (
            # Answers of ours may be larger than what we take.
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", message_bytes_max),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.enable_http_proxy", 0),
        )
        self._channels: dict[Address, grpc.aio.Channel] = {}

    async def ask(self, address: Address, method: str, data: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        """The answer of another node; `PeerNotReached` if it was not asked, `Refusal` if it refuses."""
        channel = self._channel(address)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await channel.channel_ready()
        except TimeoutError:
            raise PeerNotReached(f"There is no connection to the gRPC door at {address[0]}:{address[1]}.") from None
        try:
            ask = channel.unary_unary(method, _as_it_is, _as_it_is)
            answer: bytes = await ask(data, metadata=metadata, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise _told(error, address) from None
        return answer

    def _channel(self, address: Address) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            host, port = address
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            channel = self._channels[address] = grpc.aio.insecure_channel(where, options=self._options)
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)


def _as_it_is(data: bytes) -> bytes:
    return data


def _told(error: grpc.aio.AioRpcError, address: Address) -> Refusal | PeerUnavailable:
    pairs = cast("Iterable[tuple[str, str]]", error.trailing_metadata() or ())
    trailers = dict(pairs)
    code = trailers.get(ERROR_TRAILER)
    details = error.details() or ""
    if code is not None:
        is_retriable = trailers.get(RETRIABLE_TRAILER) == "true"
        return Refusal(Status(error.code(), details, code, is_retriable))
    if error.code() is StatusCode.DEADLINE_EXCEEDED:
        return Refusal(Status(error.code(), details, "request_timed_out", is_retriable=True))
    return PeerUnavailable(
        f"The node at {address[0]}:{address[1]}, which has to answer this, did not ({details or error.code().name}). "
        "Whether it did what it was asked to is not known."
    )
