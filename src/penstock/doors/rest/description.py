"""The API's description after OpenAPI 3.1, made from the operations and the types they really use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec.structs import FieldInfo

from penstock import __version__
from penstock.api import operation as api
from penstock.api.operation import sources_of
from penstock.api.problems import Problem, status_of_kind
from penstock.doors.rest.binder import body_of
from penstock.doors.rest.exchange import JSON, MSGPACK
from penstock.doors.rest.problems import PROBLEM_TYPE

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
    "access": "Who may do what: users, rules, roles and API keys.",
    "quotas": "How much clients may publish, read and ask for in a second.",
    "audit": "Who changed what, and who was refused.",
    "health": "For whoever watches over the node.",
    "admin": "The node and its cluster as JSON.",
    "description": "The API's description and the status page.",
}


@dataclass(frozen=True, slots=True)
class PageDescription:
    """What the description tells of something that is HTTP's alone."""

    path: str
    name: str
    tag: str
    summary: str
    media_type: str
    status: int = 200
    errors: tuple[int, ...] = ()
    query: type[msgspec.Struct] | None = None

    @property
    def names(self) -> list[str]:
        return _PATH_PARAMETER.findall(self.path)


def describe(declared: Sequence[api.Operation], pages: Sequence[PageDescription]) -> Json:
    """The whole description: of the table's operations, and of what is HTTP's alone."""
    routes = [(each, route, sources_of(each, route)) for each in declared for route in each.routes]
    bodies = {route.name: body_of(each, route, sources) for each, route, sources in routes}
    named = [
        *(kind for kind in bodies.values() if _is_struct(kind)),
        *(_shown(each) for each in declared),
    ]
    types = {kind for kind in named if kind is not None and kind is not bytes}
    ordered = [Problem, *sorted(types, key=lambda kind: kind.__name__)]
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    paths: dict[str, Json] = {}
    for each, route, sources in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _declared(each, route, sources, bodies[route.name])
    for page in pages:
        paths.setdefault(page.path, {})["get"] = _page(page)
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


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _shown(operation: api.Operation) -> Any:
    """The type of what REST answers with."""
    if operation.shows is None or operation.answer is None:
        return operation.answer
    return next(info.type for info in msgspec.structs.fields(operation.answer) if info.name == operation.shows)


def _declared(operation: api.Operation, route: api.Route, sources: api.Sources, body: Any) -> Json:
    described: Json = {
        "operationId": route.name,
        "tags": [operation.tag],
        "summary": route.summary,
        "responses": _declared_responses(operation, sources, has_body=body is not None),
    }
    parameters = [
        *(_parameter("path", name, info) for name, info in sources.path.items()),
        *(_parameter("query", name, info) for name, info in sources.query.items()),
        *(_header(operation.headers[name], info) for name, info in sources.headers.items()),
    ]
    if parameters:
        described["parameters"] = parameters
    if body is not None:
        content = {JSON: {"schema": _ref(body)}} if _is_struct(body) else {MSGPACK: {"schema": {}}}
        described["requestBody"] = {"required": not operation.is_body_optional, "content": content}
    return described


def _parameter(place: str, name: str, info: FieldInfo) -> Json:
    schema = msgspec.json.schema(info.type)
    is_required = info.required or place == "path"
    if not is_required and info.default is not msgspec.NODEFAULT and info.default is not None:
        schema["default"] = msgspec.to_builtins(info.default)
    described: Json = {"name": name, "in": place, "required": is_required, "schema": schema}
    text = schema.pop("description", "")
    return {**described, "description": text} if text else described


def _header(header: api.Header, info: FieldInfo) -> Json:
    return {**_parameter("header", header.name, info), "description": header.description}


def _declared_responses(operation: api.Operation, sources: api.Sources, *, has_body: bool) -> Json:
    responses: Json = {}
    shown = _shown(operation)
    for status in (operation.status, *operation.also):
        responses[str(status)] = {"description": HTTPStatus(status).phrase}
        if status == HTTPStatus.NO_CONTENT:
            continue
        content: Json = {} if shown is None else {JSON: {"schema": _ref(shown)}}
        if operation.has_packed and status == operation.status:
            content[MSGPACK] = {"schema": {}}
        responses[str(status)]["content"] = content
    statuses = {status_of_kind(kind) for kind in operation.errors}
    if has_body or sources.query or sources.headers or any(info.type is not str for info in sources.path.values()):
        statuses.add(HTTPStatus.BAD_REQUEST)
    if has_body:
        statuses |= {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
    if operation.is_body_packed:
        statuses.add(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    if not operation.is_early:
        statuses.add(HTTPStatus.SERVICE_UNAVAILABLE)
    for status in statuses:
        responses.setdefault(str(int(status)), _problem(HTTPStatus(status).phrase))
    responses["default"] = _problem("Any other error.")
    return dict(sorted(responses.items()))


# -- what is HTTP's alone ----------------------------------------------------------------------------------------------


def _page(page: PageDescription) -> Json:
    described: Json = {
        "operationId": page.name,
        "tags": [page.tag],
        "summary": page.summary,
        "responses": {
            str(page.status): {
                "description": HTTPStatus(page.status).phrase,
                "content": {page.media_type: {"schema": {}}},
            },
            **{str(status): _problem(HTTPStatus(status).phrase) for status in page.errors},
            "default": _problem("Any other error."),
        },
    }
    fields = () if page.query is None else msgspec.structs.fields(page.query)
    parameters = [
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in page.names),
        *(_parameter("query", info.name, info) for info in fields),
    ]
    return {**described, "parameters": parameters} if parameters else described


def _problem(text: str) -> Json:
    return {"description": text, "content": {PROBLEM_TYPE: {"schema": _ref(Problem)}}}


def _ref(kind: type) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}
