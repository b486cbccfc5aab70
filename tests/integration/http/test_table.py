"""What the description states is what is checked: values just outside each limit are refused, and named."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc
from msgspec import Meta
from tests.support.grpc_calls import GrpcCalls, GrpcRefusal

from penstock.api.operation import TABLE, Action, Repeat, Request, Resource, operation
from penstock.api.table import OPERATIONS
from penstock.client.calls import answer_of, call_of
from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.grpc.server import GrpcServer
from penstock.doors.rest.app import build_app
from penstock.doors.rest.description import describe
from penstock.doors.rest.pages import PAGES
from penstock.grpc.definitions import Lock, definitions_of
from penstock.grpc.reference import page_of
from penstock.grpc.shapes import rpcs_of
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves

from .conftest import DoorInThread

ROOT = Path(__file__).parents[3]
Json = dict[str, Any]
DESCRIPTION: Json = msgspec.json.decode(msgspec.json.encode(describe(OPERATIONS, [page.described for page in PAGES])))
# What refuses a value for being outside its limits; where a name is stated as a pattern, what looks for it may.
REFUSALS = {
    "invalid_parameter",
    "invalid_body",
    "invalid_request",
    "dead_letter_not_found",
    "body_too_large",
}
TOPIC_NAMES = {"topic", "name"}
_DECLARED = [
    (method, path, described)
    for path, item in DESCRIPTION["paths"].items()
    for method, described in item.items()
    if described["operationId"] not in {page.name for page in PAGES}
]
EVERY = pytest.mark.parametrize(
    ("method", "path", "described"), _DECLARED, ids=[described["operationId"] for _, _, described in _DECLARED]
)


def resolved(schema: Json) -> Json:
    while "$ref" in schema:
        schema = DESCRIPTION["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def sample(schema: Json) -> Any:
    """A value within the limits."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return sample(schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer":
            return schema.get("minimum", 0)
        case "number":
            return 1.0
        case "boolean":
            return False
        case "array":
            return [sample(_item(schema))] * schema.get("minItems", 0)
        case "object":
            named = {name: sample(schema["properties"][name]) for name in schema.get("required", ())}
            return {**named, "started_at": "2026-01-01T00:00:00"} if "started_at" in named else named
        case "string" if schema.get("format") == "date-time":
            return "2026-01-01T00:00:00Z"
        case _:
            return "x"


def outside(schema: Json) -> Iterator[Any]:
    """Values just outside each limit that a schema states."""
    schema = resolved(schema)
    for one in schema.get("anyOf", ()):
        yield from outside(one)
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "exclusiveMinimum" in schema:
        yield schema["exclusiveMinimum"]
    if "maximum" in schema:
        yield schema["maximum"] + 1
    if "minLength" in schema:
        yield "x" * (schema["minLength"] - 1)
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if "pattern" in schema:
        yield "\u00fc mlaut"
    if "enum" in schema and None not in schema["enum"]:
        yield "no such word"
    if "minItems" in schema:
        yield [sample(_item(schema))] * (schema["minItems"] - 1)
    if "maxItems" in schema:
        yield [sample(_item(schema))] * (schema["maxItems"] + 1)
    if schema.get("type") == "array":
        yield from ([value] for value in outside(_item(schema)))


def _item(schema: Json) -> Json:
    """What an array holds, which a tuple says of each place."""
    found: Json = schema["items"] or schema["prefixItems"][0]
    return found


def body_of(described: Json) -> Json | None:
    content = described.get("requestBody", {}).get("content", {})
    return resolved(content["application/json"]["schema"]) if "application/json" in content else None


def ask(client: httpx.Client, method: str, path: str, described: Json, change: tuple[str, str, Any]) -> httpx.Response:
    """A call with one value of its own; ``change`` is where that goes, its name and the value."""
    place, changed, value = change
    parameters = described.get("parameters", [])

    def told(parameter: Json) -> str:
        is_it = (parameter["in"], parameter["name"]) == (place, changed)
        return str(value if is_it else sample(parameter["schema"]))

    url = path
    for parameter in parameters:
        if parameter["in"] == "path":
            quoted = "".join(f"%{byte:02X}" for byte in told(parameter).encode())
            url = url.replace(f"{{{parameter['name']}}}", quoted)
    query = {
        parameter["name"]: told(parameter)
        for parameter in parameters
        if parameter["in"] == "query" and (parameter["required"] or parameter["name"] == changed)
    }
    headers = {changed: str(value)} if place == "header" else {}
    schema = body_of(described)
    body = None if schema is None else sample(schema)
    if schema is not None and place == "body":
        body = {**body, changed: value}
    return client.request(method, url, params=query, headers=headers, json=body)


@EVERY
def test_a_value_just_outside_a_limit_is_refused_and_named(
    client: httpx.Client, method: str, path: str, described: Json
) -> None:
    cases = [
        (parameter["in"], parameter["name"], value)
        for parameter in described.get("parameters", [])
        for value in outside(parameter["schema"])
        if parameter["in"] != "path" or value != ""  # which is another path
        if parameter["in"] != "header" or (isinstance(value, int) or (value and value.isascii()))
    ]
    schema = body_of(described)
    if schema is not None:
        cases += [("body", name, value) for name, part in schema["properties"].items() for value in outside(part)]
    for place, name, value in cases:
        answer = ask(client, method, path, described, (place, name, value))
        shown = (place, name, str(value)[:50], answer.text[:300])
        assert 400 <= answer.status_code < 500, shown
        if place == "path" or name in TOPIC_NAMES:
            continue  # names that cannot be are not found, or refused by what looks for them
        problem = answer.json()
        assert problem["code"] in REFUSALS, shown
        assert problem["code"] == "body_too_large" or name in problem["detail"], shown


