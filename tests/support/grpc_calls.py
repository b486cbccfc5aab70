"""Operations of the table over gRPC, asked for and answered as their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import grpc
import msgspec
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from penstock.api.operation import Operation, Packed, Request
from penstock.api.table import OPERATIONS
from penstock.grpc.converters import answer_of, encode
from penstock.grpc.pool import generated_pool
from penstock.grpc.shapes import Rpc, rpcs_of, service_name

A = TypeVar("A")
T_S = 60.0


class GrpcRefusal(Exception):
    """A call was refused."""

    def __init__(self, error: grpc.RpcError) -> None:
        ended: Any = error
        super().__init__(ended.details())
        self.status: grpc.StatusCode = ended.code()
        self.details: str = ended.details()
        self.code: str = dict(ended.trailing_metadata() or ()).get("penstock-error", "")


class GrpcCalls:
    """A client that knows only the table."""

    def __init__(
        self, port: int, operations: Sequence[Operation] = OPERATIONS, pool: DescriptorPool | None = None
    ) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        self.rpcs = {rpc.request: rpc for rpc in rpcs_of(operations) if not rpc.is_stream}
        self._pool = pool or generated_pool()

    def call(self, request: Request[A | Packed]) -> A:
        rpc = self.rpcs[type(request)]
        answer = self.send(rpc, encode(request, self._described(rpc.request_message)).SerializeToString())
        if rpc.answer is None:
            return None  # type: ignore[return-value]
        found: Any = answer_of(rpc.answer, GetMessageClass(self._described(rpc.answer_message)).FromString(answer))
        return found  # type: ignore[no-any-return]

    def send(self, rpc: Rpc, data: bytes) -> bytes:
        ask = self.channel.unary_unary(f"/penstock.v1.{service_name(rpc.service)}/{rpc.name}")
        try:
            answer: bytes = ask(data, timeout=T_S)
        except grpc.RpcError as error:
            raise GrpcRefusal(error) from None
        return answer

    def message(self, name: str, **fields: Any) -> Any:
        return GetMessageClass(self._described(name))(**fields)

    def unchecked(self, request: msgspec.Struct, name: str) -> bytes:
        """The bytes of a request that was not held against its limits."""
        return encode(request, self._described(name)).SerializeToString()

    def _described(self, name: str) -> Any:
        return self._pool.FindMessageTypeByName(f"penstock.v1.{name}")

    def close(self) -> None:
        self.channel.close()
