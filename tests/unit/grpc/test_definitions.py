"""The definitions, the code made from them, and the methods that keep their promises belong together."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from google.protobuf.message import Message

from penstock.doors.grpc.method import Conversing, Streaming, Unary
from penstock.doors.grpc.services import SERVICES
from penstock.grpc.generated import messages_pb2, queues_pb2, topics_pb2

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "src" / "penstock" / "grpc" / "generated"
DEFINITIONS = sorted((ROOT / "proto" / "penstock" / "v1").glob("*.proto"))


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    generate.generate(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in GENERATED.iterdir() if path.suffix in {".py", ".pyi"}}
    assert sorted(made) == sorted(kept), "run ./dev proto"
    assert [name for name in made if made[name] != kept[name]] == [], "run ./dev proto"


@pytest.mark.parametrize(("service", "methods"), SERVICES, ids=lambda each: getattr(each, "name", ""))
def test_every_method_that_is_promised_is_kept_and_no_other(service: object, methods: dict[str, object]) -> None:
    promised = {method.name: method for method in service.methods}  # type: ignore[attr-defined]
    assert set(promised) == set(methods)
    kinds = {(False, False): Unary, (False, True): Streaming, (True, True): Conversing}
    for name, described in promised.items():
        assert isinstance(methods[name], kinds[described.client_streaming, described.server_streaming])


def test_every_service_is_served() -> None:
    defined = {name for path in DEFINITIONS for name in re.findall(r"^service (\w+)", path.read_text(), re.MULTILINE)}
    assert {service.name for service, _ in SERVICES} == defined


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.name)
def test_definitions_say_what_they_mean(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("// "), "a file opens with what it is about"
    for before, line in pairwise(lines):
        if re.match(r"service \w+", line):
            assert before.startswith("// "), line
    assert all(len(line) <= 120 for line in lines)


def test_enums_begin_with_unspecified_and_carry_their_name() -> None:
    for module in (messages_pb2, queues_pb2, topics_pb2):
        for enum in module.DESCRIPTOR.enum_types_by_name.values():
            prefix = re.sub(r"(?<!^)([A-Z])", r"_\1", enum.name).upper()
            assert enum.values[0].name == f"{prefix}_UNSPECIFIED"
            assert all(value.name.startswith(prefix) for value in enum.values)


def test_requests_survive_the_wire() -> None:
    request: Message = queues_pb2.ReceiveRequest(topic="t", max_messages=3, wait={"seconds": 1})
    assert queues_pb2.ReceiveRequest.FromString(request.SerializeToString()) == request


def test_a_node_without_the_door_does_not_load_its_library() -> None:
    code = (
        "import sys, penstock.cli.main, penstock.node.server as s; m = sys.modules; "
        "print('grpc' in m, 'google.protobuf' in m)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == ["False", "False"]