@EVERY
def test_a_required_parameter_is_described_so_and_missed(
    client: httpx.Client, method: str, path: str, described: Json
) -> None:
    queries = [parameter for parameter in described.get("parameters", []) if parameter["in"] == "query"]
    for parameter in queries:
        if parameter["required"]:
            others = {**described, "parameters": [each for each in described["parameters"] if each is not parameter]}
            answer = ask(client, method, path, others, ("", "", None))
            assert answer.status_code == 400, answer.text
            assert parameter["name"] in answer.json()["detail"]


def test_some_parameters_are_required() -> None:
    required = {
        (described["operationId"], parameter["name"])
        for _, _, described in _DECLARED
        for parameter in described.get("parameters", [])
        if parameter["in"] == "query" and parameter["required"]
    }
    assert required == {("next_times", "cron"), ("delete_group_offsets", "topic")}


def test_a_topic_in_a_path_is_that_topic_whatever_it_is_called(client: httpx.Client) -> None:
    for topic in ("null", "other"):
        client.post(f"/v1/topics/{topic}/publish", json={"value": "v"}).raise_for_status()
    (message,) = client.post("/v1/queues/other/receive", json={"group": "named"}).json()["messages"]
    body = {"group": "named", "receipts": [message["receipt"]]}
    foreign = client.post("/v1/queues/null/ack", json=body)
    assert (foreign.status_code, foreign.json()["results"][0]["status"]) == (207, "foreign")
    assert client.post("/v1/queues/other/ack", json=body).json()["results"][0]["status"] == "done"


# -- one declaration is enough -----------------------------------------------------------------------------------------


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What is said."""

    text: str
    node_id: int


@operation(
    "POST /v1/greetings/{name}",
    tag="admin",
    needs=Action.DESCRIBE.of(Resource.NODE),
    repeat=Repeat.SAFE,
    status=201,
    location="/v1/greetings/{answer.text}",
)
class Greet(Request[Greeting], frozen=True, kw_only=True):
    """Say hello."""

    name: str
    times: Annotated[int, Meta(ge=1, le=3)] = 1


@serves(Greet)
async def greet(services: Services, request: Greet, _caller: Caller) -> Greeting:
    return Greeting(text=" ".join(["hello", *[request.name] * request.times]), node_id=services.node_id)


def private_pool(lock: Lock, folder: Path) -> DescriptorPool:
    """The definitions with the new operation in them, as a client has them that was made from these."""
    texts = definitions_of(rpcs_of([*OPERATIONS, TABLE[Greet]]), lock)
    for name, text in texts.items():
        path = folder / "penstock" / "v1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paths = [f"--proto_path={folder}", f"--proto_path={files('grpc_tools') / '_proto'}"]
    made = [f"--descriptor_set_out={folder / 'set'}", "--include_imports"]
    assert protoc.main(["protoc", *paths, *made, *(f"penstock/v1/{name}" for name in texts)]) == 0
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString((folder / "set").read_bytes()).file:
        pool.Add(each)
    return pool


def test_an_operation_is_everywhere_by_one_declaration(door: DoorInThread, tmp_path: Path) -> None:
    """In REST, OpenAPI, the definitions and the door of gRPC, the client, and the page of the reference."""
    declared = [*OPERATIONS, TABLE[Greet]]
    app = build_app(door.server._door, declared, PAGES, door.server._socket)

    async def call(**options: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.post("/v1/greetings/you", **options)

    answer = door.run(call(json={"times": 2}))
    assert (answer.status_code, answer.json()) == (201, {"text": "hello you you", "node_id": 1})
    assert answer.headers["location"] == "/v1/greetings/hello you you"
    refused = door.run(call(json={"times": 4}))
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_body")
    described = describe(declared, [])["paths"]["/v1/greetings/{name}"]["post"]
    assert (described["operationId"], described["summary"]) == ("greet", "Say hello.")
    body = described["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/GreetBody"}

    asked = call_of(Greet(name="you", times=2))
    assert (asked.method, asked.target, asked.body) == ("POST", "/v1/greetings/you", b'{"times":2}')
    assert answer_of(Greet(name="you"), 201, answer.content) == Greeting(text="hello you you", node_id=1)

    lock = Lock.of((ROOT / "proto" / "penstock" / "v1" / "numbers.lock").read_bytes())
    pool = private_pool(lock, tmp_path)
    assert lock.methods["TestTable.Greet"] == "GreetRequest -> Greeting"
    assert (
        "// Say hello.\n  rpc Greet(GreetRequest) returns (Greeting);"
        in (tmp_path / "penstock" / "v1" / "test_table.proto").read_text()
    )

    async def opened() -> GrpcServer:
        server = GrpcServer(
            door.server._door.services, GrpcConfig(port=0, stop_timeout_ms=100), operations=declared, pool=pool
        )
        await server.start()
        return server

    server = door.run(opened())
    calls = GrpcCalls(server.port, declared, pool)
    try:
        assert calls.call(Greet(name="you", times=2)) == Greeting(text="hello you you", node_id=1)
        with pytest.raises(GrpcRefusal, match=r"times: Expected `int` <= 3"):
            calls.call(Greet(name="you", times=4))
    finally:
        calls.close()
        door.run(server.stop())
    assert "| `Greet` | `POST /v1/greetings/{name}` | Say hello. |" in page_of(declared)
