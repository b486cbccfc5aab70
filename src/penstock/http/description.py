"""The API's description after OpenAPI 3.1, made from the operations and the types they really use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.http.operation import Operation
from penstock.http.problems import PROBLEM_TYPE, Problem

Json = dict[str, Any]

_REF: Final = "#/components/schemas/{name}"
_PATH_PARAMETER: Final = re.compile(r"{(\w+)}")
_TAGS: Final = {
    "messages": "Publish messages and read them.",
    "topics": "Create, describe, change and delete topics.",
    "queues": "Work through a topic as a queue: receive under a lease, ack, retry; look at and steer its groups.",
    "pipelines": "Data jobs on Spark, as they report themselves.",
    "schedules": "Messages for later: once, every so often, or by a cron expression.",
    "groups": "Be a member of a consumer group; look at groups and their lag, move their offsets, delete them.",
    "transactions": "Publish from several writers at once, so that all of it is seen or nothing.",
    "cluster": "Look at the cluster and its nodes; drain and remove nodes, move replicas and leaders.",
    "health": "For whoever watches over the node.",
    "admin": "The node and its cluster as JSON.",
    "description": "The API's description and the status page.",
}


def describe(operations: Sequence[Operation]) -> Json:
    """The whole description."""
    named = (kind for operation in operations for kind in (operation.takes[0], operation.answer))
    types = {kind for kind in named if kind is not None and kind is not bytes}
    ordered = [Problem, *sorted(types, key=lambda kind: kind.__name__)]
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": __version__,
            "description": "One replicated log, read three ways. Errors are RFC 9457 problem documents.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(operation: Operation) -> Json:
    body, query = operation.takes
    described: Json = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": " ".join((operation.handler.__doc__ or "").split()),
        "responses": _responses(operation),
    }
    parameters = [*_path_parameters(operation.path), *_query_parameters(query), *_headers(operation)]
    if parameters:
        described["parameters"] = parameters
    if body is not None:
        content = {operation.body_media_type: {"schema": {} if body is bytearray else _ref(body)}}
        described["requestBody"] = {"required": not operation.is_body_optional, "content": content}
    return described


def _path_parameters(path: str) -> Iterable[Json]:
    for name in _PATH_PARAMETER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(query: type | None) -> Iterable[Json]:
    if query is None:
        return
    _, schemas = msgspec.json.schema_components([query])
    for name, schema in schemas[query.__name__]["properties"].items():
        text = schema.pop("description", "")
        yield {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


def _headers(operation: Operation) -> Iterable[Json]:
    for name, text in operation.headers:
        yield {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}


def _responses(operation: Operation) -> Json:
    responses: Json = {}
    for status in (operation.status, *operation.also):
        responses[str(status)] = {"description": HTTPStatus(status).phrase}
        if status != HTTPStatus.NO_CONTENT:
            schema = {} if operation.answer is None else _ref(operation.answer)
            responses[str(status)]["content"] = {operation.media_type: {"schema": schema}}
            if operation.also_as is not None and status == operation.status:
                responses[str(status)]["content"][operation.also_as] = {"schema": {}}
    for status in operation.errors:
        responses.setdefault(str(status), _problem(HTTPStatus(status).phrase))
    responses["default"] = _problem("Any other error.")
    return dict(sorted(responses.items()))


def _problem(text: str) -> Json:
    return {"description": text, "content": {PROBLEM_TYPE: {"schema": _ref(Problem)}}}


def _ref(kind: type) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}
