"""The definitions, the code made from them, and the table that both are made from belong together."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, new_class

import msgspec
import pytest
from google.protobuf.message import Message

from penstock.api.operation import Action, Repeat, Request, Resource, _row
from penstock.api.table import OPERATIONS
from penstock.grpc.definitions import BreakingChange, Lock, definitions_of
from penstock.grpc.generated import messages_pb2, queues_pb2, topics_pb2
from penstock.grpc.legacy import ANSWERS, FIELDS, MESSAGES, METHODS, NOT_IN_GRPC
from penstock.grpc.shapes import Rpc, leaves_of, rpcs_of

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "src" / "penstock" / "grpc" / "generated"
DEFINITIONS = sorted((ROOT / "proto" / "penstock" / "v1").glob("*.proto"))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_definitions_and_the_lock_are_those_of_the_table(generate: ModuleType) -> None:
    made = generate.define()
    assert sorted(DEFINITIONS) == sorted(path for path in made if path.suffix == ".proto"), "run ./dev proto"
    assert [path.name for path, text in made.items() if path.read_text() != text] == [], "run ./dev proto"


def test_generated_code_is_up_to_date(generate: ModuleType, tmp_path: Path) -> None:
    generate.generate(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in GENERATED.iterdir() if path.suffix in {".py", ".pyi"}}
    assert sorted(made) == sorted(kept), "run ./dev proto"
    assert [name for name in made if made[name] != kept[name]] == [], "run ./dev proto"


def test_every_operation_has_a_method_or_a_reason_to_have_none() -> None:
    bound = {rpc.request for rpc in rpcs_of(OPERATIONS)}
    declared = {row.request for row in OPERATIONS}
    assert declared - bound == set(NOT_IN_GRPC)
    assert all(reason.endswith(".") for reason in NOT_IN_GRPC.values())


def test_what_is_kept_of_before_is_of_types_and_fields_that_there_are() -> None:
    declared = {row.request for row in OPERATIONS}
    assert {*METHODS, *ANSWERS} <= declared
    used = {kind for rpc in rpcs_of(OPERATIONS) for kind in (rpc.request, rpc.answer) if kind is not None}
    waiting = list(used)
    while waiting:
        kind = waiting.pop()
        inlined = [info.type for info in msgspec.structs.fields(kind) if FIELDS.get(kind, {}).get(info.name) == ""]
        for inner in (*inlined, *(leaf.struct for leaf in leaves_of(kind))):
            if inner is not None and inner not in used:
                used.add(inner)
                waiting.append(inner)
    assert set(MESSAGES) <= used
    for kind, fields in FIELDS.items():
        below = [each for each in used if issubclass(each, kind)]
        assert below, kind
        known = {info.name for each in below for info in msgspec.structs.fields(each)}
        assert not set(fields) - known - {"after", "cursor", "limit"}, kind


# -- what clients of before rely on ------------------------------------------------------------------------------------


def test_what_clients_of_before_rely_on_is_as_it_was() -> None:
    """Every message, field, number, type, enum and method of the definitions that were written by hand."""
    before = Lock.of((Path(__file__).parent / "before_the_table.lock").read_bytes())
    now = Lock.of((ROOT / "proto" / "penstock" / "v1" / "numbers.lock").read_bytes())
    assert before.methods.items() <= now.methods.items()
    for name, message in before.messages.items():
        assert message.file == now.messages[name].file
        assert message.fields.items() <= now.messages[name].fields.items(), name
    for name, enum in before.enums.items():
        assert enum.values.items() <= now.enums[name].values.items()


class Told(msgspec.Struct, frozen=True, kw_only=True):
    count: int


def rpcs(*fields: tuple[str, type], name: str = "Ask") -> list[Rpc]:
    def body(space: dict[str, object]) -> None:
        space.update(__annotations__=dict(fields), __module__="penstock.api.topics", __doc__="Ask.")

    request = new_class(name, (Request[Told],), {"frozen": True, "kw_only": True}, body)
    row = _row(
        request,
        "POST /v1/ask",
        {"tag": "topics", "needs": Action.READ.of(Resource.TOPIC), "repeat": Repeat.SAFE},
    )
    return [rpc for rpc in rpcs_of([row]) if not rpc.is_stream]


def test_numbers_stay_and_new_fields_get_the_next_one() -> None:
    lock = Lock()
    definitions_of(rpcs(("first", str), ("second", int)), lock)
    text = definitions_of(rpcs(("zeroth", str), ("second", int), ("first", str)), lock)["topics.proto"]
    assert "string first = 1;" in text
    assert "int64 second = 2;" in text
    assert "string zeroth = 3;" in text


def test_a_field_that_is_gone_is_refused_unless_its_number_is_reserved() -> None:
    lock = Lock()
    definitions_of(rpcs(("first", str), ("second", int)), lock)
    with pytest.raises(BreakingChange, match="second"):
        definitions_of(rpcs(("first", str)), lock)
    del lock.messages["AskRequest"].fields["second"]
    lock.messages["AskRequest"].reserved.append(2)
    text = definitions_of(rpcs(("first", str), ("third", int)), lock)["topics.proto"]
    assert "reserved 2;" in text
    assert "int64 third = 3;" in text


@pytest.mark.parametrize("kind", [int, float, bytes, list[str], dict[str, str]])
def test_a_field_of_another_type_is_refused(kind: type) -> None:
    lock = Lock()
    definitions_of(rpcs(("first", str)), lock)
    with pytest.raises(BreakingChange, match="first"):
        definitions_of(rpcs(("first", kind)), lock)


def test_a_number_that_is_used_twice_or_reserved_is_refused() -> None:
    lock = Lock()
    definitions_of(rpcs(("first", str), ("second", str)), lock)
    lock.messages["AskRequest"].fields["second"] = "1 string"
    with pytest.raises(BreakingChange, match="twice"):
        definitions_of(rpcs(("first", str), ("second", str)), lock)


def test_a_method_that_is_gone_or_answers_with_something_else_is_refused() -> None:
    lock = Lock()
    (rpc,) = rpcs(("first", str))
    definitions_of([rpc], lock)
    with pytest.raises(BreakingChange, match="gone"):
        definitions_of(rpcs(("first", str), name="Tell"), lock)
    lock = Lock(methods={"Topics.Ask": "AskRequest -> Other"})
    with pytest.raises(BreakingChange, match="AskRequest -> Told"):
        definitions_of([rpc], lock)


# -- the files ---------------------------------------------------------------------------------------------------------


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
