"""Reflection: the services tell tools what they are, under both names that tools ask by.

``v1`` is word for word what ``v1alpha`` was, so one servicer answers for both; only the definition under the newer name
has to be made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as OLDER_NAME

NAME: Final = "grpc.reflection.v1.ServerReflection"


def serve_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Offer the definitions of these services, and of reflection itself."""
    _define_newer()
    names = [*services, NAME, OLDER_NAME]
    servicer = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (NAME, OLDER_NAME):
        methods = {"ServerReflectionInfo": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))


def _define_newer() -> None:
    older = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(older)
    text = older.SerializeToString()
    newer = descriptor_pb2.FileDescriptorProto.FromString(text)
    newer.name = "grpc/reflection/v1/reflection.proto"
    newer.package = "grpc.reflection.v1"
    for field in _fields(newer):
        field.type_name = field.type_name.replace(".grpc.reflection.v1alpha.", ".grpc.reflection.v1.")
    for method in newer.service[0].method:
        method.input_type = method.input_type.replace(".v1alpha.", ".v1.")
        method.output_type = method.output_type.replace(".v1alpha.", ".v1.")
    descriptor_pool.Default().AddSerializedFile(newer.SerializeToString())


def _fields(definition: descriptor_pb2.FileDescriptorProto) -> Iterable[descriptor_pb2.FieldDescriptorProto]:
    return (field for message in definition.message_type for field in message.field if field.type_name)
