"""The OpenAPI description: complete, well formed, and about the routes that are really there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec

from penstock.api.table import OPERATIONS
from penstock.doors.rest.description import describe
from penstock.doors.rest.pages import PAGES

DESCRIPTION: dict[str, Any] = msgspec.json.decode(
    msgspec.json.encode(describe(OPERATIONS, [page.described for page in PAGES]))
)


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DESCRIPTION["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for child in node.values():
            yield from _refs(child)
    elif isinstance(node, list):
        for child in node:
            yield from _refs(child)


def test_every_operation_is_described() -> None:
    declared = {(route.path, route.method.lower()) for each in OPERATIONS for route in each.routes}
    assert declared | {(page.path, "get") for page in PAGES} == {(path, method) for path, method, _ in _operations()}


def test_the_issues_routes_are_there() -> None:
    assert {(method.upper(), path) for path, method, _ in _operations()} >= {
        ("GET", "/livez"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/v1/admin/health"),
        ("GET", "/v1/admin/metrics"),
        ("GET", "/v1/admin/cluster"),
        ("GET", "/v1/topics"),
        ("POST", "/v1/topics"),
        ("GET", "/v1/topics/{topic}"),
        ("PATCH", "/v1/topics/{topic}"),
        ("DELETE", "/v1/topics/{topic}"),
        ("POST", "/v1/topics/{topic}/partitions"),
        ("POST", "/v1/topics/{topic}/publish"),
        ("POST", "/v1/topics/{topic}/batch"),
        ("GET", "/v1/topics/{topic}/messages"),
        ("GET", "/openapi.json"),
    }


def test_everything_about_queues_is_there() -> None:
    settling = {"ack", "nack", "reject", "extend", "release"}
    group = "/v1/queues/{topic}/groups/{group}"
    assert {(method.upper(), path) for path, method, _ in _operations()} >= {
        *(("POST", f"/v1/queues/{{topic}}/{verb}") for verb in ("receive", "purge", *settling)),
        *(("POST", f"/v1/groups/{{group}}/{verb}") for verb in settling),
        *((method, group) for method in ("GET", "PUT", "DELETE")),
        *(("POST", f"{group}/{verb}") for verb in ("pause", "resume", "seek")),
        ("GET", f"{group}/peek"),
        ("GET", "/v1/queues"),
        ("GET", "/v1/queues/{topic}"),
        ("POST", "/v1/topics/{topic}/batches"),
        ("POST", "/v1/producers"),
        ("GET", "/v1/ws"),
    }


def test_second_forms_of_bodies_and_answers_are_described() -> None:
    binary = "application/vnd.penstock+msgpack"
    paths = DESCRIPTION["paths"]
    batches = paths["/v1/topics/{topic}/batches"]["post"]
    assert set(batches["requestBody"]["content"]) == set(batches["responses"]["200"]["content"]) == {binary}
    for path in ("/v1/queues/{topic}/receive", "/v1/groups/{group}/poll"):
        assert set(paths[path]["post"]["responses"]["200"]["content"]) == {"application/json", binary}


def test_operation_ids_are_unique_and_every_operation_says_what_it_does() -> None:
    ids = [operation["operationId"] for _, _, operation in _operations()]
    assert len(ids) == len(set(ids))
    assert all(operation["summary"] for _, _, operation in _operations())
    tags = {tag["name"] for tag in DESCRIPTION["tags"]}
    assert all(set(operation["tags"]) <= tags for _, _, operation in _operations())


def test_every_part_of_a_path_is_a_parameter_and_none_is_named_twice() -> None:
    for path, _, operation in _operations():
        parameters = operation.get("parameters", [])
        in_path = {parameter["name"] for parameter in parameters if parameter["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert all(parameter["required"] for parameter in parameters if parameter["in"] == "path")
        names = [(parameter["in"], parameter["name"]) for parameter in parameters]
        assert len(names) == len(set(names))


def test_every_response_has_a_description_and_errors_are_problems() -> None:
    for _, _, operation in _operations():
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d|default", status)
            assert response["description"]
        problem = operation["responses"]["default"]["content"]["application/problem+json"]["schema"]
        assert problem == {"$ref": "#/components/schemas/Problem"}


def test_schemas_are_valid_and_every_reference_leads_somewhere() -> None:
    schemas = DESCRIPTION["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, _, operation in _operations():
        for parameter in operation.get("parameters", []):
            jsonschema.Draft202012Validator.check_schema(parameter["schema"])
            assert "$ref" not in str(parameter["schema"]), path
    assert {ref.removeprefix("#/components/schemas/") for ref in _refs(DESCRIPTION)} <= set(schemas)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in schemas)


def test_the_document_has_the_members_openapi_3_1_asks_for() -> None:
    assert DESCRIPTION["openapi"] == "3.1.0"
    assert {"title", "version"} <= set(DESCRIPTION["info"])
    assert set(DESCRIPTION) <= {"openapi", "info", "tags", "paths", "components"}
    assert all(path.startswith("/") for path in DESCRIPTION["paths"])
