"""A gRPC client that knows nothing but an address: it asks the server what there is, as grpcurl does, and calls that.

Requests and answers are dicts in protobuf's JSON form. No generated module of ours is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2


class ReflectionClient:
    """Calls whatever the server says that it offers."""

    def __init__(self, address: str, version: str = "v1", *, keeps_names: bool = True) -> None:
        """``keeps_names``: whether members are called as in the definitions, or in camel case as in protobuf's JSON."""
        self._keeps_names = keeps_names
        self._channel = grpc.insecure_channel(address)
        self._path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        self._pool = DescriptorPool()
        self._known: set[str] = set()

    def __enter__(self) -> ReflectionClient:
        grpc.channel_ready_future(self._channel).result(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    # -- what there is ------------------------------------------------------------------------------------------------

    def _ask(self, **question: str) -> reflection_pb2.ServerReflectionResponse:
        ask = self._channel.stream_stream(
            self._path,
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        (answer,) = ask(iter([reflection_pb2.ServerReflectionRequest(**question)]), timeout=20)
        if answer.HasField("error_response"):
            raise LookupError(answer.error_response.error_message)
        return answer

    def services(self) -> list[str]:
        return [service.name for service in self._ask(list_services="").list_services_response.service]

    def methods(self, service: str) -> dict[str, MethodDescriptor]:
        if service not in self._known:
            found = self._ask(file_containing_symbol=service).file_descriptor_response.file_descriptor_proto
            files = {file.name: file for file in map(descriptor_pb2.FileDescriptorProto.FromString, found)}
            for name in files:
                self._learn(name, files)
            self._known.add(service)
        return dict(self._pool.FindServiceByName(service).methods_by_name)

    def _learn(self, name: str, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
        try:
            self._pool.FindFileByName(name)
        except KeyError:
            for dependency in files[name].dependency:
                self._learn(dependency, files)
            self._pool.Add(files[name])

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self, method: str, request: dict[str, Any] | None = None, timeout: float = 20) -> dict[str, Any]:
        """A request, an answer: ``call("penstock.v1.Topics/CreateTopic", {"name": "t"})``."""
        described, path = self._described(method)
        call = self._channel.unary_unary(path, *self._codecs(described))
        return self._told(call(self._request(described, request or {}), timeout=timeout))

    def stream(self, method: str, request: dict[str, Any], timeout: float = 20) -> Iterator[dict[str, Any]]:
        """A request, any number of answers."""
        described, path = self._described(method)
        call = self._channel.unary_stream(path, *self._codecs(described))
        return map(self._told, call(self._request(described, request), timeout=timeout))

    def converse(
        self, method: str, requests: Iterable[dict[str, Any]], timeout: float = 20
    ) -> Iterator[dict[str, Any]]:
        """Any number of requests, any number of answers."""
        described, path = self._described(method)
        call = self._channel.stream_stream(path, *self._codecs(described))
        return map(self._told, call((self._request(described, each) for each in requests), timeout=timeout))

    def _described(self, method: str) -> tuple[MethodDescriptor, str]:
        service, _, name = method.partition("/")
        return self.methods(service)[name], f"/{method}"

    def _codecs(self, described: MethodDescriptor) -> tuple[Any, Any]:
        return GetMessageClass(described.input_type).SerializeToString, GetMessageClass(
            described.output_type
        ).FromString

    def _request(self, described: MethodDescriptor, request: dict[str, Any]) -> Any:
        return json_format.ParseDict(request, GetMessageClass(described.input_type)(), descriptor_pool=self._pool)

    def _told(self, answer: Any) -> dict[str, Any]:
        told: dict[str, Any] = json_format.MessageToDict(answer, preserving_proto_field_name=self._keeps_names)
        return told
